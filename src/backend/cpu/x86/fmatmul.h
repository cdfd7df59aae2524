/* How the x86 float matmuls go through rows and tiles. Included by each after
 *   pass_fn   sums k inputs of some rows with the weights at p (tiles at tile_bytes) into acc[row][tile]
 *   GROUP     rows of the largest pass
 *   nears     [type][rows - 1] passes of 3 .. GROUP rows over one tile
 *   streams   [type] passes of 1 row over one tile and over TILES_OF_1, 2 rows over one and over TILES_OF_2
 *   near_weights, store_sums
 *
 * A tile goes CHUNK inputs at a time, for up to SPAN rows while its weights are in the first cache, turned
 * into fp32 where more than one pass needs them; where one pass takes all rows, more inputs at a time, for
 * longer streams. The rows' inputs are copied: at their own stride, often a
 * large power of two, they would fight over the same few cache ways. */
#ifndef DS_BACKEND_CPU_X86_FMATMUL_H
#define DS_BACKEND_CPU_X86_FMATMUL_H

enum { CHUNK = 128, SPAN = 48, WIDE = 8, ROOM = SPAN * (CHUNK + DS_TILE) };

/* rows that go together next, so that no handful is left for the last pass */
static int next_rows(int left, int most)
{
    return left >= 2 * most || left == most ? most : left > most ? (left + 1) / 2 : left;
}

static int type_index(ds_dtype type)
{
    return type == DS_F32 ? 0 : type == DS_F16 ? 1 : 2;
}

static void span_rows(const ds_fmat *w, const float *x, int ldx, int row, int rows, int tile0, int tile1,
                      const ds_dest *out)
{
    float xs[ROOM], room[CHUNK * DS_TILE], acc[WIDE][SPAN * DS_TILE];
    const int type = type_index(w->type);
    const bool convert = type && rows > GROUP;
    pass_fn *const *of = nears[convert ? 0 : type];
    const int stride = rows > GROUP ? CHUNK + DS_TILE : ROOM / GROUP, chunk = stride - DS_TILE;
    for (int t = tile0; t < tile1; t++)
        memset(acc[t - tile0], 0, (size_t)rows * DS_TILE * sizeof(float));
    for (int k0 = 0; k0 < w->k; k0 += chunk) {
        const int k = w->k - k0 < chunk ? w->k - k0 : chunk;
        for (int r = 0; r < rows; r++)
            memcpy(xs + r * stride, x + (size_t)(row + r) * (size_t)ldx + k0, (size_t)k * sizeof(float));
        for (int t = tile0; t < tile1; t++) {
            const uint8_t *p = w->data + (size_t)t * w->tile_bytes + (size_t)k0 * DS_TILE * (type ? 2 : 4);
            if (convert) {
                near_weights(p, w->type, k, room);
                p = (const uint8_t *)room;
            }
            for (int r = 0, some; r < rows; r += some) {
                some = next_rows(rows - r, GROUP);
                of[some - 1](p, 0, xs + r * stride, (size_t)stride, k, acc[t - tile0] + r * DS_TILE);
            }
        }
    }
    for (int t = tile0; t < tile1; t++)
        for (int r = 0; r < rows; r++)
            store_sums(out, row + r, w->n, t * DS_TILE, acc[t - tile0] + r * DS_TILE);
}

/* one row or two: bound by the weights' way from memory, several tiles give enough chains of sums */
static void few_rows(const ds_fmat *w, const float *x, int ldx, int rows, int tile0, int tile1,
                     const ds_dest *out)
{
    pass_fn *const *of = streams[type_index(w->type)] + 2 * (rows - 1);
    const int most = rows == 1 ? TILES_OF_1 : TILES_OF_2;
    for (int t = tile0, some; t < tile1; t += some) {
        float acc[8 * DS_TILE] = {0};
        some = tile1 - t >= most ? most : 1;
        of[some == most](w->data + (size_t)t * w->tile_bytes, w->tile_bytes, x, (size_t)ldx, w->k, acc);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < some; i++)
                store_sums(out, r, w->n, (t + i) * DS_TILE, acc + (r * some + i) * DS_TILE);
    }
}

static void fmatmul(const ds_fmat *w, const float *x, int ldx, int rows, int tile0, int tile1,
                    const ds_dest *out)
{
    if (rows <= 2) {
        few_rows(w, x, ldx, rows, tile0, tile1, out);
        return;
    }
    for (int t = tile0; t < tile1; t += WIDE)
        for (int r = 0, some; r < rows; r += some) {
            some = next_rows(rows - r, SPAN);
            span_rows(w, x, ldx, r, some, t, t + WIDE < tile1 ? t + WIDE : tile1, out);
        }
}

#endif
