/* The x86 variants of the row kernels. */
#ifndef DS_BACKEND_CPU_X86_ROWS_H
#define DS_BACKEND_CPU_X86_ROWS_H

#include "backend/cpu/kernels.h"

ds_rms_fn ds_rms_avx2;
ds_swiglu_fn ds_swiglu_avx2, ds_swiglu_avx512;
ds_turn_fn ds_turn_avx2;
ds_argmax_fn ds_argmax_avx2;

#endif
