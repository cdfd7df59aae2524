/* What the files of model/ share: the model, its weights and its scratch memory. */
#ifndef DS_MODEL_INTERNAL_H
#define DS_MODEL_INTERNAL_H

#include "model/config.h"
#include "model/model.h"

/* A linear map: a matrix and, where the family has one, a bias (backend memory). */
typedef struct {
    ds_matrix *matrix;
    float *bias;
} ds_lin;

typedef struct {
    float *input_norm, *post_norm, *q_norm, *k_norm; /* backend memory; the last two NULL without qk_norm */
    ds_lin q, k, v, o, gate, up, down;
} ds_layer;

/* Backend memory that grows when a larger forward comes, and never shrinks. */
typedef struct {
    void *mem;
    size_t bytes;
} ds_scratch;

struct ds_model {
    ds_backend *be;
    ds_config config;
    ds_model_info info;
    ds_rope rope;

    ds_table *embedding;
    ds_matrix *head;
    ds_weight head_weight;
    float *norm;
    ds_layer *layers;
    float *vectors; /* backend memory of all norms and biases */
    int n_taps, taps[DS_MAX_TAPS];

    int32_t host_ids[DS_MAX_ROWS]; /* of the last forward: an upload may read them later */
    ds_scratch ids, x, q, k, v, attended, gate, up, angles; /* a row each of the forward */
    ds_scratch x_few, q_few, logits, best, best_logit;      /* a row each that needs logits */
    ds_scratch tapped;
};

struct ds_state {
    ds_model *model;
    ds_kv *kv;
    int capacity, length;
};

/* weights.c. model->config is set; takes in every tensor that the family names. What is there of a
 * failed load is left to ds_weights_close. */
ds_status ds_weights_open(ds_model *model, const ds_checkpoint *ckpt, const ds_model_opts *opts,
                          ds_error *err);
void ds_weights_close(ds_model *model);

#endif
