/* Inside of a generation. Internal to decode/.
 *
 * Between rounds: the target state and the draft state hold prompt and all generated tokens but the
 * last, which is chosen but not yet fed ("pending"). */
#ifndef DS_DECODE_GEN_H
#define DS_DECODE_GEN_H

#include "decode/decode.h"

struct ds_gen {
    ds_model *model;
    ds_backend *be;
    ds_drafter *drafter; /* NULL: plain decoding */
    ds_state *state;
    ds_draft_state *draft_state;
    ds_decode_opts opts; /* eos is our own */
    int32_t *prompt;
    int n_prompt, fed;
    int32_t *ids; /* [limit] */
    int n_ids, limit;
    ds_round *rounds; /* [limit] */
    int n_rounds;
    ds_finish finish;

    ds_draft draft; /* of the round under way */
    ds_dist p;      /* scratch, one row at a time */
    ds_dist *q;     /* [DS_MAX_DRAFT], rejection only: what each draft was drawn from, target ids */
    /* Used by the first gen of a round for all of them: */
    int32_t *chosen; /* backend memory, [DS_MAX_ROWS] */
    float *host;     /* logits, where the backend's memory cannot be read */
    size_t host_cap;
};

/* Streams of uniform numbers at one position (coupled noise has its own). */
enum { DS_DRAW_DRAFT = 1, DS_DRAW_ACCEPT, DS_DRAW_TOKEN };

static inline bool ds_gen_greedy(const ds_gen *gen)
{
    return gen->opts.sampling.temperature == 0;
}

/* Position of the next token to be chosen: index in prompt + generated. */
static inline int64_t ds_gen_next_pos(const ds_gen *gen)
{
    return (int64_t)gen->n_prompt + gen->n_ids;
}

/* Fills gen->draft with at most cap (>= 1) tokens, cut by confidence. */
ds_status ds_gen_draft(ds_gen *gen, int cap, ds_error *err);

/* What the target's rows say about gen->draft: the first `accepted` stand, then comes `next`. */
typedef struct {
    int accepted;
    int32_t next;
} ds_verdict;
/* best: argmax of the draft.n + 1 rows (greedy only); logits: the rows in host memory (sampled only). */
ds_status ds_gen_judge(ds_gen *gen, const int32_t *best, const float *logits, ds_verdict *out, ds_error *err);

#endif
