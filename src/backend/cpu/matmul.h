/* What the implementations of matmul.c's table share. */
#ifndef DS_BACKEND_CPU_MATMUL_H
#define DS_BACKEND_CPU_MATMUL_H

#include "backend/cpu/kernels.h"

/* Blocks whose largest magnitude is smaller are quantised to zeros (127 / max would overflow), as are
 * blocks with infinities or NaN, whose scale carries the infinity or NaN on. */
#define DS_QUANT_LEAST 0x1p-100f

ds_qmm_fn ds_qmm_c, ds_qmm_avx2, ds_qmm_avx512;
ds_fmm_fn ds_fmm_c, ds_fmm_avx2, ds_fmm_avx512;
ds_quant_fn ds_quant_c, ds_quant_avx2, ds_quant_avx512;

#endif
