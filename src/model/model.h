/* Target models: a family's description, its weights on a backend, and sequences running on it.
 *
 * Plain decoding, verification of a draft, prefill and batches are one call (ds_model_forward) with
 * different row counts: rows are computed by row-exact operations, so that a token's logits have the
 * same bits however it is computed.
 * Threads: a model and everything opened from it belong to one thread at a time. */
#ifndef DS_MODEL_MODEL_H
#define DS_MODEL_MODEL_H

#include "backend/backend.h"
#include "formats/checkpoint.h"

enum {
    DS_MAX_ROWS = 512, /* of one forward: longer prompts are fed in pieces */
    DS_MAX_SPANS = 64,
    DS_MAX_TAPS = 16,
};

typedef struct ds_model ds_model;
typedef struct ds_state ds_state;       /* rows of one sequence */
typedef struct ds_snapshot ds_snapshot; /* rows of a state, kept apart in host memory */

typedef struct {
    const char *family; /* "llama", "qwen3" */
    int layers, hidden, heads, kv_heads, head_dim, intermediate;
    int vocab;       /* rows of the output projection: logits per row */
    int context_max; /* max_position_embeddings */
    float embed_scale;
    bool tied;
    int n_eos;
    int32_t eos[16]; /* of config.json and generation_config.json, or GGUF metadata */
    size_t weight_bytes;   /* in the backend's memory */
    int integer_matrices, float_matrices; /* which path the matrices took */
    const char *slow_reason; /* NULL, or why matrices that are quantised run as floats (static text) */
} ds_model_info;

typedef struct {
    void (*progress)(void *user, double done); /* 0..1 while loading; may be NULL */
    void *user;
} ds_model_opts;

/* Refuses unknown model types, missing or misshapen tensors (all named). The checkpoint must stay open
 * while the model is. *out is NULL on failure. */
ds_status ds_model_open(ds_model **out, const ds_checkpoint *ckpt, ds_backend *be,
                        const ds_model_opts *opts, ds_error *err);
void ds_model_close(ds_model *model);
const ds_model_info *ds_model_get(const ds_model *model);
ds_backend *ds_model_backend(const ds_model *model);

/* Layers whose output (residual stream, before the final norm) ds_model_forward also returns:
 * strictly increasing, in [-1, layers); -1 is the embedding output. n 0: none. */
ds_status ds_model_set_taps(ds_model *model, const int *layers, int n, ds_error *err);
int ds_model_taps(const ds_model *model); /* how many */

/* What a drafter may reuse: the embedding rows (multiply by info.embed_scale) and the raw output
 * projection. Borrowed. */
const ds_table *ds_model_embedding(const ds_model *model);
const ds_matrix *ds_model_head(const ds_model *model);
/* The head as its file has it, in the checkpoint's mapping. */
const ds_weight *ds_model_head_weight(const ds_model *model);

/* --- sequences --- */

/* capacity: most rows it will ever hold. */
ds_status ds_state_open(ds_state **out, ds_model *model, int capacity, ds_error *err);
void ds_state_close(ds_state *state);
int ds_state_length(const ds_state *state); /* rows that are committed */
/* Forgets rows from `length` on; 0 <= length <= ds_state_length. Exact: what follows is as if they had
 * never been fed. */
void ds_state_rollback(ds_state *state, int length);
/* Copies rows [0, length) out; restore puts them into any state of the same model (its rows are
 * replaced). */
ds_status ds_state_snapshot(ds_snapshot **out, const ds_state *state, int length, ds_error *err);
ds_status ds_state_restore(ds_state *state, const ds_snapshot *snap, ds_error *err);
int ds_snapshot_length(const ds_snapshot *snap);
size_t ds_snapshot_bytes(const ds_snapshot *snap);
void ds_snapshot_close(ds_snapshot *snap);

/* --- one call for everything --- */

typedef struct {
    ds_state *state;    /* rows are appended to it at its current length */
    const int32_t *ids; /* host, [n]; ids outside the vocabulary are DS_INVALID */
    int n;              /* >= 1; all spans together at most DS_MAX_ROWS */
    int logits_from;    /* rows from this one on give logits: 0 all, n none, n - 1 the last */
    bool best_only;     /* only the likeliest token of those rows is wanted */
} ds_span;

/* Backend memory of the model, valid until the next forward. Where all spans with logit rows are best_only,
 * no logits are made: best is the lowest index of the largest, best_logit its value (NaN where all are). */
typedef struct {
    float *logits; /* [logit rows of all spans, in order][vocab]; NULL: there are none, or best is given */
    int32_t *best; /* [logit rows]; NULL: logits are given */
    float *best_logit;
    float *taps;   /* [all rows][taps * hidden], taps in layer order; NULL where none are set */
    int logit_rows, rows;
} ds_forward;

/* Appends the rows of all spans to their states and records the computation; the results are there
 * after the backend's next sync. Fails without having changed a state. A state may occur once. */
ds_status ds_model_forward(ds_model *model, const ds_span *spans, int n_spans, ds_forward *out,
                           ds_error *err);

#endif
