/* Counter-based random numbers: a value is a function of its key alone, so that plain decoding, drafts
 * and batches can ask for the same noise in any order. */
#ifndef DS_DECODE_NOISE_H
#define DS_DECODE_NOISE_H

#include <math.h>
#include <stdint.h>

/* Exponential noise of all ids at one position (Gumbel noise is minus its logarithm). Ids come in
 * blocks of 64, drawn from the top down: first the smallest value of the block and whose it is, then,
 * where asked for, how far above it another one lies. That is exactly 64 independent draws, since the
 * least of 64 exponentials is one of rate 64 and the rest starts afresh above it. A search for the
 * best id so looks into a block only where its smallest value could win. */
enum { DS_NOISE_BLOCK = 64 };

typedef struct {
    uint64_t blocks, ids; /* keys of the two streams */
} ds_noise;

static inline uint64_t ds_mix(uint64_t x) /* the finaliser of splitmix64 */
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline uint64_t ds_draw(uint64_t key, uint64_t counter)
{
    return ds_mix(key + (counter + 1) * 0x9e3779b97f4a7c15u);
}

static inline uint64_t ds_noise_key(uint64_t seed, int64_t pos, uint64_t purpose)
{
    return ds_draw(ds_draw(ds_mix(seed), (uint64_t)pos), purpose);
}

static inline ds_noise ds_noise_at(uint64_t seed, int64_t pos)
{
    return (ds_noise){ds_noise_key(seed, pos, UINT64_MAX), ds_noise_key(seed, pos, UINT64_MAX - 1)};
}

/* -log of a uniform number in (0, 1) of 53 bits; small results, which win, are the finely spaced ones. */
static inline double ds_exponential(uint64_t bits)
{
    return -log1p(-((double)(bits >> 11) + 0.5) * 0x1p-53);
}

static inline uint64_t ds_noise_block(const ds_noise *noise, int32_t block)
{
    return ds_draw(noise->blocks, (uint64_t)(uint32_t)block);
}

/* The smallest value of a block, from ds_noise_block's bits, and whose it is. */
static inline double ds_noise_least(uint64_t bits)
{
    return ds_exponential(bits) * (1.0 / DS_NOISE_BLOCK);
}

static inline int ds_noise_winner(uint64_t bits)
{
    return (int)(bits % DS_NOISE_BLOCK); /* the low 11 bits are not in the value */
}

/* log(64) - log(value) is below this bound on -log of the smallest value, without a logarithm. */
static inline double ds_noise_bound(uint64_t bits)
{
    int zeros = __builtin_clzll(bits | 1u << 10);
    return 0.6931471805599454 * (zeros + 7);
}

static inline double ds_noise_id(const ds_noise *noise, int32_t id, uint64_t block_bits, double least)
{
    if (id % DS_NOISE_BLOCK == ds_noise_winner(block_bits))
        return least;
    return least + ds_exponential(ds_draw(noise->ids, (uint64_t)(uint32_t)id));
}

#endif
