#include "backend/cpu/packfile.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a backend does with an accepted file: every entry's bytes must be inside of it, every name ends. */
static void use(const uint8_t *data, size_t size, uint64_t file_bytes)
{
    ds_error err;
    ds_pack_head head;
    ds_pack_entry *entries;
    if (ds_pack_read_head(&head, data, size, file_bytes, NULL, &err) || head.table_bytes > size - sizeof head)
        return;
    size_t table_bytes = (size_t)head.table_bytes;
    char *table = malloc(table_bytes ? table_bytes : 1); /* exactly: a sanitizer sees a read past the end */
    if (!table)
        return;
    memcpy(table, data + sizeof head, table_bytes);
    if (!ds_pack_read_table(&entries, &head, table, &err)) {
        size_t blocks = ds_pack_blocks(head.data_at, head.file_bytes);
        if (blocks * sizeof(uint64_t) > table_bytes)
            abort();
        for (uint32_t i = 0; i < head.count; i++)
            if (strlen(entries[i].name) > table_bytes || entries[i].at < head.data_at ||
                entries[i].bytes > file_bytes - entries[i].at)
                abort();
        free(entries);
    }
    free(table);
}

/* As it is, and with its hashes put right, without which no damage gets far. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_pack_head head;
    use(data, size, size);
    if (size < sizeof head)
        return 0;
    uint8_t *copy = malloc(size);
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    memcpy(&head, copy, sizeof head);
    uint64_t file_bytes = head.file_bytes; /* the data need not be there */
    if (head.table_bytes <= size - sizeof head)
        head.table_hash = ds_hash64(copy + sizeof head, (size_t)head.table_bytes);
    head.hash = ds_hash64(&head, offsetof(ds_pack_head, hash));
    memcpy(copy, &head, sizeof head);
    use(copy, size, file_bytes);
    use(copy, size, size);
    free(copy);
    return 0;
}
