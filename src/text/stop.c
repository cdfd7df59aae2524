#include "text/stop.h"

#include <stdlib.h>
#include <string.h>

ds_status ds_stop_init(ds_stop *stop, const char *const *strings, size_t count, ds_error *err)
{
    *stop = (ds_stop){0};
    if (!count)
        return DS_OK;
    stop->strings = calloc(count, sizeof *stop->strings);
    for (size_t i = 0; stop->strings && i < count; i++) {
        if (!*strings[i])
            continue;
        char *copy = strdup(strings[i]);
        if (!copy) {
            ds_stop_release(stop);
            break;
        }
        stop->strings[stop->count++] = (struct ds_stop_string){copy, strlen(copy)};
    }
    return stop->strings ? DS_OK : ds_fail(err, DS_NO_MEMORY, "out of memory for %zu stop strings", count);
}

void ds_stop_release(ds_stop *stop)
{
    for (size_t i = 0; i < stop->count; i++)
        free(stop->strings[i].text);
    free(stop->strings);
    ds_buf_release(&stop->held);
    *stop = (ds_stop){0};
}

enum { NOTHING, MAYBE, MATCH };

/* What the text p[0 .. n) is to the stop strings when it has to start with one of them. */
static int compare(ds_stop *stop, const char *p, size_t n)
{
    int best = NOTHING;
    for (size_t i = 0; i < stop->count; i++) {
        const struct ds_stop_string *s = &stop->strings[i];
        size_t same = n < s->len ? n : s->len;
        if (memcmp(p, s->text, same))
            continue;
        if (same == s->len) {
            stop->hit = (int)i;
            return MATCH;
        }
        best = MAYBE;
    }
    return best;
}

/* Lets go of the held text up to the first place that is, or (unless this is the end) may become, a
 * match. */
static bool advance(ds_stop *stop, bool end, ds_buf *out)
{
    const char *text = ds_buf_text(&stop->held);
    size_t at = 0, len = stop->held.len;
    int what = NOTHING;
    for (; at < len; at++) {
        what = compare(stop, text + at, len - at);
        if (what == MATCH || (what == MAYBE && !end))
            break;
    }
    ds_buf_add(out, text, at);
    stop->released += at;
    if (what == MATCH && at < len) {
        ds_buf_clear(&stop->held);
        return true;
    }
    memmove(stop->held.data, text + at, len - at); /* never NULL: callers added to it or it holds some */
    stop->held.len = len - at;
    stop->held.data[stop->held.len] = '\0';
    return false;
}

bool ds_stop_feed(ds_stop *stop, const char *text, size_t len, ds_buf *out)
{
    if (!len)
        return false;
    if (!ds_buf_add(&stop->held, text, len)) {
        out->failed = true;
        return false;
    }
    return advance(stop, false, out);
}

bool ds_stop_end(ds_stop *stop, ds_buf *out)
{
    return stop->held.len ? advance(stop, true, out) : false;
}
