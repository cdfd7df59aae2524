#include "bench/rig.h"

#include "base/clock.h"

#include <stdlib.h>

static ds_status check_depth(const ds_rig *rig, int rows, ds_error *err)
{
    int most = ds_model_get(rig->model)->context_max;
    if (rows <= most)
        return DS_OK;
    return ds_fail(err, DS_INVALID, "the measurement needs %d rows, but the model was made for %d", rows,
                   most);
}

static ds_status no_memory(ds_error *err)
{
    return ds_fail(err, DS_NO_MEMORY, "out of memory for a measurement");
}

/* --- decode --- */

static ds_status decode(json_t **out, ds_rig *rig, int depth, int tokens, int max_draft, bool profile,
                        ds_error *err)
{
    int n_prompt = depth > 0 ? depth : 1;
    ds_status status = check_depth(rig, n_prompt + tokens + 1, err);
    if (status)
        return status;
    int32_t *prompt = ds_rig_ids(rig, n_prompt);
    if (!prompt)
        return no_memory(err);
    ds_decode_opts opts = {.max_new = tokens + 1, .max_draft = max_draft, .ignore_eos = true};
    ds_gen *gen;
    status = ds_gen_open(&gen, rig->model, rig->drafter, prompt, n_prompt, n_prompt + tokens + 1, &opts, err);
    free(prompt);
    for (bool done = false; !status && !done;)
        status = ds_gen_prefill(gen, &done, err);
    if (!status && profile)
        ds_rig_profile_begin(rig);
    double begin = ds_now();
    while (!status && !ds_gen_finish(gen))
        status = ds_gen_round(&gen, 1, err);
    double seconds = ds_now() - begin;
    int n_ids = 0, n_rounds = 0;
    if (!status) {
        ds_gen_ids(gen, &n_ids);
        ds_gen_rounds(gen, &n_rounds);
    }
    if (!status && n_ids < 2)
        status = ds_fail(err, DS_INTERNAL, "no token was decoded");
    if (!status)
        *out = json_pack("{s:f, s:f}", "ms_per_token", seconds * 1e3 / (n_ids - 1), "tokens_per_s",
                         (n_ids - 1) / seconds);
    if (!status && rig->drafter && n_rounds)
        json_object_set_new(*out, "tokens_per_round", json_real((double)(n_ids - 1) / n_rounds));
    if (!status && profile)
        json_object_set_new(*out, "profile", ds_rig_profile_end(rig, n_rounds));
    ds_gen_close(gen);
    return status;
}

ds_status ds_bench_decode(json_t **out, ds_bench_ran *ran, const ds_bench_setup *setup, int depth, int tokens,
                          int max_draft, ds_error *err)
{
    ds_rig rig;
    *out = NULL;
    ds_status status = ds_rig_open(&rig, setup, err);
    if (status)
        return status;
    ds_rig_ran(&rig, ran);
    status = decode(out, &rig, depth, tokens, max_draft, setup->profile, err);
    ds_rig_release(&rig);
    return status;
}

/* --- verify --- */

/* Seconds of one forward of n rows and their likeliest tokens, as greedy verification needs it; the state is as before afterwards. */
static ds_status time_forward(double *seconds, ds_rig *rig, ds_state *state, const int32_t *ids, int n,
                              ds_error *err)
{
    int length = ds_state_length(state);
    ds_span span = {state, ids, n, 0, true};
    ds_forward forward;
    double begin = ds_now();
    ds_status status = ds_model_forward(rig->model, &span, 1, &forward, err);
    if (!status)
        status = rig->be->sync(rig->be, err);
    *seconds = ds_now() - begin;
    if (!status)
        ds_state_rollback(state, length);
    return status;
}

/* Adds the profile of forwards of n rows to their entry in the table. */
static ds_status profile_forwards(json_t *entry, ds_rig *rig, ds_state *state, const int32_t *ids, int n,
                                  int runs, ds_error *err)
{
    double ignored;
    ds_status status = DS_OK;
    ds_rig_profile_begin(rig);
    for (int run = 0; run < runs && !status; run++)
        status = time_forward(&ignored, rig, state, ids, n, err);
    json_object_set_new(entry, "profile", ds_rig_profile_end(rig, runs));
    return status;
}

static ds_status verify(json_t **out, ds_rig *rig, int depth, const int *rows, int n_rows, int runs,
                        bool profile, ds_error *err)
{
    int most = 0;
    for (int i = 0; i < n_rows; i++)
        most = rows[i] > most ? rows[i] : most;
    ds_status status = check_depth(rig, depth + most, err);
    if (status)
        return status;
    ds_state *state = NULL;
    int32_t *ids = ds_rig_ids(rig, depth + most);
    double *times = malloc(sizeof *times * (size_t)n_rows * (size_t)runs), ignored;
    if (!ids || !times)
        status = no_memory(err);
    if (!status)
        status = ds_state_open(&state, rig->model, depth + most, err);
    if (!status)
        status = ds_rig_feed(rig, state, ids, depth, false, err);
    for (int i = 0; i < n_rows && !status; i++) /* warm */
        status = time_forward(&ignored, rig, state, ids + depth, rows[i], err);
    for (int run = 0; run < runs && !status; run++)
        for (int i = 0; i < n_rows && !status; i++)
            status = time_forward(&times[i * runs + run], rig, state, ids + depth, rows[i], err);
    if (!status) {
        json_t *table = json_object();
        for (int i = 0; i < n_rows && !status; i++) {
            char name[16];
            snprintf(name, sizeof name, "%d", rows[i]);
            double median = ds_median(times + i * runs, runs); /* which sorts them */
            json_t *entry = json_pack("{s:f, s:f}", "ms", median * 1e3, "ms_min", times[i * runs] * 1e3);
            json_object_set_new(table, name, entry);
            if (profile)
                status = profile_forwards(entry, rig, state, ids + depth, rows[i], runs, err);
        }
        *out = json_pack("{s:o}", "rows", table);
    }
    ds_state_close(state);
    free(times);
    free(ids);
    return status;
}

ds_status ds_bench_verify(json_t **out, ds_bench_ran *ran, const ds_bench_setup *setup, int depth,
                          const int *rows, int n_rows, int runs, ds_error *err)
{
    ds_rig rig;
    *out = NULL;
    ds_status status = ds_rig_open(&rig, setup, err);
    if (status)
        return status;
    ds_rig_ran(&rig, ran);
    status = verify(out, &rig, depth, rows, n_rows, runs, setup->profile, err);
    ds_rig_release(&rig);
    return status;
}

/* --- prefill --- */

static ds_status prefill(json_t **out, ds_rig *rig, int tokens, int runs, bool profile, ds_error *err)
{
    ds_status status = check_depth(rig, tokens, err);
    if (status)
        return status;
    ds_state *state = NULL;
    int32_t *ids = ds_rig_ids(rig, tokens);
    double *times = malloc(sizeof *times * (size_t)runs);
    if (!ids || !times)
        status = no_memory(err);
    if (!status)
        status = ds_state_open(&state, rig->model, tokens, err);
    for (int run = -1; run < runs && !status; run++) { /* the first one warms up */
        ds_state_rollback(state, 0);
        if (profile && run == 0)
            ds_rig_profile_begin(rig);
        double begin = ds_now();
        status = ds_rig_feed(rig, state, ids, tokens, true, err);
        if (run >= 0)
            times[run] = ds_now() - begin;
    }
    if (!status)
        *out = json_pack("{s:f}", "tokens_per_s", tokens / ds_median(times, runs));
    if (!status && profile)
        json_object_set_new(*out, "profile", ds_rig_profile_end(rig, runs));
    ds_state_close(state);
    free(times);
    free(ids);
    return status;
}

ds_status ds_bench_prefill(json_t **out, ds_bench_ran *ran, const ds_bench_setup *setup, int tokens, int runs,
                           ds_error *err)
{
    ds_rig rig;
    *out = NULL;
    ds_status status = ds_rig_open(&rig, setup, err);
    if (status)
        return status;
    ds_rig_ran(&rig, ran);
    status = prefill(out, &rig, tokens, runs, setup->profile, err);
    ds_rig_release(&rig);
    return status;
}
