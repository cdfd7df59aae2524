/* Element and block types of tensors in files. Descriptions only: no arithmetic lives here. */
#ifndef DS_TENSOR_DTYPE_H
#define DS_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/* name, text, elements a block, bytes a block. AFFINE: MLX groups, sizes from bits and group. */
#define DS_DTYPE_MAP(X)        \
    X(F32, "F32", 1, 4)        \
    X(F16, "F16", 1, 2)        \
    X(BF16, "BF16", 1, 2)      \
    X(F64, "F64", 1, 8)        \
    X(I8, "I8", 1, 1)          \
    X(I16, "I16", 1, 2)        \
    X(I32, "I32", 1, 4)        \
    X(I64, "I64", 1, 8)        \
    X(U8, "U8", 1, 1)          \
    X(U16, "U16", 1, 2)        \
    X(U32, "U32", 1, 4)        \
    X(U64, "U64", 1, 8)        \
    X(BOOL, "BOOL", 1, 1)      \
    X(F8_E4M3, "F8_E4M3", 1, 1) \
    X(F8_E5M2, "F8_E5M2", 1, 1) \
    X(Q4_0, "Q4_0", 32, 18)    \
    X(Q4_1, "Q4_1", 32, 20)    \
    X(Q5_0, "Q5_0", 32, 22)    \
    X(Q5_1, "Q5_1", 32, 24)    \
    X(Q8_0, "Q8_0", 32, 34)    \
    X(Q2_K, "Q2_K", 256, 84)   \
    X(Q3_K, "Q3_K", 256, 110)  \
    X(Q4_K, "Q4_K", 256, 144)  \
    X(Q5_K, "Q5_K", 256, 176)  \
    X(Q6_K, "Q6_K", 256, 210)  \
    X(IQ4_NL, "IQ4_NL", 32, 18) \
    X(IQ4_XS, "IQ4_XS", 256, 136) \
    X(MXFP4, "MXFP4", 32, 17)  \
    X(TQ1_0, "TQ1_0", 256, 54) \
    X(TQ2_0, "TQ2_0", 256, 66) \
    X(AFFINE, "affine", 0, 0)

typedef enum {
#define X(name, text, elems, bytes) DS_##name,
    DS_DTYPE_MAP(X)
#undef X
    DS_DTYPE_COUNT
} ds_dtype;

typedef struct {
    const char *name;
    uint32_t elems, bytes; /* a block */
} ds_dtype_info;

const ds_dtype_info *ds_dtype_get(ds_dtype type); /* static storage */

#endif
