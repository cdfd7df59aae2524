/* What a model asks of a device: memory, a queue, and operations, as one table of functions.
 *
 * Memory   float and int32_t pointers given to operations are addresses in the backend's memory
 *          (mem_alloc); only upload / download may touch them from the host. Host structs and arrays
 *          (ds_in, ds_out, ds_seq) are copied during the call.
 * Queue    Operations are recorded and run in order; sync waits for all of them and reports what
 *          failed. Nothing is computed before sync or download, or all of it: do not rely on either.
 * Rows     Every operation treats rows independently and is row exact: the bits of a row depend
 *          neither on the other rows of the call nor on the number of threads (docs/numerics.md).
 * Threads  One thread at a time may use a backend. */
#ifndef DS_BACKEND_BACKEND_H
#define DS_BACKEND_BACKEND_H

#include "base/error.h"
#include "base/log.h"
#include "tensor/weight.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ds_backend ds_backend;
typedef struct ds_matrix ds_matrix; /* a weight matrix repacked for matmul */
typedef struct ds_table ds_table;   /* a weight matrix kept as in the file, for row lookup */
typedef struct ds_kv ds_kv;         /* keys and values of all layers of one sequence */

/* What happens to the input rows of a linear before they are multiplied. */
typedef enum {
    DS_PRE_NONE,
    DS_PRE_RMS,    /* x / sqrt(mean(x^2) + eps) * w */
    DS_PRE_SWIGLU, /* silu(x) * x2 */
} ds_pre;

typedef struct {
    ds_pre pre;
    const char *name; /* for profiles: a string literal, "qkv"; NULL: "linear" */
    const float *x; /* [rows][ld >= k] */
    int ld;
    const float *x2; /* SWIGLU: the other factor, same shape and ld */
    const float *w;  /* RMS: [k] */
    float eps;
} ds_in;

typedef struct {
    const ds_matrix *w; /* [n][k] */
    const float *bias;  /* [n] or NULL */
    float *y;           /* [rows][ld >= n] */
    int ld;
    bool add; /* y += instead of y = (the residual) */
} ds_out;

/* The rows of one sequence inside a call, and which keys they see. Row i sits at position pos0 + i;
 * it sees keys [max(begin, window ? pos0 + i + 1 - window : 0), end), where end is pos0 + i + 1 if
 * causal, else pos0 + rows (a block that sees itself whole). */
typedef struct {
    ds_kv *kv;
    int row0, rows; /* rows [row0, row0 + rows) of the call's buffers */
    int pos0;
    int begin, window;
    bool causal;
} ds_seq;

/* Angles of rotary embedding: pair i of a row at position p turns by p * freq[i]. */
typedef struct {
    int dims;           /* leading dimensions that turn; the rest pass unchanged */
    bool interleaved;   /* pairs (2i, 2i+1) instead of (i, i + dims/2) */
    const double *freq; /* host, [dims / 2], kept alive by the caller until sync */
    float scale;        /* both cos and sin are multiplied by it (yarn, longrope); normally 1 */
} ds_rope;

/* After the q/k/v projections: per-head norm (optional), rope, and storing of K and V. */
typedef struct {
    int layer;
    int heads, kv_heads, dim;
    float *q;          /* [rows][ld_q], [heads][dim] inside; normed and turned in place; NULL: none */
    const float *k, *v; /* [rows][ld_kv], [kv_heads][dim] inside */
    int ld_q, ld_kv;
    const float *q_norm, *k_norm; /* [dim] or NULL */
    float eps;
    const float *angles; /* of rope_angles, [rows][dims]; NULL: no rope */
    int rope_dims;
    bool interleaved;
    const ds_seq *seqs;
    int n_seqs;
} ds_heads;

typedef struct {
    int layer;
    int heads, kv_heads, dim;
    float scale;
    const float *q; /* [rows][ld_q] */
    float *out;     /* [rows][ld_out], [heads][dim] inside */
    int ld_q, ld_out;
    const ds_seq *seqs;
    int n_seqs;
} ds_attn;

typedef struct {
    int layers, kv_heads, dim;
    int capacity; /* rows; where they take much memory, it is committed as they are written */
} ds_kv_shape;

/* What the operations of one name took while a profile was made. */
typedef struct {
    const char *part, *name; /* of the program's own strings */
    long long calls;
    double seconds; /* the queue's time, from the end of the operation before */
    double wait;    /* of it: the first thread had nothing left to do and waited for the others */
    double bytes;   /* of weights read, where they are most of what is read; else 0 */
} ds_profile_row;

typedef enum {
    DS_EW_ADD,         /* y = a + b */
    DS_EW_SIGMOID_MUL, /* y = sigmoid(a) * b */
    DS_EW_BLEND,       /* y = sigmoid(a) * b + (1 - sigmoid(a)) * tanh(c) */
    DS_EW_TANH,        /* y = tanh(a) */
    DS_EW_SIGMOID,     /* y = sigmoid(a) */
    DS_EW_SOFTCAP,     /* y = p * tanh(a / p) */
    DS_EW_SCALE,       /* y = p * a */
} ds_ew;

/* Where repacked weights are kept between starts. */
typedef struct {
    const char *dir;   /* made where it is missing */
    const char *label; /* begins the file's name, for people: letters, digits, and . _ - are kept */
    uint64_t key[2];   /* of the source files and of everything else that decides what is repacked */
    bool read_only;    /* takes what is there, never writes */
} ds_pack_place;

typedef enum {
    DS_PACK_OFF,
    DS_PACK_USED,    /* every matrix came from the file */
    DS_PACK_WRITTEN, /* a file for later starts was written */
    DS_PACK_ABSENT,  /* there is none, and none was to be written */
    DS_PACK_IGNORED, /* there is one, but it cannot be used, and none was to be written */
    DS_PACK_FAILED,  /* none could be written */
} ds_pack_outcome;

typedef struct {
    ds_pack_outcome outcome;
    char text[1024]; /* one sentence: what happened to which file, and why */
} ds_pack_report;

struct ds_backend {
    const char *name; /* "cpu", "cuda" */
    const char *isa;  /* what doctor and --json print: "avx2", "avx512", "c" */
    int threads;
    bool exact; /* fp32 weights, activations and KV; set when opened */
    ds_log log;

    void (*close)(ds_backend *be);

    void *(*mem_alloc)(ds_backend *be, size_t bytes); /* zeroed; NULL: out of memory */
    void (*mem_free)(ds_backend *be, void *mem);      /* NULL is fine */
    void (*upload)(ds_backend *be, void *dst, const void *src, size_t bytes);     /* in order */
    ds_status (*download)(ds_backend *be, void *dst, const void *src, size_t bytes, ds_error *err);
    ds_status (*sync)(ds_backend *be, ds_error *err);
    /* Memory that the host may read after sync without copying; NULL where there is none such. */
    const void *(*peek)(ds_backend *be, const void *mem);

    /* Operations recorded from now on belong to this part of a round: a string literal. For profiles. */
    void (*part)(ds_backend *be, const char *name);
    /* Starts a new profile, or stops where `on` is false; both forget what was measured. They sync first. */
    void (*profile)(ds_backend *be, bool on);
    /* Syncs and gives up to max rows, in the order in which they were first met; the number of rows. */
    int (*profile_rows)(ds_backend *be, ds_profile_row *rows, int max);

    /* Repacks the whole weight; w's checkpoint may be closed afterwards (not so for tables). Both refuse
     * weights that are not finite (DS_BAD_FILE), except where a pack says that they were checked. */
    ds_status (*matrix_open)(ds_backend *be, ds_matrix **out, const ds_weight *w, ds_error *err);
    void (*matrix_close)(ds_backend *be, ds_matrix *m);
    size_t (*matrix_bytes)(const ds_matrix *m); /* memory it takes */
    bool (*matrix_is_integer)(const ds_matrix *m);
    /* Keeps w's struct by value; its mapping must outlive the table. */
    ds_status (*table_open)(ds_backend *be, ds_table **out, const ds_weight *w, ds_error *err);
    void (*table_close)(ds_backend *be, ds_table *t);

    /* Matrices opened between begin and end, always in the same order, make up one file: they are taken from
     * it where it is there and fits, else repacked as ever, and end then writes it. What goes wrong with it
     * costs time, nothing else: it is logged, once, by end. Both NULL: this backend keeps no packs. */
    void (*pack_begin)(ds_backend *be, const ds_pack_place *place);
    /* complete: all are open, and none has been closed; false: the load failed, nothing is written or said. */
    void (*pack_end)(ds_backend *be, bool complete, ds_pack_report *report);

    ds_status (*kv_open)(ds_backend *be, ds_kv **out, const ds_kv_shape *shape, ds_error *err);
    void (*kv_close)(ds_backend *be, ds_kv *kv);
    size_t (*kv_bytes)(const ds_kv *kv, int rows); /* of `rows` rows as kv_save writes them */
    /* Rows [from, to) of every layer, to or from host memory; they sync first. The format is the
     * backend's own, the same for every capacity. */
    ds_status (*kv_save)(ds_backend *be, const ds_kv *kv, int from, int to, void *dst, ds_error *err);
    ds_status (*kv_load)(ds_backend *be, ds_kv *kv, int from, int to, const void *src, ds_error *err);

    /* out[i] = table row ids[i] * scale; ids outside the table give zeros. ids: backend memory. */
    void (*embed)(ds_backend *be, float *out, int ld, const ds_table *t, const int32_t *ids, int rows,
                  float scale);
    /* y_j = pre(x) w_j^T (+ bias_j) for up to 4 matrices that share their input. No y overlaps x or x2. */
    void (*linear)(ds_backend *be, const ds_in *in, int rows, const ds_out *outs, int n_outs);
    /* best[i] = lowest index of row i's largest output, value[i] = that output, of one matrix as linear would
     * compute it, whose outputs need no memory. NaN never wins; value is NaN where nothing else is. */
    void (*linear_best)(ds_backend *be, const ds_in *in, int rows, const ds_matrix *w, int32_t *best,
                        float *value);
    /* y holds x w'^T for an approximation w' of w: computes the `top` (<= 64) largest outputs of every row,
     * and some of their neighbours, again with w. For drafts, which may be approximate. */
    void (*refine)(ds_backend *be, const float *x, int ld_x, const ds_matrix *w, float *y, int ld_y, int rows,
                   int top);
    void (*rms_norm)(ds_backend *be, float *out, int ld_out, const float *x, int ld, const float *w,
                     int rows, int n, float eps);
    /* out[row][2 i] = cos, [2 i + 1] = sin of pair i, for the rows of all seqs */
    void (*rope_angles)(ds_backend *be, float *out, const ds_rope *rope, const ds_seq *seqs, int n_seqs);
    void (*heads)(ds_backend *be, const ds_heads *h);
    void (*attention)(ds_backend *be, const ds_attn *a);
    /* dst[i] = src[index ? index[i] : i]; index: host, copied */
    void (*copy_rows)(ds_backend *be, float *dst, int ld_dst, const float *src, int ld_src,
                      const int32_t *index, int rows, int n);
    /* elementwise over rows x n; b, c may be NULL where unused; y may be a */
    void (*ew)(ds_backend *be, ds_ew op, float *y, const float *a, const float *b, const float *c,
               float p, int rows, int n, int ld);
    /* out[i] = lowest index of the largest of x[i][0..n); with offsets o: index + o[index] */
    void (*argmax)(ds_backend *be, int32_t *out, const float *x, int ld, int rows, int n,
                   const int32_t *offsets);
};

#endif
