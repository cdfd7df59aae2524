/* libdspark: language models decoded faster, without changing a token.
 *
 * Threads  A ds_engine may be shared; any thread may submit jobs and may call ds_job_cancel() at any
 *          time. One job is drained by one thread at a time.
 * Memory   What a function named _open or _submit gives you, you close once. Pointers inside an event
 *          are borrowed until the next ds_job_next() or close. On failure *out is NULL and the
 *          ownership of arguments has not moved.
 * Never    exits, prints or reads the environment: the host decides (ds_engine_opts.log). */
#ifndef DSPARK_ENGINE_H
#define DSPARK_ENGINE_H

#include <dspark/request.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DS_API __attribute__((visibility("default")))

typedef struct ds_engine ds_engine; /* a loaded target with its drafter */
typedef struct ds_job ds_job;       /* one generation: queued, running or done */

typedef struct {            /* zero it, then set what you want: 0 and NULL mean the default */
    const char *target;     /* a GGUF file or a model folder; strings are borrowed during open only */
    const char *drafter;    /* a drafter folder; NULL: plain decoding */
    int threads;            /* 0: one a core */
    const char *cpu;        /* "auto", "c", "avx2", "avx512": the fastest kernels allowed */
    bool exact;             /* fp32 weights, activations and KV: slow, for reference */
    int context;            /* rows a sequence may have; 0: min(the model's, 8192) */
    int max_draft;          /* 0: the drafter's full block; -1: never speculate */
    int drafter_bits;       /* 0: 4; 4 or 8: unquantised drafters are quantised to this; -1: keep them */
    int drafter_window;     /* context rows a drafter sees; 0: 4096; -1: all */
    const char *weights_cache;   /* a folder that keeps repacked weights, so that later starts are faster;
                                  * made where it is missing; NULL: none */
    bool weights_cache_readonly; /* takes what is there and writes nothing */
    struct { /* called from any of the engine's threads, until close returns */
        void (*fn)(void *user, int level, const char *line); /* level: 0 debug, 1 info, 2 warning */
        void *user;
    } log;
    struct { /* called from one thread, during open only */
        void (*fn)(void *user, double done); /* 0..1 while loading */
        void *user;
    } progress;
} ds_engine_opts;

typedef struct {
    const char *family, *isa, *drafter_kind; /* drafter_kind NULL: none */
    int layers, hidden, vocab, context, threads, max_draft;
    size_t weight_bytes, drafter_bytes;
    size_t kv_bytes_per_token; /* of the target's cache */
    int integer_matrices, float_matrices; /* which path the target's matrices take */
    /* What weights_cache did, as a state ("used", "written", "absent", "ignored", "failed"), a colon and a
     * sentence; NULL: off, or there is no drafter. */
    const char *target_cache, *drafter_cache;
    const char *slow_reason; /* NULL, or which fast path was refused and why */
} ds_engine_info;

DS_API const char *ds_version(void);
DS_API const char *ds_status_name(ds_status status);

DS_API ds_status ds_engine_open(ds_engine **out, const ds_engine_opts *opts, ds_error *err);
DS_API void ds_engine_close(ds_engine *engine); /* NULL is fine; cancels and joins its jobs */
DS_API const ds_engine_info *ds_engine_get(const ds_engine *engine);

/* Copies from req and queues the job. Jobs run in the order of submission. */
DS_API ds_status ds_job_submit(ds_job **out, ds_engine *engine, const ds_request *req, ds_error *err);
/* Waits up to timeout_ms (-1: for ever) for the next event; *event NULL: none yet, or no more after
 * END. A slow consumer makes its job wait, never lose events. */
DS_API ds_status ds_job_next(ds_job *job, const ds_event **event, int timeout_ms);
DS_API void ds_job_cancel(ds_job *job); /* within one round or prefill piece; END still comes */
DS_API void ds_job_close(ds_job *job);  /* cancels, waits for the end, then frees; NULL is fine */

/* Drains a job: calls fn for every event until END (included). fn returns false to cancel. DS_OK,
 * DS_CANCELLED, or the error that END had. */
DS_API ds_status ds_job_run(ds_job *job, bool (*fn)(void *user, const ds_event *event), void *user);

/* Token ids of text, special strings recognised: *ids is malloc'd (free() it). */
DS_API ds_status ds_engine_tokenize(ds_engine *engine, const char *text, int32_t **ids, size_t *n,
                                    ds_error *err);

#ifdef __cplusplus
}
#endif

#endif
