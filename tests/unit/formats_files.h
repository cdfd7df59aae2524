/* Small model files built in memory, and a temporary folder to put them in. For the tests of formats/. */
#ifndef FORMATS_FILES_H
#define FORMATS_FILES_H

#include "base/buf.h"
#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];

static inline void make_folder(void)
{
    strcpy(folder, "/tmp/ds_formats_XXXXXX");
    assert_non_null(mkdtemp(folder));
}

static inline const char *in_folder(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static inline void write_file(const char *name, const void *data, size_t len)
{
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
}

static inline void remove_folder(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

static inline void put32(ds_buf *out, uint32_t value)
{
    ds_buf_add(out, &value, 4);
}

static inline void put64(ds_buf *out, uint64_t value)
{
    ds_buf_add(out, &value, 8);
}

static inline void put_text(ds_buf *out, const char *text)
{
    put64(out, strlen(text));
    ds_buf_str(out, text);
}

/* A safetensors file of the header and so many bytes 0, 1, 2, ... */
static inline void put_safetensors(ds_buf *out, const char *header, size_t bytes)
{
    put_text(out, header);
    for (size_t i = 0; i < bytes; i++)
        ds_buf_add(out, &(uint8_t){(uint8_t)i}, 1);
}

static inline void put_gguf(ds_buf *out, uint32_t version, uint64_t tensors, uint64_t kvs)
{
    ds_buf_str(out, "GGUF");
    put32(out, version);
    put64(out, tensors);
    put64(out, kvs);
}

static inline void put_kv32(ds_buf *out, const char *key, uint32_t type, uint32_t value)
{
    put_text(out, key);
    put32(out, type);
    put32(out, value);
}

static inline void put_kv_text(ds_buf *out, const char *key, const char *text)
{
    put_text(out, key);
    put32(out, 8);
    put_text(out, text);
}

/* One or two dimensions (b 0: one), fastest first. */
static inline void put_tensor(ds_buf *out, const char *name, uint64_t a, uint64_t b, uint32_t type,
                              uint64_t offset)
{
    put_text(out, name);
    put32(out, b ? 2 : 1);
    put64(out, a);
    if (b)
        put64(out, b);
    put32(out, type);
    put64(out, offset);
}

static inline void put_zeros(ds_buf *out, size_t align, size_t bytes)
{
    while (out->len % align)
        ds_buf_add(out, "", 1);
    for (size_t i = 0; i < bytes; i++)
        ds_buf_add(out, "", 1);
}

#endif
