/* Reads of tensors what an engine would: every byte of it must be there. */
#ifndef FUZZ_TOUCH_H
#define FUZZ_TOUCH_H

#include "formats/weight.h"

#include <stdlib.h>

static inline void touch_weight(const ds_weight *w)
{
    size_t groups = w->codes.bits ? w->cols / (uint32_t)w->codes.group : 0;
    if (w->finite)
        w->finite(w, 0, w->rows);
    if (w->cols > 1 << 20)
        return;
    float *out = malloc(w->cols * sizeof *out), *scales = malloc((2 * groups + 1) * sizeof *scales);
    uint8_t *codes = malloc(w->cols);
    for (uint32_t row = 0; out && scales && codes && row < w->rows; row += row < 4 ? 1 : w->rows / 4) {
        w->floats(w, row, out);
        if (groups)
            w->codes_row(w, row, codes, scales, scales + groups);
    }
    w->floats(w, w->rows - 1, out);
    free(out);
    free(scales);
    free(codes);
}

static inline void touch_tensor(const ds_tensor *tensor)
{
    ds_error err;
    ds_weight w;
    volatile uint8_t last = tensor->bytes ? tensor->data[tensor->bytes - 1] : 0;
    (void)last;
    if (ds_weight_plain(&w, tensor, &err) == DS_OK)
        touch_weight(&w);
}

#endif
