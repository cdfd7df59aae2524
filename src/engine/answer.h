/* The text of an answer as its tokens come: whole characters, up to a stop text. */
#ifndef DS_ENGINE_ANSWER_H
#define DS_ENGINE_ANSWER_H

#include "engine/prompt.h"
#include "text/detok.h"
#include "text/stop.h"

typedef struct { /* zero-initialise */
    const ds_prompter *prompter;
    ds_detok detok;
    ds_stop stop;
    ds_buf piece; /* scratch */
} ds_answer;

ds_status ds_answer_init(ds_answer *a, const ds_prompter *prompter, const char *const *stop, size_t n_stop,
                         ds_error *err);
void ds_answer_release(ds_answer *a); /* of a zeroed one too */
/* Appends to out what is certain to be part of the answer. True: a stop text has ended it. Memory that
 * ran out shows in out->failed. */
bool ds_answer_feed(ds_answer *a, int32_t id, ds_buf *out);
bool ds_answer_end(ds_answer *a, ds_buf *out); /* what was held back */

#endif
