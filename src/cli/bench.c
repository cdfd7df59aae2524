#include "cli/cli.h"

#include "base/log.h"
#include "bench/bench.h"
#include "bench/sha.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void on_log(void *user, int level, const char *line)
{
    (void)user;
    if (level >= DS_LOG_WARN)
        cli_say(line);
}

static ds_bench_setup setup_of(const cli_args *args)
{
    return (ds_bench_setup){.model = args->model,
                            .drafter = args->drafter,
                            .threads = args->threads,
                            .cpu = cli_cpu_names[args->cpu],
                            .exact = args->exact,
                            .drafter_bits = cli_drafter_bits_values[args->drafter_bits],
                            .profile = args->profile,
                            .weights_cache = args->weights_cache,
                            .log = {on_log, NULL}};
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* Signs and prints a result, or hands it to `table`; takes it over. */
static int report(ds_status status, json_t *result, const cli_args *args, const ds_bench_ran *ran,
                  void (*table)(const json_t *result), ds_error *err)
{
    if (!status && args->json)
        status = ds_result_sign(result, args->model, ran->threads, ran->isa, err);
    if (status) {
        json_decref(result);
        return cli_fail(err);
    }
    if (args->json)
        return cli_print_json(result);
    table(result);
    printf("%d threads, %s\n", ran->threads, ran->isa);
    json_decref(result);
    return 0;
}

/* --- decode, verify, prefill, quality --- */

static void profile_table(const json_t *owner, const char *unit)
{
    size_t i;
    json_t *row, *profile = json_object_get(owner, "profile");
    if (!profile)
        return;
    printf("\n%-8s %-20s %8s %10s %7s %9s %9s %7s   (%s)\n", "part", "operation", "calls", "ms", "share",
           "waiting", "MB", "GB/s", unit);
    json_array_foreach(profile, i, row)
    {
        printf("%-8s %-20s %8.1f %10.4f %6.1f%% %9.4f", json_string_value(json_object_get(row, "part")),
               json_string_value(json_object_get(row, "op")), number(row, "calls"), number(row, "ms"),
               100 * number(row, "share"), number(row, "wait_ms"));
        if (json_object_get(row, "mb"))
            printf(" %9.2f %7.2f", number(row, "mb"), number(row, "gb_per_s"));
        putchar('\n');
    }
}

static void decode_table(const json_t *result)
{
    printf("%.3f ms a token, %.1f tokens/s\n", number(result, "ms_per_token"),
           number(result, "tokens_per_s"));
    profile_table(result, "a round");
}

int cli_bench_decode(const cli_args *args)
{
    ds_bench_setup setup = setup_of(args);
    ds_bench_ran ran = {0};
    ds_error err = {0};
    json_t *result;
    ds_status status =
        ds_bench_decode(&result, &ran, &setup, args->depth, args->tokens, args->max_draft, &err);
    return report(status, result, args, &ran, decode_table, &err);
}

static void verify_table(const json_t *result)
{
    const char *rows;
    json_t *row;
    printf("%6s %10s %10s\n", "rows", "ms", "fastest");
    json_object_foreach(json_object_get(result, "rows"), rows, row)
        printf("%6s %10.3f %10.3f\n", rows, number(row, "ms"), number(row, "ms_min"));
    json_object_foreach(json_object_get(result, "rows"), rows, row)
    {
        char unit[32];
        snprintf(unit, sizeof unit, "%s rows", rows);
        profile_table(row, unit);
    }
}

int cli_bench_verify(const cli_args *args)
{
    ds_bench_setup setup = setup_of(args);
    ds_bench_ran ran = {0};
    ds_error err = {0};
    json_t *result;
    ds_status status =
        ds_bench_verify(&result, &ran, &setup, args->depth, args->rows.at, args->rows.n, args->runs, &err);
    return report(status, result, args, &ran, verify_table, &err);
}

static void prefill_table(const json_t *result)
{
    printf("%.1f tokens/s\n", number(result, "tokens_per_s"));
    profile_table(result, "the prompt");
}

int cli_bench_prefill(const cli_args *args)
{
    ds_bench_setup setup = setup_of(args);
    ds_bench_ran ran = {0};
    ds_error err = {0};
    json_t *result;
    ds_status status = ds_bench_prefill(&result, &ran, &setup, args->tokens, args->runs, &err);
    return report(status, result, args, &ran, prefill_table, &err);
}

static void quality_table(const json_t *result)
{
    printf("perplexity %.4f, exact %.4f\n", number(result, "ppl"), number(result, "ppl_exact"));
    printf("divergence %.6f, likeliest token the same in %.2f %% of %lld\n", number(result, "kl"),
           100 * number(result, "top1"), (long long)json_integer_value(json_object_get(result, "tokens")));
}

int cli_bench_quality(const cli_args *args)
{
    ds_bench_setup setup = setup_of(args);
    ds_bench_ran ran = {0};
    ds_error err = {0};
    json_t *result;
    ds_status status = ds_bench_quality(&result, &ran, &setup, args->text, args->tokens, args->window, &err);
    return report(status, result, args, &ran, quality_table, &err);
}

/* --- generate --- */

static void generate_row(const char *name, const json_t *set)
{
    printf("%-16s %7lld %11.1f %11.1f %8.2fx %9.2f  %s\n", name,
           (long long)json_integer_value(json_object_get(set, "prompts")), number(set, "plain_tokens_per_s"),
           number(set, "spec_tokens_per_s"), number(set, "speedup"), number(set, "tokens_per_round"),
           json_is_true(json_object_get(set, "identical")) ? "yes" : "no");
}

static void generate_table(const json_t *result)
{
    const char *name;
    json_t *set;
    printf("%-16s %7s %11s %11s %9s %9s  %s\n", "set", "prompts", "plain t/s", "spec t/s", "speedup",
           "t/round", "identical");
    json_object_foreach(json_object_get(result, "sets"), name, set) generate_row(name, set);
    generate_row("total", json_object_get(result, "total"));
}

static void on_prompt(void *user, const char *set, int done, int total)
{
    (void)user;
    fprintf(stderr, "\r\033[K%s %d/%d", set, done + 1, total);
}

/* Splits "a,b" entries; the pieces live in *text, which the caller frees. */
static ds_status split(cli_list *out, const cli_list *in, char **text, ds_error *err)
{
    size_t size = 1;
    for (size_t i = 0; i < in->n; i++)
        size += strlen(in->at[i]) + 1;
    char *to = *text = malloc(size);
    if (!to)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for the prompts");
    out->n = 0;
    for (size_t i = 0; i < in->n; i++)
        for (const char *p = in->at[i]; p;) {
            size_t len = strcspn(p, ",");
            if (out->n == CLI_MAX_LIST)
                return ds_fail(err, DS_INVALID, "--prompts takes %d files at most", CLI_MAX_LIST);
            if (!len)
                return ds_fail(err, DS_INVALID, "--prompts has an empty entry: each needs a path");
            memcpy(to, p, len);
            to[len] = 0;
            out->at[out->n++] = to;
            to += len + 1;
            p = p[len] ? p + len + 1 : NULL;
        }
    return DS_OK;
}

int cli_bench_generate(const cli_args *args)
{
    cli_list files;
    char *text = NULL;
    ds_engine *engine = NULL;
    ds_error err = {0};
    json_t *result = NULL;
    ds_bench_ran ran = {0};
    ds_status status = split(&files, &args->prompts, &text, &err);
    if (!status)
        status = ds_bench_check_prompts(files.at, files.n, args->limit, &err);
    if (!status)
        status = cli_open(&engine, args, false, &err);
    if (!status) {
        const ds_engine_info *info = ds_engine_get(engine);
        ran.threads = info->threads;
        snprintf(ran.isa, sizeof ran.isa, "%s", info->isa);
        ds_bench_prompts prompts = {
            .files = files.at,
            .n_files = files.n,
            .limit = args->limit,
            .request = {.max_new_tokens = args->max_new_tokens,
                        .temperature = (float)args->temperature,
                        .top_p = (float)args->top_p,
                        .top_k = args->top_k,
                        .min_p = (float)args->min_p,
                        .seed = args->seed,
                        .ignore_eos = args->ignore_eos,
                        .max_draft = args->max_draft,
                        .confidence_threshold = (float)args->confidence_threshold,
                        .rule = (ds_rule)args->accept},
            .progress = isatty(STDERR_FILENO) ? on_prompt : NULL,
        };
        status = ds_bench_generate(&result, engine, &prompts, &err);
        if (prompts.progress)
            fputs("\r\033[K", stderr);
    }
    ds_engine_close(engine);
    free(text);
    return report(status, result, args, &ran, generate_table, &err);
}
