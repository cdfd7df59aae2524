#include "engine/core.h"

#include "base/clock.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NEW_DEFAULT = 256, MAX_STOPS = 64, MAX_STOP_BYTES = 4096 };

static bool is_utf8(const char *text)
{
    json_t *string = json_string(text); /* jansson refuses what is not UTF-8 */
    json_decref(string);
    return string != NULL;
}

static ds_status check_messages(const ds_request *req, ds_error *err)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    for (size_t i = 0; i < req->n_messages; i++) {
        const ds_message *m = &req->messages[i];
        bool known = false;
        for (size_t r = 0; r < COUNT(roles); r++)
            known |= m->role && !strcmp(m->role, roles[r]);
        if (!known)
            return ds_fail(err, DS_INVALID,
                           "message %zu has the role '%.40s': it must be system, user or assistant", i + 1,
                           m->role ? m->role : "");
        if (!m->content || !is_utf8(m->content))
            return ds_fail(err, DS_INVALID, "message %zu: its content is %s", i + 1,
                           m->content ? "not valid UTF-8" : "missing");
    }
    return DS_OK;
}

static ds_status check_input(const ds_engine *e, const ds_request *req, ds_error *err)
{
    int given = (req->messages != NULL) + (req->prompt != NULL) + (req->prompt_ids != NULL);
    if (given != 1)
        return ds_fail(err, DS_INVALID,
                       "a request needs exactly one of messages, prompt and prompt_ids: %d were given",
                       given);
    if (req->messages && !req->n_messages)
        return ds_fail(err, DS_INVALID, "there are no messages");
    if (req->messages)
        return check_messages(req, err);
    if (req->prompt)
        return is_utf8(req->prompt) ? DS_OK : ds_fail(err, DS_INVALID, "the prompt is not valid UTF-8");
    for (size_t i = 0; i < req->n_prompt_ids; i++)
        if (req->prompt_ids[i] < 0 || req->prompt_ids[i] >= e->info.vocab)
            return ds_fail(err, DS_INVALID, "prompt_ids[%zu] is %d: the model has ids 0 to %d", i,
                           (int)req->prompt_ids[i], e->info.vocab - 1);
    return DS_OK;
}

static ds_status check_stops(const ds_request *req, ds_error *err)
{
    if (req->n_stop > MAX_STOPS)
        return ds_fail(err, DS_INVALID, "there are %zu stop texts: at most %d are allowed", req->n_stop,
                       MAX_STOPS);
    for (size_t i = 0; i < req->n_stop; i++) {
        const char *stop = req->stop[i];
        if (!stop || !*stop)
            return ds_fail(err, DS_INVALID, "stop text %zu is empty", i + 1);
        if (strlen(stop) > MAX_STOP_BYTES)
            return ds_fail(err, DS_INVALID, "stop text %zu has %zu bytes: at most %d are allowed", i + 1,
                           strlen(stop), MAX_STOP_BYTES);
        if (!is_utf8(stop))
            return ds_fail(err, DS_INVALID, "stop text %zu is not valid UTF-8", i + 1);
    }
    return DS_OK;
}

static ds_status check_decoding(const ds_engine *e, const ds_request *req, ds_error *err)
{
    if (req->max_new_tokens < 0)
        return ds_fail(err, DS_INVALID, "max_new_tokens is %d: it must be 1 or more", req->max_new_tokens);
    if (req->max_draft < 0 || req->max_draft > DS_MAX_DRAFT)
        return ds_fail(err, DS_INVALID, "max_draft is %d: it must be from 0 to %d", req->max_draft,
                       DS_MAX_DRAFT);
    if (!(req->confidence_threshold >= 0 && req->confidence_threshold <= 1))
        return ds_fail(err, DS_INVALID, "confidence_threshold is %g: it must be from 0 to 1",
                       (double)req->confidence_threshold);
    if (req->mode != DS_MODE_AUTO && req->mode != DS_MODE_DSPARK && req->mode != DS_MODE_BASELINE)
        return ds_fail(err, DS_INVALID, "mode %d is unknown", (int)req->mode);
    if (req->rule != DS_RULE_COUPLED && req->rule != DS_RULE_REJECTION)
        return ds_fail(err, DS_INVALID, "rule %d is unknown", (int)req->rule);
    if (req->mode == DS_MODE_DSPARK && !e->drafter)
        return ds_fail(err, DS_INVALID, "mode dspark needs a drafter, and none was opened");
    return DS_OK;
}

/* Fills job->prompt. */
static ds_status make_prompt(ds_job *job, const ds_request *req, ds_error *err)
{
    const ds_prompter *p = job->engine->prompter;
    ds_status status = DS_OK;
    ds_ids ids = {0};
    if (req->messages)
        status = ds_prompter_chat(p, req->messages, req->n_messages, &ids, err);
    else if (req->prompt)
        status = ds_prompter_encode(p, req->prompt, strlen(req->prompt), true, &ids, err);
    else if (!ds_ids_add(&ids, req->prompt_ids, req->n_prompt_ids))
        status = ds_fail(err, DS_NO_MEMORY, "out of memory for a prompt of %zu tokens", req->n_prompt_ids);
    job->prompt = ids.data;
    size_t n = ids.len;
    if (status)
        return status;
    if (!n)
        return ds_fail(err, DS_INVALID, "the prompt is empty");
    if (n >= (size_t)job->engine->info.context)
        return ds_fail(err, DS_INVALID,
                       "the prompt has %zu tokens, but the context holds %d, the answer included", n,
                       job->engine->info.context);
    for (size_t i = 0; i < n; i++)
        if (job->prompt[i] < 0 || job->prompt[i] >= job->engine->info.vocab)
            return ds_fail(
                err, DS_BAD_FILE,
                "the tokenizer made id %d of the prompt, but the model has %d: they do not belong together",
                (int)job->prompt[i], job->engine->info.vocab);
    job->n_prompt = (int)n;
    return DS_OK;
}

static ds_status copy_stops(ds_job *job, const ds_request *req, ds_error *err)
{
    job->stop = calloc(req->n_stop + 1, sizeof *job->stop);
    for (size_t i = 0; job->stop && i < req->n_stop; i++, job->n_stop++)
        if (!(job->stop[i] = strdup(req->stop[i])))
            break;
    if (job->n_stop == req->n_stop && job->stop)
        return DS_OK;
    return ds_fail(err, DS_NO_MEMORY, "out of memory for a request");
}

static ds_decode_opts decode_opts(const ds_engine *e, const ds_request *req)
{
    ds_decode_opts d = {
        .sampling = {.temperature = req->temperature,
                     .top_p = req->top_p,
                     .top_k = req->top_k,
                     .min_p = req->min_p,
                     .seed = req->seed},
        .accept = req->rule == DS_RULE_REJECTION ? DS_ACCEPT_REJECTION : DS_ACCEPT_COUPLED,
        .max_new = req->max_new_tokens ? req->max_new_tokens : MAX_NEW_DEFAULT,
        .max_draft = e->info.max_draft,
        .confidence_threshold = req->confidence_threshold,
        .ignore_eos = req->ignore_eos,
    };
    if (d.max_new > e->info.context) /* which ends the answer anyway */
        d.max_new = e->info.context;
    if (req->max_draft && req->max_draft < d.max_draft)
        d.max_draft = req->max_draft;
    d.eos = ds_prompter_eos(e->prompter, &d.n_eos);
    return d;
}

ds_status ds_job_make(ds_job **out, ds_engine *e, const ds_request *req, ds_error *err)
{
    *out = NULL;
    double submitted = ds_now();
    ds_decode_opts decode = decode_opts(e, req);
    ds_status status = check_input(e, req, err);
    if (!status)
        status = check_stops(req, err);
    if (!status)
        status = check_decoding(e, req, err);
    if (!status)
        status = ds_sampling_check(&decode.sampling, err);
    if (status)
        return status;
    ds_job *job = calloc(1, sizeof *job);
    if (!job)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for a request");
    pthread_mutex_init(&job->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&job->changed, &attr);
    pthread_condattr_destroy(&attr);
    job->engine = e;
    job->submitted = submitted;
    job->decode = decode;
    job->speculate = e->drafter && req->mode != DS_MODE_BASELINE;
    job->end.event.kind = DS_EVENT_END;
    status = make_prompt(job, req, err);
    if (!status)
        status = copy_stops(job, req, err);
    if (status) {
        ds_job_free(job);
        return status;
    }
    job->end.event.end.prompt_tokens = job->n_prompt;
    *out = job;
    return DS_OK;
}
