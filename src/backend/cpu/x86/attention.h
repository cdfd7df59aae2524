/* The x86 variants of the attention kernels. */
#ifndef DS_BACKEND_CPU_X86_ATTENTION_H
#define DS_BACKEND_CPU_X86_ATTENTION_H

#include "backend/cpu/kernels.h"

ds_chunk_fn ds_chunk_avx2, ds_chunk_avx512;
ds_merge_fn ds_merge_avx2;
ds_store_fn ds_store_avx2;

#endif
