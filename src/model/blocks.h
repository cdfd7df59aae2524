/* One forward under way, and the blocks that a family's layer is made of. Internal to model/.
 *
 * A block reads the residual stream (x, `rows` rows) and adds to it. */
#ifndef DS_MODEL_BLOCKS_H
#define DS_MODEL_BLOCKS_H

#include "model/internal.h"

struct ds_pass {
    ds_model *model;
    ds_backend *be;
    int rows; /* of x now: all rows of the call, in the end those that need logits */
    float *x; /* [rows][hidden] residual stream */
    float *q, *k, *v, *attended, *gate, *up;
    float *angles;
    ds_seq seqs[DS_MAX_SPANS]; /* of the rows; window is set per layer */
    int n_seqs;

    /* Rows that need logits: rows[i] of the call. Behind the last layer's keys and values nothing but
     * these is needed, unless that layer is tapped. */
    int few;
    int32_t few_rows[DS_MAX_ROWS];
    ds_seq few_seqs[DS_MAX_SPANS];
    int n_few_seqs;
    float *x_few, *q_few;
    bool narrowed; /* rows, x, q and seqs are those of the few */
    bool narrow_in_last;
};

/* x += o(attention(heads(q k v of rms(x)))), storing keys and values of the layer. In the last layer it
 * narrows the pass. */
void ds_block_attention(ds_pass *pass, int layer);
/* x += down(silu(gate(rms(x))) * up(rms(x))) */
void ds_block_mlp(ds_pass *pass, int layer);
/* Keeps only the rows that need logits. with_q: the queries too. Once; then it does nothing. */
void ds_pass_narrow(ds_pass *pass, bool with_q);

#endif
