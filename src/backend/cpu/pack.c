/* See pack.h and, for the layouts, kernels.h. */
#include "backend/cpu/pack.h"

#include "backend/cpu/half.h"

#include <string.h>

static size_t type_bytes(ds_dtype type)
{
    return type == DS_F32 ? 4 : 2;
}

void ds_qmat_describe(ds_qmat *m, const ds_weight *w)
{
    const ds_codes *c = &w->codes;
    *m = (ds_qmat){
        .n = (int)w->rows,
        .k = (int)w->cols,
        .tiles = (int)((w->rows + DS_TILE - 1) / DS_TILE),
        .bits = c->bits <= 4 ? 4 : 8,
        .group = c->group,
        .zero = c->zero,
        .code_max = (1 << c->bits) - 1,
        .has_min = c->has_min,
        .scale_type = c->scale_type,
    };
    m->group_bytes = (size_t)DS_TILE * ((size_t)m->group * (size_t)m->bits / 8 +
                                        type_bytes(m->scale_type) * (m->has_min ? 2 : 1));
    m->tile_bytes = m->group_bytes * (size_t)(m->k / m->group);
}

void ds_fmat_describe(ds_fmat *m, const ds_weight *w, ds_dtype type)
{
    *m = (ds_fmat){
        .n = (int)w->rows,
        .k = (int)w->cols,
        .tiles = (int)((w->rows + DS_TILE - 1) / DS_TILE),
        .type = type,
    };
    m->tile_bytes = (size_t)DS_TILE * (size_t)m->k * type_bytes(type);
}

/* One row in each of its forms: fp32; codes with fp32 scales and mins; packed bytes with scales and mins. */
size_t ds_pack_scratch(const ds_weight *w)
{
    size_t groups = w->codes.bits ? w->cols / (size_t)w->codes.group : 0;
    size_t ints = 2 * (size_t)w->cols + 4 * groups * sizeof(float) + 64, floats = w->cols * sizeof(float);
    return ints > floats ? ints : floats;
}

static void store_value(uint8_t *at, ds_dtype type, float value)
{
    if (type == DS_F32) {
        memcpy(at, &value, sizeof value);
        return;
    }
    uint16_t h = type == DS_F16 ? ds_float_half(value) : ds_float_bf16(value); /* exact: see ds_codes */
    memcpy(at, &h, sizeof h);
}

/* A row as packed_row gives it. */
typedef struct {
    uint8_t *bytes, *scales, *mins;
} packed;

/* The same from codes_row, for formats whose bytes are laid out otherwise. */
static void convert_row(const ds_qmat *m, const ds_weight *w, uint32_t row, packed to, void *scratch)
{
    size_t groups = (size_t)(m->k / m->group), value = type_bytes(m->scale_type);
    float *scales = scratch, *mins = scales + groups;
    uint8_t *codes = (uint8_t *)(mins + groups);
    w->codes_row(w, row, codes, scales, mins);
    for (int i = 0; m->bits == 4 && i < m->k; i++)
        if (i % DS_BLOCK < 16)
            to.bytes[i / DS_BLOCK * 16 + i % DS_BLOCK] = (uint8_t)(codes[i] | codes[i + 16] << 4);
    if (m->bits == 8)
        memcpy(to.bytes, codes, (size_t)m->k);
    for (size_t g = 0; g < groups; g++) {
        store_value(to.scales + g * value, m->scale_type, scales[g]);
        if (m->has_min)
            store_value(to.mins + g * value, m->scale_type, mins[g]);
    }
}

/* One output's column of a tile: its four bytes of every vector, its lane of scales and mins. */
static void place_row(const ds_qmat *m, uint8_t *tile, int lane, packed row)
{
    const size_t value = type_bytes(m->scale_type), vectors = (size_t)m->group * (size_t)m->bits / 32;
    const uint8_t *bytes = row.bytes;
    for (int g = 0; g < m->k / m->group; g++, tile += m->group_bytes) {
        uint8_t *at = tile + 4 * lane;
        for (size_t j = 0; j < vectors; j += 4, at += 256, bytes += 16) { /* 4 or 8 vectors a block */
            memcpy(at, bytes, 4);
            memcpy(at + 64, bytes + 4, 4);
            memcpy(at + 128, bytes + 8, 4);
            memcpy(at + 192, bytes + 12, 4);
        }
        uint8_t *s = tile + vectors * 64 + (size_t)lane * value;
        memcpy(s, row.scales + (size_t)g * value, value);
        if (m->has_min)
            memcpy(s + DS_TILE * value, row.mins + (size_t)g * value, value);
    }
}

void ds_qmat_fill(const ds_qmat *m, uint8_t *data, const ds_weight *w, int tile0, int tile1, void *scratch)
{
    size_t groups = (size_t)(m->k / m->group);
    packed row;
    row.scales = scratch;
    row.mins = row.scales + groups * sizeof(float);
    row.bytes = row.mins + groups * sizeof(float);
    void *rest = row.bytes + (m->k + 15) / 16 * 16;
    for (int t = tile0; t < tile1; t++)
        for (int lane = 0; lane < DS_TILE && t * DS_TILE + lane < m->n; lane++) {
            if (w->packed_row)
                w->packed_row(w, (uint32_t)(t * DS_TILE + lane), row.bytes, row.scales, row.mins);
            else
                convert_row(m, w, (uint32_t)(t * DS_TILE + lane), row, rest);
            place_row(m, data + (size_t)t * m->tile_bytes, lane, row);
        }
}

void ds_fmat_fill(const ds_fmat *m, uint8_t *data, const ds_weight *w, int tile0, int tile1, void *scratch)
{
    size_t value = type_bytes(m->type);
    float *row = scratch; /* converted back below: exact, whatever the type */
    for (int t = tile0; t < tile1; t++)
        for (int lane = 0; lane < DS_TILE && t * DS_TILE + lane < m->n; lane++) {
            w->floats(w, (uint32_t)(t * DS_TILE + lane), row);
            uint8_t *at = data + (size_t)t * m->tile_bytes + (size_t)lane * value;
            for (int k = 0; k < m->k; k++, at += DS_TILE * value)
                store_value(at, m->type, row[k]);
        }
}
