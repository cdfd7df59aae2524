#include "engine/answer.h"
#include "engine/core.h"

#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- events --- */

void ds_job_interrupt(ds_job *job)
{
    atomic_store(&job->cancel, true);
    pthread_mutex_lock(&job->lock);
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

/* Waits while the queue is full, unless the job is cancelled: then an event more does no harm. */
static void push(ds_job *job, ds_event_node *node)
{
    pthread_mutex_lock(&job->lock);
    while (job->queued >= DS_EVENTS_QUEUED && !atomic_load(&job->cancel) && node != &job->end)
        pthread_cond_wait(&job->changed, &job->lock);
    if (job->tail)
        job->tail->next = node;
    else
        job->head = node;
    job->tail = node;
    job->queued++;
    if (node == &job->end)
        job->ended = true;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

static ds_status push_text(ds_job *job, ds_buf *text, ds_error *err)
{
    if (text->failed)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for the answer's text");
    if (!text->len)
        return DS_OK;
    ds_event_node *node = calloc(1, sizeof *node + text->len + 1);
    if (!node)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for an event");
    char *data = (char *)(node + 1);
    memcpy(data, text->data, text->len);
    node->event.kind = DS_EVENT_TEXT;
    node->event.text.data = data;
    node->event.text.len = text->len;
    ds_buf_clear(text);
    push(job, node);
    return DS_OK;
}

static ds_status push_prefill(ds_job *job, int done, ds_error *err)
{
    ds_event_node *node = calloc(1, sizeof *node);
    if (!node)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for an event");
    node->event.kind = DS_EVENT_PREFILL;
    node->event.prefill.done = done;
    node->event.prefill.total = job->n_prompt;
    push(job, node);
    return DS_OK;
}

static void drop_node(ds_job *job, ds_event_node *node)
{
    if (node != &job->end)
        free(node);
}

static void deadline(struct timespec *at, int timeout_ms)
{
    clock_gettime(CLOCK_MONOTONIC, at);
    at->tv_sec += timeout_ms / 1000;
    at->tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (at->tv_nsec >= 1000000000) {
        at->tv_sec++;
        at->tv_nsec -= 1000000000;
    }
}

ds_status ds_job_next(ds_job *job, const ds_event **event, int timeout_ms)
{
    struct timespec until;
    if (timeout_ms > 0)
        deadline(&until, timeout_ms);
    *event = NULL;
    pthread_mutex_lock(&job->lock);
    if (job->current)
        drop_node(job, job->current);
    job->current = NULL;
    while (!job->head && !job->ended && timeout_ms) {
        if (timeout_ms < 0)
            pthread_cond_wait(&job->changed, &job->lock);
        else if (pthread_cond_timedwait(&job->changed, &job->lock, &until) == ETIMEDOUT)
            break;
    }
    if (job->head) {
        job->current = job->head;
        job->head = job->head->next;
        if (!job->head)
            job->tail = NULL;
        job->queued--;
        *event = &job->current->event;
        pthread_cond_broadcast(&job->changed);
    }
    pthread_mutex_unlock(&job->lock);
    return DS_OK;
}

ds_status ds_job_run(ds_job *job, bool (*fn)(void *user, const ds_event *event), void *user)
{
    for (;;) {
        const ds_event *event;
        ds_status status = ds_job_next(job, &event, -1);
        if (status)
            return status;
        if (!event) /* its END was read before */
            return DS_OK;
        if (!fn(user, event))
            ds_job_cancel(job);
        if (event->kind == DS_EVENT_END)
            return event->end.reason == DS_STOP_ERROR       ? event->end.error.status
                   : event->end.reason == DS_STOP_CANCELLED ? DS_CANCELLED
                                                            : DS_OK;
    }
}

void ds_job_close(ds_job *job)
{
    if (!job)
        return;
    ds_job_cancel(job);
    pthread_mutex_lock(&job->lock);
    while (!job->ended)
        pthread_cond_wait(&job->changed, &job->lock);
    pthread_mutex_unlock(&job->lock);
    ds_engine *e = job->engine;
    pthread_mutex_lock(&e->lock);
    while (e->running == job) /* the engine's thread still looks at it */
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    ds_job_free(job);
    ds_engine_unref(e);
}

void ds_job_free(ds_job *job)
{
    if (!job)
        return;
    for (ds_event_node *node = job->head, *next; node; node = next) {
        next = node->next;
        drop_node(job, node);
    }
    if (job->current)
        drop_node(job, job->current);
    for (size_t i = 0; i < job->n_stop; i++)
        free(job->stop[i]);
    free(job->stop);
    free(job->prompt);
    free(job->ids);
    free(job->rounds);
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

/* --- running one --- */

static const char *source_name(ds_source source)
{
    switch (source) {
    case DS_SOURCE_PLAIN:
        return "plain";
    case DS_SOURCE_DRAFTER:
        return "drafter";
    case DS_SOURCE_LOOKUP:
        return "lookup";
    }
    return "unknown";
}

/* Copies ids and rounds out of the sequence, which is closed before the reader sees them. keep: how many
 * ids count; those after it are of the last round. */
static ds_status keep_results(ds_job *job, const ds_gen *gen, int keep, ds_error *err)
{
    int n_ids, n_rounds;
    const int32_t *ids = ds_gen_ids(gen, &n_ids);
    const ds_round *rounds = ds_gen_rounds(gen, &n_rounds);
    job->ids = malloc(sizeof *job->ids * (size_t)(n_ids + 1));
    job->rounds = malloc(sizeof *job->rounds * (size_t)(n_rounds + 1));
    if (!job->ids || !job->rounds)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for the results");
    if (n_ids)
        memcpy(job->ids, ids, sizeof *ids * (size_t)n_ids);
    for (int i = 0; i < n_rounds; i++)
        job->rounds[i] = (ds_round_info){.drafted = rounds[i].drafted,
                                         .accepted = rounds[i].accepted,
                                         .committed = rounds[i].committed,
                                         .source = source_name(rounds[i].source)};
    if (n_ids > keep && n_rounds)
        job->rounds[n_rounds - 1].committed -= n_ids - keep;
    if (n_ids > keep)
        n_ids = keep;
    job->end.event.end.token_ids = job->ids;
    job->end.event.end.n_token_ids = n_ids;
    job->end.event.end.usage_tokens = n_ids;
    job->end.event.end.rounds = job->rounds;
    job->end.event.end.n_rounds = n_rounds;
    return DS_OK;
}

typedef struct {
    ds_gen *gen;
    ds_answer answer;
    ds_buf text;
    int fed;      /* ids whose text has been taken */
    bool stopped; /* by a stop text, after `fed` ids */
} run;

/* Takes the text of the ids that are new since the last call, and hands it to the reader. */
static ds_status take_text(ds_job *job, run *r, ds_error *err)
{
    int n;
    const int32_t *ids = ds_gen_ids(r->gen, &n);
    while (r->fed < n && !r->stopped)
        r->stopped = ds_answer_feed(&r->answer, ids[r->fed++], &r->text);
    return push_text(job, &r->text, err);
}

static ds_status generate(ds_job *job, run *r, ds_error *err)
{
    ds_engine *e = job->engine;
    ds_status status =
        ds_answer_init(&r->answer, e->prompter, (const char *const *)job->stop, job->n_stop, err);
    if (!status)
        status = ds_gen_open(&r->gen, e->model, job->speculate ? e->drafter : NULL, job->prompt,
                             job->n_prompt, e->info.context, &job->decode, err);
    double begin = ds_now();
    for (bool done = false; !status && !done && !atomic_load(&job->cancel);) {
        status = ds_gen_prefill(r->gen, &done, err);
        if (done) {
            double now = ds_now();
            job->end.event.end.prefill_s = now - begin;
            job->end.event.end.first_token_s = now - job->submitted;
        }
        if (!status)
            status = push_prefill(job, ds_gen_prefilled(r->gen), err);
    }
    if (!status)
        status = take_text(job, r, err);
    while (!status && !r->stopped && !ds_gen_finish(r->gen) && !atomic_load(&job->cancel)) {
        double round = ds_now();
        status = ds_gen_round(&r->gen, 1, err);
        job->end.event.end.decode_s += ds_now() - round;
        if (!status)
            status = take_text(job, r, err);
    }
    if (!status && !r->stopped) {
        r->stopped = ds_answer_end(&r->answer, &r->text);
        status = push_text(job, &r->text, err);
    }
    return status;
}

static ds_stop_reason reason_of(const run *r)
{
    if (r->stopped)
        return DS_STOP_TEXT;
    switch (ds_gen_finish(r->gen)) {
    case DS_FINISH_STOP:
        return DS_STOP_EOS;
    case DS_FINISH_LENGTH:
        return DS_STOP_LENGTH;
    case DS_FINISH_NONE:
    case DS_FINISH_CANCELLED:
        break;
    }
    return DS_STOP_CANCELLED;
}

void ds_job_execute(ds_job *job)
{
    run r = {0};
    ds_error err = {0};
    ds_status status = generate(job, &r, &err);
    job->end.event.end.reason = status ? DS_STOP_ERROR : reason_of(&r);
    if (r.gen) {
        ds_status kept = keep_results(job, r.gen, r.stopped ? r.fed : INT_MAX, status ? NULL : &err);
        if (kept && !status)
            job->end.event.end.reason = DS_STOP_ERROR;
    }
    job->end.event.end.error = err;
    ds_gen_close(r.gen);
    ds_answer_release(&r.answer);
    ds_buf_release(&r.text);
    push(job, &job->end); /* the reader may free the job once `running` has left it */
}

void ds_job_finish_cancelled(ds_job *job)
{
    job->end.event.end.reason = DS_STOP_CANCELLED;
    push(job, &job->end);
}
