#include "backend/cpu/packfile.h"

#include "base/hash.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRY_ALIGN = 64, TABLE_MAX = 64 << 20 };

static const uint64_t magic = 0x31304b4341505344; /* "DSPACK01" in little endian */

/* An entry as it is in the file, behind the blocks' hashes; the names, each with its NUL, follow the last. */
typedef struct {
    uint32_t name_at, name_bytes;
    ds_pack_shape shape;
    uint64_t at, bytes;
} record;

_Static_assert(sizeof(ds_pack_shape) == 48 && sizeof(record) == 72 && sizeof(ds_pack_head) == 72,
               "these are written as they are in memory: padding would be written too");

static uint64_t align(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

size_t ds_pack_blocks(uint64_t data_at, uint64_t file_bytes)
{
    return (size_t)((file_bytes - data_at + DS_PACK_BLOCK - 1) / DS_PACK_BLOCK);
}

static uint64_t data_begin(uint64_t table)
{
    return align(sizeof(ds_pack_head) + table, DS_PACK_BLOCK);
}

/* --- writing --- */

static uint64_t table_size(const ds_pack_entry *entries, size_t n)
{
    uint64_t data = 0, bytes = n * sizeof(record);
    for (size_t i = 0; i < n; i++) {
        bytes += strlen(entries[i].name) + 1;
        data += entries[i].bytes;
    }
    return bytes + ds_pack_blocks(0, data) * sizeof(uint64_t);
}

void ds_pack_lay_out(ds_pack_entry *entries, size_t n, uint64_t *data_at, uint64_t *file_bytes)
{
    uint64_t at = *data_at = data_begin(table_size(entries, n));
    for (size_t i = 0; i < n; i++) {
        entries[i].at = at;
        at += entries[i].bytes;
    }
    *file_bytes = at;
}

bool ds_pack_build(ds_buf *out, const ds_pack_entry *entries, size_t n, const uint64_t *hashes,
                   const uint64_t key[2])
{
    uint64_t table = table_size(entries, n), begin = data_begin(table);
    ds_pack_head head = {
        .magic = magic,
        .version = DS_PACK_VERSION,
        .count = (uint32_t)n,
        .key = {key[0], key[1]},
        .table_bytes = table,
        .data_at = begin,
        .file_bytes = n ? entries[n - 1].at + entries[n - 1].bytes : begin,
    };
    size_t hash_bytes = ds_pack_blocks(begin, head.file_bytes) * sizeof *hashes;
    uint32_t name_at = (uint32_t)(hash_bytes + n * sizeof(record));
    ds_buf_clear(out);
    ds_buf_add(out, &head, sizeof head); /* its hashes come below */
    ds_buf_add(out, hashes, hash_bytes);
    for (size_t i = 0; i < n; i++) {
        const ds_pack_entry *e = &entries[i];
        record r = {name_at, (uint32_t)strlen(e->name) + 1, e->shape, e->at, e->bytes};
        name_at += r.name_bytes;
        ds_buf_add(out, &r, sizeof r);
    }
    for (size_t i = 0; i < n; i++)
        ds_buf_add(out, entries[i].name, strlen(entries[i].name) + 1);
    if (out->failed || table > TABLE_MAX)
        return false;
    head.table_hash = ds_hash64(out->data + sizeof head, (size_t)table);
    head.hash = ds_hash64(&head, offsetof(ds_pack_head, hash));
    memcpy(out->data, &head, sizeof head);
    return true;
}

/* --- reading --- */

static ds_status damaged(ds_error *err, const char *what)
{
    return ds_fail(err, DS_BAD_FILE, "it is damaged: %s", what);
}

ds_status ds_pack_read_head(ds_pack_head *head, const void *data, size_t size, uint64_t file_bytes,
                            const uint64_t key[2], ds_error *err)
{
    if (size < sizeof *head)
        return damaged(err, "it ends inside its header");
    memcpy(head, data, sizeof *head);
    if (head->magic != magic)
        return ds_fail(err, DS_BAD_FILE, "it is no file of repacked weights");
    if (head->version != DS_PACK_VERSION)
        return ds_fail(err, DS_BAD_FILE, "it has version %" PRIu32 ", not %d", head->version,
                       DS_PACK_VERSION);
    if (head->hash != ds_hash64(head, offsetof(ds_pack_head, hash)))
        return damaged(err, "the header's checksum is wrong");
    if (key && (head->key[0] != key[0] || head->key[1] != key[1]))
        return ds_fail(err, DS_BAD_FILE, "it belongs to other files or settings");
    if (head->file_bytes != file_bytes)
        return ds_fail(err, DS_BAD_FILE, "it is damaged: it has %" PRIu64 " bytes of %" PRIu64, file_bytes,
                       head->file_bytes);
    if (head->table_bytes > TABLE_MAX || head->data_at != data_begin(head->table_bytes) ||
        head->data_at > file_bytes ||
        ds_pack_blocks(head->data_at, file_bytes) > TABLE_MAX / sizeof(uint64_t) ||
        head->count > TABLE_MAX / sizeof(record) ||
        ds_pack_blocks(head->data_at, file_bytes) * sizeof(uint64_t) + head->count * sizeof(record) >
            head->table_bytes)
        return damaged(err, "its table does not fit");
    return DS_OK;
}

/* Entries lie one behind the other up to the file's end: no gaps, no overlap, nothing outside. */
static ds_status check_entry(const record *r, const ds_pack_head *head, const char *table, uint64_t at,
                             ds_error *err)
{
    if (r->at != at || !r->bytes || r->bytes % ENTRY_ALIGN || r->bytes > head->file_bytes - at)
        return damaged(err, "a matrix lies outside of it");
    if (!r->name_bytes || r->name_at > head->table_bytes || r->name_bytes > head->table_bytes - r->name_at ||
        table[r->name_at + r->name_bytes - 1])
        return damaged(err, "a name lies outside of it");
    return DS_OK;
}

ds_status ds_pack_read_table(ds_pack_entry **out, const ds_pack_head *head, const char *table, ds_error *err)
{
    *out = NULL;
    if (head->table_hash != ds_hash64(table, (size_t)head->table_bytes))
        return damaged(err, "the table's checksum is wrong");
    ds_pack_entry *entries = calloc((size_t)head->count + 1, sizeof *entries);
    if (!entries)
        return ds_fail(err, DS_NO_MEMORY, "there is no memory for its table");
    const char *records = table + ds_pack_blocks(head->data_at, head->file_bytes) * sizeof(uint64_t);
    ds_status status = DS_OK;
    uint64_t at = head->data_at; /* never behind file_bytes */
    for (uint32_t i = 0; i < head->count && !status; i++) {
        record r;
        memcpy(&r, records + i * sizeof r, sizeof r);
        status = check_entry(&r, head, table, at, err);
        if (status)
            break;
        entries[i] = (ds_pack_entry){table + r.name_at, r.shape, r.at, r.bytes};
        at += r.bytes;
    }
    if (!status && at != head->file_bytes)
        status = damaged(err, "there are bytes behind its last matrix");
    if (status)
        free(entries);
    else
        *out = entries;
    return status;
}
