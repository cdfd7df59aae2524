/* Fast hashes (XXH3) that find accidents and tell inputs apart; no protection against a forger. */
#ifndef DS_BASE_HASH_H
#define DS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t ds_hash64(const void *data, size_t len);
void ds_hash128(uint64_t out[2], const void *data, size_t len);

#endif
