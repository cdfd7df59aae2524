#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUF_FIRST = 64 };
static const size_t buf_max = (size_t)1 << 30;

/* Makes room for len more bytes and the NUL. */
static bool grow(ds_buf *buf, size_t len)
{
    size_t max = buf->max ? buf->max : buf_max;
    if (buf->failed || buf->len > max || len > max - buf->len) {
        buf->failed = true;
        return false;
    }
    size_t need = buf->len + len + 1;
    if (need <= buf->cap)
        return true;
    size_t cap = buf->cap ? buf->cap : BUF_FIRST;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    char *data = realloc(buf->data, cap);
    if (!data) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->cap = cap;
    return true;
}

bool ds_buf_add(ds_buf *buf, const void *data, size_t len)
{
    if (!grow(buf, len))
        return false;
    if (len)
        memcpy(buf->data + buf->len, data, len);
    buf->len += len;
    buf->data[buf->len] = '\0';
    return true;
}

bool ds_buf_str(ds_buf *buf, const char *text)
{
    return ds_buf_add(buf, text, strlen(text));
}

bool ds_buf_fmt(ds_buf *buf, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    bool ok = len >= 0 && grow(buf, (size_t)len);
    if (ok) {
        vsnprintf(buf->data + buf->len, (size_t)len + 1, fmt, again);
        buf->len += (size_t)len;
    } else {
        buf->failed = true;
    }
    va_end(again);
    return ok;
}

const char *ds_buf_text(const ds_buf *buf)
{
    return buf->data ? buf->data : "";
}

void ds_buf_clear(ds_buf *buf)
{
    buf->len = 0;
    buf->failed = false;
    if (buf->data)
        buf->data[0] = '\0';
}

void ds_buf_release(ds_buf *buf)
{
    free(buf->data);
    *buf = (ds_buf){0};
}
