/* Drafters: they propose tokens that the target then verifies. A drafter sees its target only as
 * tapped rows, and where its checkpoint has no embedding or head of its own, through the target's.
 *
 * Proposals never change output, only its speed. */
#ifndef DS_DRAFT_DRAFT_H
#define DS_DRAFT_DRAFT_H

#include "model/model.h"

enum { DS_MAX_DRAFT = 32 };

typedef struct ds_drafter ds_drafter;
typedef struct ds_draft_state ds_draft_state; /* a drafter's context of one sequence */

typedef struct {
    const char *kind;  /* "dspark" */
    int layers, hidden;
    int block, max_draft, logits_start; /* max_draft = block - logits_start */
    int vocab_out;     /* Vd: logits a slot; equal to the target's vocabulary unless reduced */
    bool has_confidence;
    int n_taps;
    int taps[DS_MAX_TAPS];
    int window;        /* context rows a block sees; 0: all */
    size_t weight_bytes;
    bool own_embedding, own_head;
} ds_drafter_info;

typedef struct {
    int bits;   /* 4 or 8: quantise unquantised matrices at load (group 64); 0: keep them (default 4:
                 * set by ds_drafter_defaults) */
    int window; /* context rows, default 4096; 0: all */
    bool narrow_head; /* read a target's 8-bit head through a 4-bit copy (default true; not when exact) */
} ds_drafter_opts;
void ds_drafter_defaults(ds_drafter_opts *opts);

/* Opens a drafter folder for a target and sets the target's taps. Refusals (DS_BAD_FILE: the file;
 * DS_INVALID: a drafter of another target) name the tensors, fields or sizes. The drafter's
 * checkpoint may be closed after the drafter is. */
ds_status ds_drafter_open(ds_drafter **out, const ds_checkpoint *ckpt, ds_model *target,
                          const ds_drafter_opts *opts, ds_error *err);
void ds_drafter_close(ds_drafter *d);
const ds_drafter_info *ds_drafter_get(const ds_drafter *d);

ds_status ds_draft_state_open(ds_draft_state **out, ds_drafter *d, int capacity, ds_error *err);
void ds_draft_state_close(ds_draft_state *s);
int ds_draft_state_length(const ds_draft_state *s); /* equals the target state's committed rows */
/* Appends n context rows made from tap rows (backend memory, [n][taps * hidden], as in ds_forward):
 * K/V of every layer, at positions continuing its length. n <= DS_MAX_ROWS. */
ds_status ds_draft_append(ds_draft_state *s, const float *taps, int n, ds_error *err);
void ds_draft_rollback(ds_draft_state *s, int length);

/* Chooses the token of one slot. logits: host, [vocab_out], Markov term included. Returns a *draft*
 * index in [0, vocab_out); the drafter maps it to a target id (offset table). */
typedef int (*ds_draft_pick)(void *user, int slot, const float *logits, int n);

typedef struct {
    int n;                            /* drafted tokens, <= cap */
    int32_t ids[DS_MAX_DRAFT];        /* target ids */
    float confidence[DS_MAX_DRAFT];   /* probability that a slot is accepted given those before; 1 without a head */
} ds_draft;

/* Drafts up to cap (1..max_draft) tokens after `pending` (a target id, at position length). pick NULL:
 * greedy, on the device. cap is clipped to max_draft. map (may be NULL) receives the offset table
 * target_id = draft_id + map[draft_id] for pick's use: see ds_drafter_map. */
ds_status ds_draft_propose(ds_draft_state *s, int32_t pending, int cap, ds_draft_pick pick, void *user,
                           ds_draft *out, ds_error *err);
/* Offset of each draft index to its target id, [vocab_out]; NULL: the identity. Borrowed. */
const int32_t *ds_drafter_map(const ds_drafter *d);

/* For tests against reference vectors: after a propose, host copies of the last block.
 * which: "hidden" [cap][hidden], "base_logits" and "step_logits" [cap][vocab_out], "fused"
 * (context rows of the last append, [n][hidden]). Returns the number of floats, 0: unknown. */
size_t ds_draft_inspect(ds_draft_state *s, const char *which, float *out, size_t max);

#endif
