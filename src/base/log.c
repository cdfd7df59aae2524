#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ds_say(const ds_log *log, ds_log_level level, const char *fmt, ...)
{
    if (!log || !log->fn)
        return;
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    line[strcspn(line, "\n")] = '\0'; /* one call, one line */
    log->fn(log->user, level, line);
}
