#include "tensor/dtype.h"

const ds_dtype_info *ds_dtype_get(ds_dtype type)
{
    static const ds_dtype_info infos[DS_DTYPE_COUNT] = {
#define X(name, text, elems, bytes) {text, elems, bytes},
        DS_DTYPE_MAP(X)
#undef X
    };
    return &infos[type];
}
