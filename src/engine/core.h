/* An engine and its jobs as the files of this folder see them.
 *
 * One thread, the engine's, owns backend, model, drafter and sequences. Callers' threads check, render
 * and tokenise requests, put jobs into a queue and drain the jobs' events. */
#ifndef DS_ENGINE_CORE_H
#define DS_ENGINE_CORE_H

#include "base/log.h"
#include "decode/decode.h"
#include "engine/prompt.h"
#include "engine/weights_cache.h"

#include <dspark/engine.h>
#include <pthread.h>
#include <stdatomic.h>

enum { DS_EVENTS_QUEUED = 64 }; /* a job with more events than this waits for its reader */

typedef struct ds_event_node {
    struct ds_event_node *next;
    ds_event event; /* TEXT: its data follow in the same allocation */
} ds_event_node;

struct ds_engine {
    /* constant once open */
    ds_engine_info info;
    ds_weights_cache cache; /* what info tells about it */
    ds_log log;
    ds_prompter *prompter;
    ds_engine_opts opts; /* its strings are gone after open */
    unsigned cpu_mask;

    /* of the engine's thread */
    ds_checkpoint *target_files, *drafter_files;
    ds_backend *be;
    ds_model *model;
    ds_drafter *drafter;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    bool loaded, closing;
    ds_status load_status;
    ds_error load_err;
    ds_job *first, *last, *running;
    int refs; /* the owner's and one a job: the struct outlives them all */
};

struct ds_job {
    ds_engine *engine;
    ds_job *next; /* under engine->lock */
    double submitted;

    /* what is asked; constant */
    int32_t *prompt;
    int n_prompt;
    ds_decode_opts decode;
    bool speculate;
    char **stop; /* owned */
    size_t n_stop;

    atomic_bool cancel;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    ds_event_node *head, *tail;
    int queued;
    bool ended;             /* END is in the queue, or was */
    ds_event_node *current; /* lent to the reader */
    ds_event_node end;
    int32_t *ids; /* of END */
    ds_round_info *rounds;
};

void ds_engine_unref(ds_engine *engine);

/* request.c: checks a request and makes a job of it, not yet queued. */
ds_status ds_job_make(ds_job **out, ds_engine *engine, const ds_request *req, ds_error *err);
/* job.c */
void ds_job_free(ds_job *job);
void ds_job_interrupt(ds_job *job);        /* sets cancel and wakes whoever waits */
void ds_job_execute(ds_job *job);          /* on the engine's thread, to the END */
void ds_job_finish_cancelled(ds_job *job); /* of one that never ran */

#endif
