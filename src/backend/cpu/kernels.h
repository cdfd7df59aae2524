/* The CPU kernels: packed layouts, argument structs, and one table of implementations per kernel.
 *
 * Every implementation of a kernel gives the same bits, whatever its ISA: integer sums are exact, and
 * the order of fp32 operations is fixed here in terms of 16 virtual lanes and explicit fused
 * multiply-adds (written fma below). The reference is plain C with fmaf().
 *
 * Matmul order: outputs in lanes, one chain over k per output.
 *   float:   acc = fma(x[k], w[k], acc), k ascending from acc = 0
 *   integer: for each block b of 32 inputs, ascending:
 *              I = sum code * xq - zero * sum(xq)             (exact in int32)
 *              acc = fma(w_scale * x_scale[b], (float)I, acc)
 *              if has_min: acc = fma(w_min, x_min[b], acc)    x_min = x_scale * (float)sum(xq)
 *   then y = acc + bias (if any); y = old + that (if add). */
#ifndef DS_BACKEND_CPU_KERNELS_H
#define DS_BACKEND_CPU_KERNELS_H

#include "base/cpu.h"
#include "tensor/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DS_TILE = 16,      /* outputs of a packed tile, keys of a K tile */
    DS_BLOCK = 32,     /* inputs that share an activation scale */
    DS_KV_CHUNK = 256, /* keys of an attention chunk, by absolute position */
};

/* --- packed matrices ------------------------------------------------------------------------- */

/* Integer matrix. Tile t holds outputs 16t .. 16t+15 (those past n are zero), all k inputs, as k/group
 * groups, each: group/32 code blocks, then 16 scales, then (has_min) 16 mins, of scale_type.
 *   bits 4: a block is 4 vectors of 64 bytes; vector j, byte 4o+i: low nibble = code of input 4j+i,
 *           high nibble = code of input 16+4j+i, of output o
 *   bits 8: a block is 8 vectors of 64 bytes; vector j, byte 4o+i = code of input 4j+i of output o
 * Codes are unsigned. code_max tells kernels whether 16-bit pair sums can saturate. */
typedef struct {
    int n, k, tiles;
    int bits; /* 4 or 8: the packed width */
    int group, zero, code_max;
    bool has_min;
    ds_dtype scale_type;
    size_t group_bytes, tile_bytes;
    const uint8_t *data; /* 64-byte aligned */
} ds_qmat;

/* Float matrix: tile t is [k][16] elements of type (F32, F16, BF16). */
typedef struct {
    int n, k, tiles;
    ds_dtype type;
    size_t tile_bytes;
    const uint8_t *data;
} ds_fmat;

/* Quantised activation rows: x = scale * q per block of 32. Row r starts at r*k and r*(k/32). */
typedef struct {
    int k;
    const int8_t *q;      /* [rows][k] */
    const float *scale;   /* [rows][k/32]: max|x| / 127 */
    const float *min;     /* [rows][k/32]: scale * (float)sum */
    const int32_t *sum;   /* [rows][k/32] */
} ds_qact;

typedef struct {
    float *y; /* [rows][ld] */
    int ld;
    const float *bias;
    bool add;
} ds_dest;

/* y rows [0, rows), outputs of tiles [tile0, tile1): any rows >= 1, weights of a tile are unpacked
 * once per group of rows. Reads a few bytes past neither matrix nor rows. */
typedef void ds_qmm_fn(const ds_qmat *w, const ds_qact *x, int rows, int tile0, int tile1,
                       const ds_dest *out);
typedef void ds_fmm_fn(const ds_fmat *w, const float *x, int ldx, int rows, int tile0, int tile1,
                       const ds_dest *out);
/* One row: inv = 127 / max|x|, q = rint(x * inv) to even, scale = max / 127, sums. A block whose max is below
 * 2^-100 (127 / max would overflow), infinite or NaN gets q = 0; its scale keeps the infinity or NaN. */
typedef void ds_quant_fn(const float *x, int k, int8_t *q, float *scale, float *min, int32_t *sum);

/* --- attention ------------------------------------------------------------------------------- */

/* One chunk of at most 256 keys for `rows` query rows that share a KV head.
 * K: tiles of 16 keys, dimension-major: element (key, d) at (key/16)*16*dim + d*16 + key%16.
 * V: [key][dim]. Both from key 0 of the sequence, fp16 (half) or fp32; memory behind the last key up to
 * the end of its tile is readable (garbage).
 *   s_j = chain over d of fma(q[d], K[j][d], s), from 0   (q is scaled already)
 *   max = largest visible s; p_j = ds_exp(s_j - max) for visible keys, 0 for others
 *   sum: 16 lanes by j % 16, ascending, then the tree of ds_tree16; acc[d] = chain over visible j
 *   ascending of fma(p_j, V[j][d], acc), from 0. No visible key: max = -INFINITY, sum = 0, acc = 0. */
typedef struct {
    const void *k, *v;
    bool half;
    int dim;  /* any multiple of 8 up to 512 */
    int key0; /* first key of the chunk, a multiple of 256 */
    int rows;
    const float *const *q;   /* [rows] pointers to [dim] */
    const int *begin, *end;  /* [rows]: visible keys are [begin, end), absolute; clip to the chunk */
    float *max, *sum;        /* [rows] */
    float *acc;              /* [rows][dim] */
} ds_chunk;
typedef void ds_chunk_fn(const ds_chunk *c);

/* Merges the partial results of n chunks of one row in ascending order (skipping those with
 * max == -INFINITY): M' = max(M, m); a = ds_exp(M - M'), b = ds_exp(m - M');
 * L = fma(L, a, l * b); A = fma(A, a, acc * b), starting from the first chunk as it is. out = A / L.
 * max, sum: [n] with stride s; acc: [n] rows of dim with stride s * dim. */
typedef void ds_merge_fn(const float *max, const float *sum, const float *acc, int n, int s, int dim,
                         float *out);

/* --- rows ------------------------------------------------------------------------------------ */

/* mean square: 16 lanes by i % 16, each a chain of fma(x, x, lane), then the tree; r = tree / n + eps;
 * inv = 1 / sqrtf(r); out = (x * inv) * w (w NULL: no weight). out may be x. */
typedef void ds_rms_fn(const float *x, const float *w, int n, float eps, float *out);
/* out = silu(g) * u, silu(z) = z / (1 + ds_exp(-z)). out may be g. */
typedef void ds_swiglu_fn(const float *g, const float *u, int n, float *out);
/* Turns the first dims of x in place: a' = a*c - b*s, b' = b*c + a*s as fma(a, c, -(b * s)) and
 * fma(b, c, a * s); cs: [dims/2] pairs (cos, sin). */
typedef void ds_turn_fn(float *x, const float *cs, int dims, bool interleaved);
/* Lowest index of the largest element; NaN never wins; n >= 1. *max gets its value. */
typedef int ds_argmax_fn(const float *x, int n, float *max);
/* Stores one K row (dim floats) as column key%16 of its tile, and one V row. */
typedef void ds_store_fn(const float *k, const float *v, int dim, bool half, void *k_tile, int lane,
                         void *v_row);

/* --- tables ---------------------------------------------------------------------------------- */

typedef struct {
    const char *isa; /* "c", "avx2", "avx512" */
    unsigned need;   /* CPU flags */
    ds_qmm_fn *qmm;
    ds_fmm_fn *fmm;
    ds_quant_fn *quant;
} ds_matmul_impl;
extern const ds_matmul_impl ds_matmul_impls[]; /* reference first, then slow to fast */
extern const size_t ds_matmul_impl_count;

typedef struct {
    const char *isa;
    unsigned need;
    ds_chunk_fn *chunk;
    ds_merge_fn *merge;
    ds_store_fn *store;
} ds_attention_impl;
extern const ds_attention_impl ds_attention_impls[];
extern const size_t ds_attention_impl_count;

typedef struct {
    const char *isa;
    unsigned need;
    ds_rms_fn *rms;
    ds_swiglu_fn *swiglu;
    ds_turn_fn *turn;
    ds_argmax_fn *argmax;
} ds_row_impl;
extern const ds_row_impl ds_row_impls[];
extern const size_t ds_row_impl_count;

/* The fastest that flags allow; never NULL. */
const ds_matmul_impl *ds_matmul_pick(unsigned flags);
const ds_attention_impl *ds_attention_pick(unsigned flags);
const ds_row_impl *ds_row_pick(unsigned flags);

/* --- scalar maths shared by the references (math.c) ------------------------------------------- */

/* exp(x) by one fixed sequence of fp32 operations, also the vector kernels'; x <= 88, below -87: 0. */
float ds_exp(float x);
/* ((l0+l8)+(l4+l12)) ... : r[i] = l[i] + l[i+8], then i+4, i+2, i+1. */
float ds_tree16(const float *lanes);

#endif
