#include "random_drafter.h"

#include "base/buf.h"
#include "base/map.h"
#include "formats/dequant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* In [-1, 1). */
static float spread(uint64_t *state)
{
    return (float)((double)(next(state) >> 11) * 0x1p-52 - 1);
}

static bool ends_with(const char *name, const char *tail)
{
    size_t n = strlen(name), t = strlen(tail);
    return n >= t && strcmp(name + n - t, tail) == 0;
}

/* Sizes such that activations neither vanish nor explode: norms near 1, matrices around 0. Packed words
 * are any bits; with a scale s and a bias of -7.5 s four-bit codes are around 0 too. */
static float value(const char *name, uint64_t *state)
{
    float x = spread(state);
    if (ends_with(name, "norm.weight"))
        return 1 + 0.3f * x;
    if (ends_with(name, ".scales"))
        return 0.01f + 0.002f * x;
    if (ends_with(name, ".biases"))
        return -0.075f + 0.002f * x;
    return 0.06f * x;
}

static bool write_tensor(FILE *file, const ds_tensor *t, uint64_t *state)
{
    uint32_t size = ds_dtype_get(t->type)->bytes;
    bool floats = t->type == DS_F32 || t->type == DS_F16 || t->type == DS_BF16;
    if (!floats && t->type != DS_U32) /* index tables stay what they are */
        return fwrite(t->data, 1, t->bytes, file) == t->bytes;
    for (uint64_t i = 0; i < t->bytes / size; i++) {
        uint32_t word = (uint32_t)(next(state) >> 32);
        if (floats) {
            float x = value(t->name, state);
            if (t->type == DS_F32)
                memcpy(&word, &x, sizeof word);
            else
                word = t->type == DS_F16 ? ds_f32_to_f16(x) : ds_f32_to_bf16(x);
        }
        uint8_t bytes[] = {(uint8_t)word, (uint8_t)(word >> 8), (uint8_t)(word >> 16), (uint8_t)(word >> 24)};
        if (fwrite(bytes, size, 1, file) != 1)
            return false;
    }
    return true;
}

static bool write_tensors(FILE *file, const ds_checkpoint *files, uint64_t seed)
{
    ds_buf header = {0};
    uint64_t at = 0, state = seed * 2 + 1;
    ds_buf_str(&header, "{");
    for (size_t i = 0; i < ds_checkpoint_count(files); i++) {
        const ds_tensor *t = ds_checkpoint_at(files, i);
        ds_buf_fmt(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", t->name,
                   ds_dtype_get(t->type)->name);
        for (int d = 0; d < t->rank; d++)
            ds_buf_fmt(&header, "%s%llu", d ? "," : "", (unsigned long long)t->dims[d]);
        ds_buf_fmt(&header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                   (unsigned long long)(at + t->bytes));
        at += t->bytes;
    }
    ds_buf_str(&header, "}");
    while (header.len % 8 && ds_buf_str(&header, " "))
        ;
    bool ok = !header.failed;
    for (int i = 0; i < 8 && ok; i++)
        ok = fputc((int)((uint64_t)header.len >> (8 * i) & 255), file) != EOF;
    ok = ok && fwrite(header.data, 1, header.len, file) == header.len;
    for (size_t i = 0; i < ds_checkpoint_count(files) && ok; i++)
        ok = write_tensor(file, ds_checkpoint_at(files, i), &state);
    ds_buf_release(&header);
    return ok;
}

static ds_status copy_config(const char *from, const char *to, ds_error *err)
{
    ds_map map = {0};
    ds_status status = ds_map_open(&map, from, err);
    if (status)
        return status;
    FILE *file = fopen(to, "wb");
    bool ok = file && fwrite(map.data, 1, map.size, file) == map.size;
    ok = (!file || !fclose(file)) && ok;
    ds_map_close(&map);
    return ok ? DS_OK : ds_fail(err, DS_INTERNAL, "%s: cannot be written", to);
}

ds_status random_drafter_make(const char *like, uint64_t seed, char *out, size_t size, ds_error *err)
{
    const char *tmp = getenv("TMPDIR");
    char from[2048], to[2048];
    snprintf(out, size, "%s/dspark-drafter-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(out))
        return ds_fail(err, DS_INTERNAL, "%s: cannot be made", out);
    snprintf(from, sizeof from, "%s/config.json", like);
    snprintf(to, sizeof to, "%s/config.json", out);
    ds_checkpoint *files = NULL;
    ds_status status = copy_config(from, to, err);
    if (!status)
        status = ds_checkpoint_open(&files, like, err);
    if (!status) {
        snprintf(to, sizeof to, "%s/model.safetensors", out);
        FILE *file = fopen(to, "wb");
        bool ok = file && write_tensors(file, files, seed);
        ok = (!file || !fclose(file)) && ok;
        if (!ok)
            status = ds_fail(err, DS_INTERNAL, "%s: cannot be written", to);
    }
    ds_checkpoint_close(files);
    if (status)
        random_drafter_remove(out);
    return status;
}

void random_drafter_remove(const char *folder)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    char path[2048];
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}
