/* ds_lossless: token ids of a real model, plain against speculative, over a matrix of settings.
 *
 * Per prompt, temperature and seed there is one right answer: that of the first plain run. Plain
 * decoding, each drafter alone, and all prompts in one batch must give it, with any number of threads
 * and any instruction set. A combination that differs is printed with the place. */
#include "backend/cpu/cpu.h"
#include "base/cpu.h"
#include "decode/decode.h"
#include "engine/open_text.h"

#include "random_drafter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_SKIP = 77, MAX_LIST = 16, MAX_PROMPTS = 256, MAX_FILES = 16, MAX_TEMPERATURES = 8 };

static const char usage[] =
    "ds_lossless --model FILE --drafter DIR [--drafter-random] --prompts FILE.jsonl...\n"
    "            [--max-new N] [--limit N] [--threads 1,2] [--cpu avx2,avx512,c] [--temperature 0,0.8]\n"
    "            [--exact] [--no-batch]\n";

typedef struct {
    int32_t *ids;
    int n;
} ids;

static struct {
    const char *model, *drafter, *prompt_files[MAX_FILES];
    int n_prompt_files, max_new, limit;
    char *threads[MAX_LIST], *cpus[MAX_LIST], *temperatures[MAX_TEMPERATURES];
    int n_threads, n_cpus, n_temperatures;
    bool random, exact, no_batch;
} args = {.max_new = 64, .limit = 8};

static struct {
    ids prompts[MAX_PROMPTS];
    int n_prompts;
    int32_t eos[32];
    int n_eos;
    ids right[MAX_TEMPERATURES][MAX_PROMPTS]; /* of the first plain run */
    int passed, failed, skipped;
} run;

static int stop(const char *what, const ds_error *err)
{
    fprintf(stderr, "ds_lossless: %s: %s\n", what, err->text);
    return 1;
}

/* --- prompts --- */

static ds_status add_prompt(const ds_tokenizer *tok, const ds_template *tpl, const char *text, ds_error *err)
{
    ds_buf rendered = {0};
    ds_ids out = {0};
    ds_status status = DS_OK;
    if (tpl) {
        json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", text);
        json_t *options = json_pack("{s:b}", "add_generation_prompt", 1);
        status = ds_template_render(tpl, messages, options, ds_tokenizer_bos(tok), ds_tokenizer_eos(tok),
                                    &rendered, err);
        json_decref(messages);
        json_decref(options);
    } else {
        ds_buf_str(&rendered, text);
    }
    if (!status)
        status = ds_tokenizer_encode(tok, ds_buf_text(&rendered), rendered.len, !tpl, &out, err);
    if (!status)
        run.prompts[run.n_prompts++] = (ids){out.data, (int)out.len};
    else
        ds_ids_release(&out);
    ds_buf_release(&rendered);
    return status;
}

/* One prompt of a line: "prompt", or the first of "turns". */
static const char *line_text(const json_t *line)
{
    const char *text = json_string_value(json_object_get(line, "prompt"));
    return text ? text : json_string_value(json_array_get(json_object_get(line, "turns"), 0));
}

/* The files take turns, so that few prompts are of all kinds. */
static ds_status read_prompts(const ds_tokenizer *tok, const ds_template *tpl, ds_error *err)
{
    FILE *files[MAX_FILES] = {0};
    ds_status status = DS_OK;
    char *line = NULL;
    size_t size = 0;
    for (int i = 0; i < args.n_prompt_files && !status; i++) {
        files[i] = fopen(args.prompt_files[i], "r");
        if (!files[i])
            status = ds_fail(err, DS_BAD_FILE, "%s: cannot be read", args.prompt_files[i]);
    }
    for (bool more = true; more && !status;) {
        more = false;
        for (int i = 0; i < args.n_prompt_files && run.n_prompts < args.limit && !status; i++) {
            ssize_t len = getline(&line, &size, files[i]);
            if (len <= 0)
                continue;
            more = true;
            json_t *object;
            status = ds_json_parse(&object, line, (size_t)len, args.prompt_files[i], err);
            if (status)
                break;
            if (line_text(object))
                status = add_prompt(tok, tpl, line_text(object), err);
            json_decref(object);
        }
    }
    for (int i = 0; i < args.n_prompt_files; i++)
        if (files[i])
            fclose(files[i]);
    free(line);
    if (!status && run.n_prompts == 0)
        status = ds_fail(err, DS_BAD_FILE, "the prompt files hold no prompt");
    return status;
}

static ds_status read_text(ds_checkpoint *files, ds_error *err)
{
    ds_tokenizer *tok = NULL;
    ds_template *tpl = NULL;
    ds_status status = ds_text_open(&tok, &tpl, files, err);
    if (!status)
        status = read_prompts(tok, tpl, err);
    if (!status)
        run.n_eos = (int)ds_tokenizer_eos_set(tok, NULL, 0, run.eos, COUNT(run.eos));
    ds_template_close(tpl);
    ds_tokenizer_close(tok);
    return status;
}

/* --- generating --- */

typedef struct {
    int tokens, rounds, accepted;
} tally;

static ds_status open_gen(ds_gen **gen, ds_model *model, ds_drafter *drafter, int prompt, float temperature,
                          ds_error *err)
{
    ds_decode_opts opts = {
        .sampling = {.temperature = temperature, .top_p = 1, .seed = (uint64_t)prompt + 1},
        .max_new = args.max_new,
        .max_draft = drafter ? 0 : -1,
        .eos = run.eos,
        .n_eos = run.n_eos,
    };
    ds_status status =
        ds_gen_open(gen, model, drafter, run.prompts[prompt].ids, run.prompts[prompt].n, 0, &opts, err);
    for (bool done = false; !done && !status;)
        status = ds_gen_prefill(*gen, &done, err);
    return status;
}

/* Compares with the right answer, or becomes it. */
static bool same(const ds_gen *gen, ids *right, int prompt, const char *how, tally *t)
{
    int n, n_rounds;
    const int32_t *got = ds_gen_ids(gen, &n);
    const ds_round *rounds = ds_gen_rounds(gen, &n_rounds);
    t->tokens += n;
    t->rounds += n_rounds;
    for (int i = 0; i < n_rounds; i++)
        t->accepted += rounds[i].accepted;
    if (!right->ids) {
        right->ids = malloc((size_t)n * sizeof *got);
        if (!right->ids)
            return false;
        memcpy(right->ids, got, (size_t)n * sizeof *got);
        right->n = n;
        return true;
    }
    int at = 0;
    while (at < n && at < right->n && got[at] == right->ids[at])
        at++;
    if (at == n && at == right->n)
        return true;
    printf("    prompt %d, %s: token %d of %d is %d, not %d\n", prompt, how, at, n,
           at < n ? (int)got[at] : -1, at < right->n ? (int)right->ids[at] : -1);
    return false;
}

/* All prompts one by one, or in one batch. *ok becomes false where any differs. */
static ds_status generate(ds_model *model, ds_drafter *drafter, float temperature, ids *right, bool batch,
                          const char *how, tally *t, bool *ok, ds_error *err)
{
    ds_gen *gens[DS_MAX_SPANS] = {0}, *active[DS_MAX_SPANS];
    ds_status status = DS_OK;
    int step = batch ? DS_MAX_SPANS : 1;
    for (int from = 0; from < run.n_prompts && !status; from += step) {
        int count = run.n_prompts - from < step ? run.n_prompts - from : step;
        for (int i = 0; i < count && !status; i++)
            status = open_gen(&gens[i], model, drafter, from + i, temperature, err);
        for (int n = 1; n && !status;) {
            n = 0;
            for (int i = 0; i < count; i++)
                if (ds_gen_finish(gens[i]) == DS_FINISH_NONE)
                    active[n++] = gens[i];
            if (n)
                status = ds_gen_round(active, n, err);
        }
        for (int i = 0; i < count; i++) {
            if (!status)
                *ok &= same(gens[i], &right[from + i], from + i, how, t);
            ds_gen_close(gens[i]);
            gens[i] = NULL;
        }
    }
    return status;
}

static ds_status combination(ds_model *model, ds_drafter *drafter, const char *name, int temperature,
                             ds_error *err)
{
    float value = strtof(args.temperatures[temperature], NULL);
    const ds_backend *be = ds_model_backend(model);
    ids *right = run.right[temperature];
    bool ok = true;
    tally t = {0}, batch = {0};
    ds_status status = generate(model, drafter, value, right, false, name, &t, &ok, err);
    if (!status && drafter && !args.no_batch)
        status = generate(model, drafter, value, right, true, "batch", &batch, &ok, err);
    if (status)
        return status;
    printf("%s %-6s threads %d  T %-4s %-14s %4d tokens, %.2f a round\n", ok ? "ok  " : "FAIL", be->isa,
           be->threads, args.temperatures[temperature], name, t.tokens,
           (double)(t.tokens - run.n_prompts) / (t.rounds ? t.rounds : 1));
    fflush(stdout);
    run.passed += ok;
    run.failed += !ok;
    return DS_OK;
}

/* One backend: plain, then every drafter. */
static ds_status machine(const ds_checkpoint *target, ds_checkpoint *const *drafters,
                         const char *const *names, int n_drafters, const char *isa, const ds_cpu_opts *cpu,
                         ds_error *err)
{
    ds_backend *be;
    ds_status status = ds_cpu_open(&be, cpu, err);
    if (status)
        return status;
    ds_model *model = NULL;
    if (isa && strcmp(be->isa, isa) != 0) /* or a run would pass for what it is not */
        status = ds_fail(err, DS_INTERNAL, "asked for %s, the backend runs %s", isa, be->isa);
    if (!status)
        status = ds_model_open(&model, target, be, NULL, err);
    for (int t = 0; t < args.n_temperatures && !status; t++)
        status = combination(model, NULL, "plain", t, err);
    for (int d = 0; d < n_drafters && !status; d++) {
        ds_drafter_opts opts;
        ds_drafter *drafter;
        ds_drafter_defaults(&opts);
        status = ds_drafter_open(&drafter, drafters[d], model, &opts, err);
        if (status)
            break;
        for (int t = 0; t < args.n_temperatures && !status; t++)
            status = combination(model, drafter, names[d], t, err);
        ds_drafter_close(drafter);
    }
    if (model)
        ds_model_close(model);
    be->close(be);
    return status;
}

static ds_status matrix(const ds_checkpoint *target, ds_checkpoint *const *drafters, const char *const *names,
                        int n_drafters, ds_error *err)
{
    ds_status status = DS_OK;
    for (int c = 0; c < args.n_cpus && !status; c++) {
        unsigned mask;
        if (!ds_cpu_mask(args.cpus[c], &mask))
            return ds_fail(err, DS_INVALID, "--cpu %s: no such instruction set", args.cpus[c]);
        bool named = strcmp(args.cpus[c], "auto") != 0;
        if (named && strcmp(ds_cpu_name(ds_cpu_flags() & mask), args.cpus[c]) != 0) {
            printf("skip %-6s this machine has no %s\n", args.cpus[c], args.cpus[c]);
            run.skipped++;
            continue;
        }
        for (int i = 0; i < args.n_threads && !status; i++) {
            ds_cpu_opts cpu = {
                .threads = atoi(args.threads[i]), .cpu_mask = mask, .exact = args.exact};
            status = machine(target, drafters, names, n_drafters, named ? args.cpus[c] : NULL, &cpu, err);
        }
    }
    return status;
}

/* --- arguments --- */

static int split(char *list, char **out, int max)
{
    int n = 0;
    for (char *save = NULL, *word = strtok_r(list, ",", &save); word && n < max;
         word = strtok_r(NULL, ",", &save))
        out[n++] = word;
    return n;
}

static bool parse(int argc, char **argv)
{
    static char threads[] = "1,2", cpus[] = "auto", temperatures[] = "0,0.8";
    char *lists[] = {threads, cpus, temperatures};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--drafter-random") == 0)
            args.random = true;
        else if (strcmp(name, "--exact") == 0)
            args.exact = true;
        else if (strcmp(name, "--no-batch") == 0)
            args.no_batch = true;
        else if (i + 1 == argc)
            return false;
        else if (strcmp(name, "--model") == 0)
            args.model = argv[++i];
        else if (strcmp(name, "--drafter") == 0)
            args.drafter = argv[++i];
        else if (strcmp(name, "--max-new") == 0)
            args.max_new = atoi(argv[++i]);
        else if (strcmp(name, "--limit") == 0)
            args.limit = atoi(argv[++i]);
        else if (strcmp(name, "--threads") == 0)
            lists[0] = argv[++i];
        else if (strcmp(name, "--cpu") == 0)
            lists[1] = argv[++i];
        else if (strcmp(name, "--temperature") == 0)
            lists[2] = argv[++i];
        else if (strcmp(name, "--prompts") == 0)
            while (i + 1 < argc && argv[i + 1][0] != '-' && args.n_prompt_files < MAX_FILES)
                args.prompt_files[args.n_prompt_files++] = argv[++i];
        else
            return false;
    }
    args.n_threads = split(lists[0], args.threads, MAX_LIST);
    args.n_cpus = split(lists[1], args.cpus, MAX_LIST);
    args.n_temperatures = split(lists[2], args.temperatures, MAX_TEMPERATURES);
    args.limit = args.limit < MAX_PROMPTS ? args.limit : MAX_PROMPTS;
    return args.model && args.drafter && args.n_prompt_files && args.max_new > 0 && args.limit > 0;
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        fputs(usage, stderr);
        return 2;
    }
    const char *needed[] = {args.model, args.drafter};
    for (size_t i = 0; i < COUNT(needed); i++)
        if (!ds_file_exists(needed[i])) {
            fprintf(stderr,
                    "\n*** SKIP: %s is missing (set DSPARK_TEST_DATA, or fetch the test data) ***\n\n",
                    needed[i]);
            return EXIT_SKIP;
        }
    ds_error err = {0};
    ds_checkpoint *target = NULL, *drafters[2] = {0};
    const char *names[] = {"trained", "random"};
    char folder[1024] = "";
    int n_drafters = args.random ? 2 : 1, rc = 0;
    if (ds_checkpoint_open(&target, args.model, &err) || read_text(target, &err))
        rc = stop(args.model, &err);
    if (!rc && ds_checkpoint_open(&drafters[0], args.drafter, &err))
        rc = stop(args.drafter, &err);
    if (!rc && args.random &&
        (random_drafter_make(args.drafter, 1, folder, sizeof folder, &err) ||
         ds_checkpoint_open(&drafters[1], folder, &err)))
        rc = stop("the random drafter", &err);
    if (!rc && matrix(target, drafters, names, n_drafters, &err))
        rc = stop("a run failed", &err);
    printf("%d passed, %d failed, %d skipped\n", run.passed, run.failed, run.skipped);

    for (int i = 0; i < 2; i++)
        ds_checkpoint_close(drafters[i]);
    ds_checkpoint_close(target);
    if (folder[0])
        random_drafter_remove(folder);
    for (int i = 0; i < run.n_prompts; i++) {
        free(run.prompts[i].ids);
        for (int t = 0; t < MAX_TEMPERATURES; t++)
            free(run.right[t][i].ids);
    }
    return rc ? rc : run.failed ? 1 : run.passed ? 0 : EXIT_SKIP;
}
