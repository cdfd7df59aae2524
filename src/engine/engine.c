#include "engine/core.h"

#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include "base/cpu.h"

#include <stdlib.h>
#include <string.h>

enum { CONTEXT_DEFAULT = 8192, MAX_THREADS = 256 };

const char *ds_version(void)
{
    return DSPARK_VERSION;
}

const char *ds_status_name(ds_status status)
{
    switch (status) {
#define X(name, http, meaning)                                                                               \
    case DS_##name:                                                                                          \
        return #name;
        DS_STATUS_MAP(X)
#undef X
    }
    return "unknown";
}

/* --- loading --- */

static ds_status check_opts(ds_engine *e, const ds_engine_opts *opts, ds_error *err)
{
    if (!opts->target)
        return ds_fail(err, DS_INVALID, "no target model was given");
    if (opts->threads < 0 || opts->threads > MAX_THREADS)
        return ds_fail(err, DS_INVALID, "threads is %d: it must be from 0 to %d", opts->threads, MAX_THREADS);
    if (opts->context < 0)
        return ds_fail(err, DS_INVALID, "context is %d: it must not be negative", opts->context);
    if (opts->max_draft < -1 || opts->max_draft > DS_MAX_DRAFT)
        return ds_fail(err, DS_INVALID, "max_draft is %d: it must be from -1 to %d", opts->max_draft,
                       DS_MAX_DRAFT);
    int bits = opts->drafter_bits;
    if (bits != 0 && bits != -1 && bits != 4 && bits != 8)
        return ds_fail(err, DS_INVALID, "drafter_bits is %d: it must be 4, 8, or -1 to keep them", bits);
    if (opts->weights_cache && !opts->weights_cache[0])
        return ds_fail(err, DS_INVALID, "the folder of the weights cache has no name");
    if (opts->drafter_window < -1)
        return ds_fail(err, DS_INVALID, "drafter_window is %d: it must be -1 or more", opts->drafter_window);
    const char *cpu = opts->cpu ? opts->cpu : "auto";
    if (!ds_cpu_mask(cpu, &e->cpu_mask))
        return ds_fail(err, DS_INVALID,
                       "'%s' is no instruction set: it must be auto, c, avx2, avx512 or neon", cpu);
    return DS_OK;
}

static ds_status load_model(ds_engine *e, ds_error *err)
{
    ds_model_opts opts = {.progress = e->opts.progress.fn, .user = e->opts.progress.user};
    ds_weights_cache_target(&e->cache, e->be, e->target_files);
    ds_status status = ds_model_open(&e->model, e->target_files, e->be, &opts, err);
    ds_weights_cache_end(&e->cache, e->be, !status);
    return status;
}

static ds_status load_drafter(ds_engine *e, ds_error *err)
{
    ds_drafter_opts opts;
    ds_drafter_defaults(&opts);
    if (e->opts.drafter_bits)
        opts.bits = e->opts.drafter_bits < 0 ? 0 : e->opts.drafter_bits;
    if (e->opts.drafter_window)
        opts.window = e->opts.drafter_window < 0 ? 0 : e->opts.drafter_window;
    ds_weights_cache_drafter(&e->cache, e->be, e->target_files, e->drafter_files, &opts);
    ds_status status = ds_drafter_open(&e->drafter, e->drafter_files, e->model, &opts, err);
    ds_weights_cache_end(&e->cache, e->be, !status);
    return status;
}

/* How many bytes a row of the cache takes in all layers. */
static size_t row_bytes(const ds_model_info *m, bool exact)
{
    return 2 * (exact ? sizeof(float) : sizeof(uint16_t)) * (size_t)m->layers * (size_t)m->kv_heads *
           (size_t)m->head_dim;
}

static ds_status describe(ds_engine *e, ds_error *err)
{
    const ds_model_info *m = ds_model_get(e->model);
    ds_engine_info *info = &e->info;
    info->family = m->family;
    info->isa = e->be->isa;
    info->layers = m->layers;
    info->hidden = m->hidden;
    info->vocab = m->vocab;
    info->threads = e->be->threads;
    info->weight_bytes = m->weight_bytes;
    info->kv_bytes_per_token = row_bytes(m, e->be->exact);
    info->integer_matrices = m->integer_matrices;
    info->float_matrices = m->float_matrices;
    info->slow_reason = m->slow_reason;
    info->target_cache = e->cache.target[0] ? e->cache.target : NULL;
    info->drafter_cache = e->cache.drafter[0] ? e->cache.drafter : NULL;
    info->context = m->context_max < CONTEXT_DEFAULT ? m->context_max : CONTEXT_DEFAULT;
    if (e->opts.context > m->context_max)
        return ds_fail(err, DS_INVALID, "a context of %d was asked for, but the model was made for %d",
                       e->opts.context, m->context_max);
    if (e->opts.context)
        info->context = e->opts.context;
    if (e->drafter) {
        const ds_drafter_info *d = ds_drafter_get(e->drafter);
        info->drafter_kind = d->kind;
        info->drafter_bytes = d->weight_bytes;
        info->max_draft =
            e->opts.max_draft && e->opts.max_draft < d->max_draft ? e->opts.max_draft : d->max_draft;
    }
    return DS_OK;
}

/* On the engine's thread: whatever it may touch later is made here. */
static ds_status load(ds_engine *e, ds_error *err)
{
    double begin = ds_now();
    ds_cpu_opts cpu = {
        .threads = e->opts.threads, .cpu_mask = e->cpu_mask, .exact = e->opts.exact, .log = e->log};
    ds_status status = ds_cpu_open(&e->be, &cpu, err);
    if (status)
        return status;
    e->cache = (ds_weights_cache){.dir = e->opts.weights_cache, .read_only = e->opts.weights_cache_readonly};
    status = load_model(e, err);
    if (!status && e->drafter_files)
        status = load_drafter(e, err);
    if (!status)
        status = describe(e, err);
    if (status)
        return status;
    if (e->info.slow_reason)
        ds_say(&e->log, DS_LOG_WARN, "%s", e->info.slow_reason);
    ds_say(&e->log, DS_LOG_INFO, "%s, %d layers, %zu MB, loaded in %.0f ms: %s, %d threads", e->info.family,
           e->info.layers, e->info.weight_bytes >> 20, (ds_now() - begin) * 1e3, e->info.isa,
           e->info.threads);
    return DS_OK;
}

static void unload(ds_engine *e)
{
    ds_drafter_close(e->drafter);
    ds_model_close(e->model);
    if (e->be)
        e->be->close(e->be);
    e->drafter = NULL;
    e->model = NULL;
    e->be = NULL;
}

/* --- the engine's thread --- */

static void *run(void *arg)
{
    ds_engine *e = arg;
    ds_error err = {0};
    ds_status status = load(e, &err);
    pthread_mutex_lock(&e->lock);
    e->loaded = true;
    e->load_status = status;
    e->load_err = err;
    pthread_cond_broadcast(&e->changed);
    while (!status && !e->closing) {
        ds_job *job = e->first;
        if (!job) {
            pthread_cond_wait(&e->changed, &e->lock);
            continue;
        }
        e->first = job->next;
        if (!e->first)
            e->last = NULL;
        e->running = job;
        pthread_mutex_unlock(&e->lock);
        ds_job_execute(job);
        pthread_mutex_lock(&e->lock);
        e->running = NULL;
        pthread_cond_broadcast(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    unload(e);
    return NULL;
}

/* --- open and close --- */

void ds_engine_unref(ds_engine *e)
{
    pthread_mutex_lock(&e->lock);
    int refs = --e->refs;
    pthread_mutex_unlock(&e->lock);
    if (refs)
        return;
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static void close_files(ds_engine *e)
{
    ds_prompter_close(e->prompter);
    ds_checkpoint_close(e->drafter_files);
    ds_checkpoint_close(e->target_files);
    ds_engine_unref(e);
}

static ds_status wait_loaded(ds_engine *e, ds_error *err)
{
    pthread_mutex_lock(&e->lock);
    while (!e->loaded)
        pthread_cond_wait(&e->changed, &e->lock);
    ds_status status = e->load_status;
    if (status && err)
        *err = e->load_err;
    pthread_mutex_unlock(&e->lock);
    return status;
}

ds_status ds_engine_open(ds_engine **out, const ds_engine_opts *opts, ds_error *err)
{
    *out = NULL;
    ds_engine *e = calloc(1, sizeof *e);
    if (!e)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for an engine");
    e->refs = 1;
    e->opts = *opts;
    e->log = (ds_log){opts->log.fn, opts->log.user};
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    ds_status status = check_opts(e, opts, err);
    if (!status)
        status = ds_checkpoint_open(&e->target_files, opts->target, err);
    if (!status && opts->drafter && opts->max_draft >= 0)
        status = ds_checkpoint_open(&e->drafter_files, opts->drafter, err);
    if (status)
        goto fail;
    if (pthread_create(&e->thread, NULL, run, e)) {
        status = ds_fail(err, DS_NO_MEMORY, "the engine's thread cannot be started");
        goto fail;
    }
    status = ds_prompter_open(&e->prompter, e->target_files, err); /* while the weights load */
    ds_status loaded = wait_loaded(e, status ? NULL : err);
    e->opts.target = e->opts.drafter = e->opts.cpu = e->opts.weights_cache = NULL;
    if (!status && loaded)
        status = loaded;
    if (!status) {
        const ds_model_info *m = ds_model_get(e->model);
        ds_prompter_set_eos(e->prompter, m->eos, m->n_eos);
    }
    if (status) {
        pthread_mutex_lock(&e->lock);
        e->closing = true;
        pthread_cond_broadcast(&e->changed);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
        goto fail;
    }
    *out = e;
    return DS_OK;
fail:
    close_files(e);
    return status;
}

void ds_engine_close(ds_engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->closing = true;
    ds_job *waiting = e->first, *running = e->running;
    e->first = e->last = NULL;
    if (running) /* it cannot be freed meanwhile: it leaves `running` under this lock */
        ds_job_interrupt(running);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    for (ds_job *next; waiting; waiting = next) {
        next = waiting->next;
        ds_job_finish_cancelled(waiting);
    }
    pthread_join(e->thread, NULL);
    close_files(e);
}

const ds_engine_info *ds_engine_get(const ds_engine *e)
{
    return &e->info;
}

/* --- jobs in and out of the queue --- */

ds_status ds_job_submit(ds_job **out, ds_engine *e, const ds_request *req, ds_error *err)
{
    ds_status status = ds_job_make(out, e, req, err);
    if (status)
        return status;
    ds_job *job = *out;
    pthread_mutex_lock(&e->lock);
    e->refs++;
    if (e->last)
        e->last->next = job;
    else
        e->first = job;
    e->last = job;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return DS_OK;
}

/* Whether it was still waiting: then nobody else will finish it. */
static bool leave_queue(ds_engine *e, ds_job *job)
{
    bool found = false;
    pthread_mutex_lock(&e->lock);
    for (ds_job *at = e->first, *before = NULL; at && !found; before = at, at = at->next)
        if (at == job) {
            found = true;
            if (before)
                before->next = job->next;
            else
                e->first = job->next;
            if (e->last == job)
                e->last = before;
        }
    pthread_mutex_unlock(&e->lock);
    return found;
}

void ds_job_cancel(ds_job *job)
{
    ds_job_interrupt(job);
    if (leave_queue(job->engine, job))
        ds_job_finish_cancelled(job);
}

ds_status ds_engine_tokenize(ds_engine *e, const char *text, int32_t **ids, size_t *n, ds_error *err)
{
    ds_ids found = {0};
    ds_status status = ds_prompter_encode(e->prompter, text, strlen(text), false, &found, err);
    if (status)
        ds_ids_release(&found);
    *ids = found.data;
    *n = found.len;
    return status;
}
