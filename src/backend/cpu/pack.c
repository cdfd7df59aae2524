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

/* The larger of: one fp32 row; one row of codes, scales and mins; 64 bytes to align each. */
size_t ds_pack_scratch(const ds_weight *w)
{
    size_t groups = w->codes.bits ? w->cols / (size_t)w->codes.group : 0;
    size_t ints = w->cols + 2 * groups * sizeof(float) + 192, floats = w->cols * sizeof(float);
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

static uint32_t quad(const uint8_t *codes)
{
    uint32_t v;
    memcpy(&v, codes, sizeof v);
    return v;
}

/* One output's column of a tile: its four bytes of every vector, its lane of scales and mins. */
static void pack_row(const ds_qmat *m, uint8_t *tile, int lane, const uint8_t *codes, const float *scales,
                     const float *mins)
{
    size_t value = type_bytes(m->scale_type), lane4 = (size_t)lane * 4;
    for (int g = 0; g < m->k / m->group; g++, tile += m->group_bytes) {
        uint8_t *at = tile;
        for (int b = 0; b < m->group / DS_BLOCK; b++, codes += DS_BLOCK) {
            int vectors = m->bits == 4 ? 4 : 8;
            for (int j = 0; j < vectors; j++, at += 64) {
                uint32_t v = quad(codes + 4 * j);
                if (m->bits == 4)
                    v |= quad(codes + 16 + 4 * j) << 4;
                memcpy(at + lane4, &v, sizeof v);
            }
        }
        store_value(at + (size_t)lane * value, m->scale_type, scales[g]);
        if (m->has_min)
            store_value(at + (DS_TILE + (size_t)lane) * value, m->scale_type, mins[g]);
    }
}

void ds_qmat_fill(const ds_qmat *m, uint8_t *data, const ds_weight *w, int tile0, int tile1, void *scratch)
{
    size_t groups = (size_t)(m->k / m->group);
    float *scales = scratch, *mins = scales + groups;
    uint8_t *codes = (uint8_t *)(mins + groups);
    for (int t = tile0; t < tile1; t++)
        for (int lane = 0; lane < DS_TILE && t * DS_TILE + lane < m->n; lane++) {
            w->codes_row(w, (uint32_t)(t * DS_TILE + lane), codes, scales, mins);
            pack_row(m, data + (size_t)t * m->tile_bytes, lane, codes, scales, mins);
        }
}

void ds_fmat_fill(const ds_fmat *m, uint8_t *data, const ds_weight *w, int tile0, int tile1, void *scratch)
{
    size_t value = type_bytes(m->type);
    float *row = scratch;
    for (int t = tile0; t < tile1; t++)
        for (int lane = 0; lane < DS_TILE && t * DS_TILE + lane < m->n; lane++) {
            w->floats(w, (uint32_t)(t * DS_TILE + lane), row);
            uint8_t *at = data + (size_t)t * m->tile_bytes + (size_t)lane * value;
            for (int k = 0; k < m->k; k++, at += DS_TILE * value)
                store_value(at, m->type, row[k]);
        }
}
