/* Stop strings in a stream of text that tokens and rounds cut anywhere. The leftmost match of all
 * strings in the whole text wins, and the text before it is let through; the answer does not depend on
 * the cuts. Only what may still become a match is held back. Strings are bytes. */
#ifndef DS_TEXT_STOP_H
#define DS_TEXT_STOP_H

#include "base/buf.h"
#include "base/error.h"

typedef struct { /* zeroed: no stop strings, everything passes */
    struct ds_stop_string {
        char *text;
        size_t len;
    } * strings;
    size_t count;
    ds_buf held;
    size_t released; /* bytes let through so far; after a match: where it begins in the whole text */
    int hit;         /* which string matched; meaningful after a match */
} ds_stop;

/* Copies the strings; empty ones are ignored, so that hit counts only the others. */
ds_status ds_stop_init(ds_stop *stop, const char *const *strings, size_t count, ds_error *err);
/* Appends to out what is safe. True: a string matched; feed no more. A buffer that is full shows in
 * out->failed. */
bool ds_stop_feed(ds_stop *stop, const char *text, size_t len, ds_buf *out);
/* No more text: lets the rest through, up to a match that only waited for a longer one before it. */
bool ds_stop_end(ds_stop *stop, ds_buf *out);
void ds_stop_release(ds_stop *stop);

#endif
