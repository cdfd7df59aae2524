/* A file mapped read-only. */
#ifndef DS_BASE_MAP_H
#define DS_BASE_MAP_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;
    uint64_t inode; /* these two with size and path: which file it was */
    int64_t mtime_ns;
} ds_map;

/* Fails with DS_BAD_FILE where the path is missing, not a regular file, or unreadable. */
ds_status ds_map_open(ds_map *map, const char *path, ds_error *err);
void ds_map_close(ds_map *map); /* takes a zeroed map; zeroes it */
/* Tells the kernel that bytes [begin, end) will not be read soon, so that they leave our resident
 * memory; reading them later still works. Only whole pages inside the range are dropped. */
void ds_map_drop(const void *begin, const void *end);

#endif
