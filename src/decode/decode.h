/* Decoding: sampling, acceptance of drafts, and rounds over a batch of sequences.
 *
 * Lossless: with the coupled rule, token ids depend on the target, the prompt, the sampling settings
 * and the seed only: never on the drafter, the draft length or the batch. Temperature 0 is argmax. */
#ifndef DS_DECODE_DECODE_H
#define DS_DECODE_DECODE_H

#include "decode/sampler.h"
#include "draft/draft.h"

typedef enum { DS_ACCEPT_COUPLED, DS_ACCEPT_REJECTION } ds_accept_rule;
typedef enum { DS_SOURCE_PLAIN, DS_SOURCE_DRAFTER, DS_SOURCE_LOOKUP } ds_source;

typedef struct {
    ds_sampling sampling;
    ds_accept_rule accept;
    int max_new;                /* tokens to generate at most; >= 1 */
    int max_draft;              /* 0: the drafter's full block; > 0: at most this; < 0: plain decoding */
    float confidence_threshold; /* 0: off; drafts end where the running product falls below it */
    const int32_t *eos;         /* copied */
    int n_eos;
    bool ignore_eos;
} ds_decode_opts;

typedef struct {
    int drafted, accepted, committed;
    ds_source source;
} ds_round;

/* One sequence being generated. */
typedef struct ds_gen ds_gen;

typedef enum { DS_FINISH_NONE, DS_FINISH_STOP, DS_FINISH_LENGTH, DS_FINISH_CANCELLED } ds_finish;

/* drafter NULL: plain decoding. Capacity is min(prompt + max_new, the model's context, ctx): a prompt
 * that leaves no room for one token is DS_INVALID with both numbers. ids are copied. */
ds_status ds_gen_open(ds_gen **out, ds_model *model, ds_drafter *drafter, const int32_t *prompt,
                      int n_prompt, int ctx, const ds_decode_opts *opts, ds_error *err);
void ds_gen_close(ds_gen *gen);

/* Feeds the next piece of the prompt (at most DS_MAX_ROWS tokens); *done true once the first token
 * has been chosen (it is then in the ids). */
ds_status ds_gen_prefill(ds_gen *gen, bool *done, ds_error *err);
/* One round for every gen of the list (all prefilled, none finished, all of one model): drafts, one
 * verify forward for all, acceptance, rollback. Each gains 1 .. cap + 1 ids. */
ds_status ds_gen_round(ds_gen *const *gens, int n, ds_error *err);

/* All generated ids so far, the first chosen at prefill; an EOS token is included and ends them.
 * Never more than max_new. Borrowed until the next round. */
const int32_t *ds_gen_ids(const ds_gen *gen, int *n);
ds_finish ds_gen_finish(const ds_gen *gen); /* STOP: EOS; LENGTH: max_new or the context's end */
const ds_round *ds_gen_rounds(const ds_gen *gen, int *n); /* one an executed round */
int ds_gen_prefilled(const ds_gen *gen);    /* prompt tokens fed so far */

#endif
