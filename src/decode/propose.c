/* Drafting for one generation: which token a sampled slot takes, and where the draft ends. */
#include "decode/gen.h"

/* A draft may be anything without harm to the output, so where its logits cannot be sampled from
 * (not finite, no memory) their largest does. */
static int pick_coupled(void *user, int slot, const float *logits, int n)
{
    ds_gen *gen = user;
    int index = ds_sample_coupled(&gen->p, logits, n, &gen->opts.sampling, ds_gen_next_pos(gen) + slot,
                                  ds_drafter_map(gen->drafter), NULL);
    return index < 0 ? ds_argmax(logits, n) : index;
}

/* Moves q from draft ids to target ids. False where those do not ascend as they must. */
static bool to_target(ds_dist *q, const int32_t *map)
{
    bool ascends = true;
    for (int i = 0; map && i < q->n; i++) {
        q->ids[i] += map[q->ids[i]];
        ascends = ascends && (i == 0 || q->ids[i] > q->ids[i - 1]);
    }
    return ascends;
}

static int pick_random(void *user, int slot, const float *logits, int n)
{
    ds_gen *gen = user;
    ds_dist *q = &gen->q[slot];
    const int32_t *map = ds_drafter_map(gen->drafter);
    if (ds_dist_make(q, logits, n, &gen->opts.sampling, NULL)) {
        q->n = 0; /* see ds_gen_draft */
        return ds_argmax(logits, n);
    }
    double u = ds_uniform(gen->opts.sampling.seed, ds_gen_next_pos(gen) + slot, DS_DRAW_DRAFT);
    int index = ds_dist_sample(q, u);
    if (!to_target(q, map))
        q->n = 0;
    return index;
}

ds_status ds_gen_draft(ds_gen *gen, int cap, ds_error *err)
{
    ds_draft *draft = &gen->draft;
    int32_t pending = gen->ids[gen->n_ids - 1];
    ds_draft_pick pick = ds_gen_greedy(gen) ? NULL : gen->q ? pick_random : pick_coupled;
    ds_status status = ds_draft_propose(gen->draft_state, pending, cap, pick, gen, draft, err);
    if (status)
        return status;
    if (draft->n > cap)
        draft->n = cap;
    if (gen->opts.confidence_threshold > 0) {
        /* Whether slot j stays depends on what came before it only, as rejection sampling needs. */
        double survives = 1;
        int keep = 0;
        for (; keep < draft->n; keep++) {
            survives *= (double)draft->confidence[keep];
            if (!(survives >= (double)gen->opts.confidence_threshold))
                break;
        }
        draft->n = keep > 0 ? keep : draft->n < 1 ? draft->n : 1;
    }
    return DS_OK;
}
