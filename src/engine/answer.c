#include "engine/answer.h"

ds_status ds_answer_init(ds_answer *a, const ds_prompter *prompter, const char *const *stop, size_t n_stop,
                         ds_error *err)
{
    a->prompter = prompter;
    ds_detok_init(&a->detok, ds_prompter_tokenizer(prompter), true);
    return ds_stop_init(&a->stop, stop, n_stop, err);
}

void ds_answer_release(ds_answer *a)
{
    ds_stop_release(&a->stop);
    ds_buf_release(&a->piece);
}

static bool pass(ds_answer *a, bool whole, ds_buf *out)
{
    bool hit = ds_stop_feed(&a->stop, ds_buf_text(&a->piece), a->piece.len, out);
    out->failed |= !whole;
    ds_buf_clear(&a->piece);
    return hit;
}

bool ds_answer_feed(ds_answer *a, int32_t id, ds_buf *out)
{
    if (ds_prompter_is_eos(a->prompter, id)) /* never part of the text, ends it or not */
        return false;
    bool whole = ds_detok_feed(&a->detok, &id, 1, &a->piece);
    return pass(a, whole, out);
}

bool ds_answer_end(ds_answer *a, ds_buf *out)
{
    bool whole = ds_detok_end(&a->detok, &a->piece);
    return pass(a, whole, out) || ds_stop_end(&a->stop, out);
}
