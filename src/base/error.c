#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

ds_status ds_fail(ds_error *err, ds_status status, const char *fmt, ...)
{
    if (err) {
        va_list args;
        va_start(args, fmt);
        err->status = status;
        vsnprintf(err->text, sizeof err->text, fmt, args);
        va_end(args);
    }
    return status;
}

const char *ds_status_text(ds_status status)
{
    static const char *const texts[] = {
#define X(name, http, meaning) #name ": " meaning,
        DS_STATUS_MAP(X)
#undef X
    };
    return (size_t)status < COUNT(texts) ? texts[status] : "INTERNAL: no such status";
}
