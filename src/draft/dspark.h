/* A DSpark drafter: its weights on the backend and the scratch of one call. Internal to draft/.
 *
 * A small transformer reads a block [pending, mask, mask, ...] at positions n, n+1, ... All slots see
 * the whole block and the context: rows fused from the target's tapped rows, from which every layer
 * makes keys and values once. The head's logits of a slot are then corrected by the token before it. */
#ifndef DS_DRAFT_DSPARK_H
#define DS_DRAFT_DSPARK_H

#include "draft/dspark_config.h"

typedef struct {
    ds_matrix *q, *k, *v, *o, *gate, *up, *down;
    float *input_norm, *post_norm, *q_norm, *k_norm;
    float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL: none */
} ds_dspark_layer;

typedef struct {
    ds_drafter base;
    ds_dspark_config c;
    ds_model *target;
    ds_backend *be;
    bool narrow_head;
    int bits; /* unquantised matrices become codes of so many bits; 0: they stay */

    ds_matrix *fc;
    float *hidden_norm, *norm;
    ds_dspark_layer *layers;
    const ds_table *embedding; /* own or the target's */
    float embed_scale;
    const ds_matrix *head; /* own, the target's, or a 4-bit copy of the target's */
    const ds_matrix *exact_head; /* the target's, where head is a copy; else NULL */
    ds_table *w1;          /* [vocab][rank], by target id; NULL: no Markov head */
    ds_weight w1_weight;   /* the same for the host: the confidence head reads rows of it */
    ds_matrix *w2;         /* [vocab_out][rank] */
    ds_matrix *mix;        /* gated: gate_proj; rnn: joint_proj */
    float *mix_bias;
    float *confidence; /* host: [hidden (+ rank)] and the bias; NULL: none */
    int confidence_width;
    int32_t *map; /* host, and the same on the backend */
    int32_t *map_on_backend;
    ds_rope rope;
    double *freq;
    ds_weight sources[2]; /* of the tables that are quantised on the fly: embedding, w1 */

    /* what close gives back */
    ds_table *tables[2];
    int n_tables;
    ds_matrix **matrices;
    int n_matrices;
    void **memory;
    int n_memory;

    /* scratch: context rows (DS_MAX_ROWS) */
    float *raw, *fused, *ctx_k, *ctx_v, *ctx_angles;
    /* block rows */
    int32_t *block_ids; /* [block] */
    float *h, *q, *k, *v, *attn, *gate, *up, *angles;
    float *logits; /* [max_draft][vocab_out] */
    float *cat;    /* input of the Markov head: [e], [h; e] or [s; e; h] */
    float *mixed;  /* [3 rank] */
    /* what comes back to the host in one piece: [max_draft][hidden], then max_draft + 1 ids */
    float *result;
    size_t result_bytes;
    int32_t *ids; /* in result: pending, then the drafted tokens */
    /* host */
    int32_t *host_block;
    float *host_result, *host_logits, *host_row;

    /* whose rows the scratch holds, for inspection */
    const ds_draft_state *last_append, *last_propose;
    int last_rows, last_cap;
} ds_dspark;

/* Checks the file against its config and the target, and puts its weights on the target's backend.
 * *d is zeroed but for c, target, bits and base.info; on failure the caller closes it. */
ds_status ds_dspark_load(ds_dspark *d, const ds_checkpoint *ckpt, ds_error *err);
void ds_dspark_unload(ds_dspark *d); /* takes every half-loaded state */
/* Backend memory that unload frees; NULL with err filled when there is none. */
void *ds_dspark_alloc(ds_dspark *d, size_t bytes, ds_error *err);

#endif
