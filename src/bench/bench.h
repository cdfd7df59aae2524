/* Measurements: each fills a new JSON object (without the signature of bench/sha.h). */
#ifndef DS_BENCH_BENCH_H
#define DS_BENCH_BENCH_H

#include "base/error.h"
#include "base/log.h"

#include <dspark/engine.h>
#include <jansson.h>

typedef struct {
    const char *model, *drafter; /* drafter NULL: none */
    int threads;                 /* 0: one a core */
    const char *cpu;             /* "auto", ... */
    bool exact;
    int drafter_bits; /* as ds_engine_opts */
    bool profile;     /* decode, verify, prefill: adds where the time goes (bench/rig.h) */
    const char *weights_cache;
    ds_log log;
} ds_bench_setup;

/* What ran: filled by every measurement. */
typedef struct {
    int threads;
    char isa[16];
} ds_bench_ran;

/* Pseudo-random tokens are decoded after a prompt of `depth` such tokens, plainly or with the drafter.
 * {ms_per_token, tokens_per_s}, tokens_per_round with a drafter, and {profile} of a round */
ds_status ds_bench_decode(json_t **out, ds_bench_ran *ran, const ds_bench_setup *setup, int depth, int tokens,
                          int max_draft, ds_error *err);
/* {rows: {"1": {ms, ms_min}, ...}}: medians; the row counts take turns. A profile of each is made of runs of
 * its own. */
ds_status ds_bench_verify(json_t **out, ds_bench_ran *ran, const ds_bench_setup *setup, int depth,
                          const int *rows, int n_rows, int runs, ds_error *err);
/* {tokens_per_s}: the median; {profile} of a prompt */
ds_status ds_bench_prefill(json_t **out, ds_bench_ran *ran, const ds_bench_setup *setup, int tokens, int runs,
                           ds_error *err);
/* {ppl, ppl_exact, kl, top1, tokens}; a text that cannot be read is DS_INVALID, before models are loaded */
ds_status ds_bench_quality(json_t **out, ds_bench_ran *ran, const ds_bench_setup *setup,
                           const char *text_file, int tokens, int window, ds_error *err);

/* Answers to every prompt of the files, plain and speculative in turn.
 * {sets: {NAME: {plain_tokens_per_s, spec_tokens_per_s, speedup, tokens_per_round, identical, prompts}},
 *  total: {...}} */
typedef struct {
    const char *const *files; /* JSON lines with a "prompt" each */
    size_t n_files;
    int limit;          /* prompts a file; 0: all */
    ds_request request; /* settings; what it continues and mode are set here */
    void (*progress)(void *user, const char *set, int done, int total); /* may be NULL */
    void *user;
} ds_bench_prompts;
/* Before a model is loaded: DS_INVALID names the file that cannot be read or holds no prompts. */
ds_status ds_bench_check_prompts(const char *const *files, size_t n_files, int limit, ds_error *err);
ds_status ds_bench_generate(json_t **out, ds_engine *engine, const ds_bench_prompts *prompts, ds_error *err);

/* Classes of a model's matrices, and how each is multiplied: [{class, type, matrices, bytes, path}] */
ds_status ds_bench_inspect(json_t **out, const char *model, bool exact, ds_error *err);

#endif
