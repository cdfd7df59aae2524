/* The settings of a DSpark drafter in DeepSpec layout (qwen3 body). Internal to draft/. */
#ifndef DS_DRAFT_DSPARK_CONFIG_H
#define DS_DRAFT_DSPARK_CONFIG_H

#include "draft/kind.h"

/* How the previous token's embedding e = w1[prev] corrects a slot's logits, by w2 times: */
typedef enum {
    DS_MARKOV_NONE,
    DS_MARKOV_VANILLA, /* e */
    DS_MARKOV_GATED,   /* sigmoid(gate [h; e]) * e */
    DS_MARKOV_RNN, /* tanh(o) of (g, c, o) = joint [s; e; h]; then s = g s + (1 - g) tanh(c), g a sigmoid */
} ds_markov;

typedef struct {
    int hidden, vocab, layers, intermediate, heads, kv_heads, head_dim;
    int vocab_out; /* of the head: vocab unless reduced */
    bool reduced;  /* the head has its own, smaller vocabulary and a table d2t */
    int block, logits_start;
    int32_t mask;
    int n_taps, taps[DS_MAX_TAPS];
    float eps, softcap; /* softcap 0: none */
    double rope_theta;
    bool interleaved;
    bool bias; /* of the attention's projections */
    ds_markov markov;
    int rank;
    bool confidence, confidence_markov;
    int n_temperatures; /* 0, or one a predicting slot */
    float temperatures[DS_MAX_DRAFT];
    bool quantized; /* the file holds MLX codes: what is not quantised in it is meant to stay so */
} ds_dspark_config;

bool ds_dspark_recognise(const json_t *config);
/* Refuses, by name, traits that change the arithmetic and are not implemented. */
ds_status ds_dspark_config_read(ds_dspark_config *c, const json_t *config, const char *where, ds_error *err);

#endif
