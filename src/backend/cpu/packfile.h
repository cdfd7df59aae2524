/* The file of repacked matrices: a header, a table, and from a multiple of 2 MiB on the matrices' bytes,
 * each at a multiple of 64, one behind the other.
 *
 * Such files are untrusted: every count, offset and length is checked against the file's size before it is
 * used, and header, table and every block of 2 MiB of data have a hash of their bytes. Numbers are in the
 * machine's byte order; the magic of a machine of the other one does not match. */
#ifndef DS_BACKEND_CPU_PACKFILE_H
#define DS_BACKEND_CPU_PACKFILE_H

#include "base/buf.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DS_PACK_VERSION = 1,
    DS_PACK_BLOCK = 2 << 20,   /* a huge page: threads that read neighbours do not meet in one */
    DS_PACK_PIECE = 256 << 10, /* of a block, read and hashed at a time: it stays in a core's own cache */
    DS_PACK_PIECES = DS_PACK_BLOCK / DS_PACK_PIECE,
};

/* What a matrix's bytes look like: equal shapes of one source weight have equal bytes. No padding. */
typedef struct {
    uint32_t integer, n, k, bits, group, zero, code_max, has_min, type, reserved;
    uint64_t tile_bytes;
} ds_pack_shape;

typedef struct {
    const char *name;
    ds_pack_shape shape;
    uint64_t at, bytes; /* in the file; bytes is a multiple of 64 */
} ds_pack_entry;

typedef struct {
    uint64_t magic;
    uint32_t version, count;
    uint64_t key[2];
    uint64_t table_bytes; /* follows the header */
    uint64_t data_at, file_bytes;
    uint64_t table_hash;
    uint64_t hash; /* of all before it */
} ds_pack_head;

/* Blocks of the data from data_at to the file's end; the last may be short. */
size_t ds_pack_blocks(uint64_t data_at, uint64_t file_bytes);

/* Sets at of every entry, from name and bytes, and both results. */
void ds_pack_lay_out(ds_pack_entry *entries, size_t n, uint64_t *data_at, uint64_t *file_bytes);
/* Header and table of entries that are laid out; hashes: of the blocks. False: out of memory. */
bool ds_pack_build(ds_buf *out, const ds_pack_entry *entries, size_t n, const uint64_t *hashes,
                   const uint64_t key[2]);

/* Takes the header from the first `size` bytes of a file of file_bytes; key NULL: any. */
ds_status ds_pack_read_head(ds_pack_head *head, const void *data, size_t size, uint64_t file_bytes,
                            const uint64_t key[2], ds_error *err);
/* table: head->table_bytes bytes, which the entries' names point into, and which begin with the blocks'
 * hashes (uint64_t). *out: head->count entries, free() it. */
ds_status ds_pack_read_table(ds_pack_entry **out, const ds_pack_head *head, const char *table, ds_error *err);

#endif
