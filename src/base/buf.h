/* A growable byte buffer with a stated maximum. Zero-initialise it; always NUL-terminated once used. */
#ifndef DS_BASE_BUF_H
#define DS_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *data; /* len bytes, then a NUL; NULL while empty */
    size_t len, cap;
    size_t max;  /* 0: 1 GiB */
    bool failed; /* an append did not fit or memory ran out: later appends do nothing */
} ds_buf;

/* Each returns false (and sets failed) when the bytes could not be kept. */
bool ds_buf_add(ds_buf *buf, const void *data, size_t len);
bool ds_buf_str(ds_buf *buf, const char *text);
bool ds_buf_fmt(ds_buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *ds_buf_text(const ds_buf *buf); /* "" while empty; borrowed */
void ds_buf_clear(ds_buf *buf);             /* keeps the memory; failed becomes false */
void ds_buf_release(ds_buf *buf);           /* frees and zeroes */

#endif
