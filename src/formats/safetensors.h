/* One safetensors file: 8 bytes of header length, a JSON header, then the tensors' bytes. */
#ifndef DS_FORMATS_SAFETENSORS_H
#define DS_FORMATS_SAFETENSORS_H

#include "base/map.h"
#include "formats/checkpoint.h"

typedef struct {
    ds_map map;     /* empty where the bytes are the caller's */
    json_t *header; /* owns the names */
    ds_tensor *tensors;
    size_t count;
} ds_safetensors;

/* On failure *out is NULL. Tensors point into the mapping; dimensions from the fourth on are folded
 * into dims[3]. `__metadata__` is skipped. */
ds_status ds_safetensors_open(ds_safetensors **out, const char *path, ds_error *err);
/* The same over bytes that outlive *out. where: file name for messages. */
ds_status ds_safetensors_parse(ds_safetensors **out, const uint8_t *data, size_t size, const char *where,
                               ds_error *err);
void ds_safetensors_close(ds_safetensors *st); /* NULL is fine */

#endif
