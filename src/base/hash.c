#include "base/hash.h"

#define XXH_INLINE_ALL /* only its header is needed: nothing to link, and nothing to ship beside us */
#include <xxhash.h>

uint64_t ds_hash64(const void *data, size_t len)
{
    return XXH3_64bits(data, len);
}

void ds_hash128(uint64_t out[2], const void *data, size_t len)
{
    XXH128_hash_t hash = XXH3_128bits(data, len);
    out[0] = hash.high64;
    out[1] = hash.low64;
}
