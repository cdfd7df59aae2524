/* How a function fails: it returns a status and leaves one sentence in the caller's ds_error. */
#ifndef DS_BASE_ERROR_H
#define DS_BASE_ERROR_H

#include <dspark/status.h>

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* Fills *err (NULL is fine) and returns status, so that a caller can `return ds_fail(...)`. */
ds_status ds_fail(ds_error *err, ds_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* "NAME: meaning" of a status, static storage. */
const char *ds_status_text(ds_status status);

#endif
