/* A drafter that knows nothing: the files of a real one with random numbers in its tensors. What it
 * proposes is refused nearly always, at every place of a block. */
#ifndef DS_TESTS_LOSSLESS_RANDOM_DRAFTER_H
#define DS_TESTS_LOSSLESS_RANDOM_DRAFTER_H

#include "formats/checkpoint.h"

/* Makes a folder under $TMPDIR (else /tmp) with the config.json and tensor shapes of the folder `like`.
 * out: its path, [size]. random_drafter_remove deletes it. */
ds_status random_drafter_make(const char *like, uint64_t seed, char *out, size_t size, ds_error *err);
void random_drafter_remove(const char *folder);

#endif
