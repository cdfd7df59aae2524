/* Repacks a weight into the kernels' tiles. */
#ifndef DS_BACKEND_CPU_PACK_H
#define DS_BACKEND_CPU_PACK_H

#include "backend/cpu/kernels.h"
#include "base/error.h"
#include "tensor/weight.h"

/* Raised whenever the bytes of a repacked matrix change: by pack.c, or by the decoders of formats/ that it
 * reads (requantised and narrowed weights too). Files of repacked matrices of another layout are not used. */
enum { DS_PACK_LAYOUT = 1 };

/* Describe first (fills all but data; w->codes.bits != 0 and cols % 32 == 0 for the integer form),
 * allocate tiles * tile_bytes at 64-byte alignment, zeroed, then fill tiles [tile0, tile1), which any
 * thread may do. scratch: ds_pack_scratch(w) bytes a thread. */
void ds_qmat_describe(ds_qmat *m, const ds_weight *w);
void ds_qmat_fill(const ds_qmat *m, uint8_t *data, const ds_weight *w, int tile0, int tile1, void *scratch);
/* type: DS_F32 (exact; any weight), or DS_F16 / DS_BF16 where w has that type. */
void ds_fmat_describe(ds_fmat *m, const ds_weight *w, ds_dtype type);
void ds_fmat_fill(const ds_fmat *m, uint8_t *data, const ds_weight *w, int tile0, int tile1, void *scratch);
size_t ds_pack_scratch(const ds_weight *w);

#endif
