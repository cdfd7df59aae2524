#include "bench/rig.h"

#include "backend/cpu/cpu.h"
#include "base/cpu.h"
#include "engine/weights_cache.h"

#include <stdio.h>
#include <stdlib.h>

ds_status ds_rig_open(ds_rig *rig, const ds_bench_setup *setup, ds_error *err)
{
    *rig = (ds_rig){0};
    ds_cpu_opts cpu = {.threads = setup->threads, .exact = setup->exact, .log = setup->log};
    if (!ds_cpu_mask(setup->cpu ? setup->cpu : "auto", &cpu.cpu_mask))
        return ds_fail(err, DS_INVALID, "'%s' is no instruction set", setup->cpu);
    ds_status status = ds_checkpoint_open(&rig->target_files, setup->model, err);
    if (!status)
        status = ds_cpu_open(&rig->be, &cpu, err);
    ds_weights_cache cache = {.dir = setup->weights_cache};
    if (!status) {
        ds_weights_cache_target(&cache, rig->be, rig->target_files);
        status = ds_model_open(&rig->model, rig->target_files, rig->be, &(ds_model_opts){0}, err);
        ds_weights_cache_end(&cache, rig->be, !status);
    }
    if (!status && setup->drafter)
        status = ds_checkpoint_open(&rig->drafter_files, setup->drafter, err);
    if (!status && setup->drafter) {
        ds_drafter_opts opts;
        ds_drafter_defaults(&opts);
        if (setup->drafter_bits)
            opts.bits = setup->drafter_bits < 0 ? 0 : setup->drafter_bits;
        ds_weights_cache_drafter(&cache, rig->be, rig->target_files, rig->drafter_files, &opts);
        status = ds_drafter_open(&rig->drafter, rig->drafter_files, rig->model, &opts, err);
        ds_weights_cache_end(&cache, rig->be, !status);
    }
    if (status)
        ds_rig_release(rig);
    return status;
}

void ds_rig_release(ds_rig *rig)
{
    ds_drafter_close(rig->drafter);
    ds_model_close(rig->model);
    if (rig->be)
        rig->be->close(rig->be);
    ds_checkpoint_close(rig->drafter_files);
    ds_checkpoint_close(rig->target_files);
    *rig = (ds_rig){0};
}

void ds_rig_ran(const ds_rig *rig, ds_bench_ran *ran)
{
    ran->threads = rig->be->threads;
    snprintf(ran->isa, sizeof ran->isa, "%s", rig->be->isa);
}

int32_t *ds_rig_ids(const ds_rig *rig, int n)
{
    int32_t *ids = malloc(sizeof *ids * (size_t)(n > 0 ? n : 1));
    uint64_t x = 0x9E3779B97F4A7C15;
    for (int i = 0; ids && i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((x >> 33) % (uint64_t)ds_model_get(rig->model)->vocab);
    }
    return ids;
}

ds_status ds_rig_feed(ds_rig *rig, ds_state *state, const int32_t *ids, int n, bool last_logits,
                      ds_error *err)
{
    for (int at = 0, piece; at < n; at += piece) {
        piece = n - at < DS_MAX_ROWS ? n - at : DS_MAX_ROWS;
        bool logits = last_logits && at + piece == n;
        ds_span span = {state, ids + at, piece, logits ? piece - 1 : piece, true};
        ds_forward forward;
        ds_status status = ds_model_forward(rig->model, &span, 1, &forward, err);
        if (!status)
            status = rig->be->sync(rig->be, err);
        if (status)
            return status;
    }
    return DS_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ds_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, ascending);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}
