/* Drafters: the arrays of single blocks, with tapped rows from the file and from the target itself, and
 * whole speculative generations. */
#include "golden.h"

#include "decode/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NEW = 48, CAPACITY = 160 };

typedef struct {
    const golden_case *c;
    char *why;
    size_t n_why;
    ds_checkpoint *target_files, *files;
    ds_model *target;
    ds_drafter *drafter;
    int32_t *ids;
    int n_ids;
    int skipped; /* runs that need what the engine lacks */
} pair;

/* --- opening ---------------------------------------------------------------------------------- */

/* What the engine says of a case that it knows but does not run. */
static bool unsupported(const ds_error *err)
{
    return err->status == DS_BAD_FILE && strstr(err->text, "support");
}

static golden_result failed_open(pair *p, const ds_error *err)
{
    return golden_say(p->why, p->n_why, unsupported(err) ? GOLDEN_UNSUPPORTED : GOLDEN_FAILED, "%s",
                      err->text);
}

static golden_result reopen(pair *p, int bits, int window)
{
    ds_error err;
    ds_drafter_opts opts;
    ds_drafter_defaults(&opts);
    opts.bits = bits;
    if (window)
        opts.window = window;
    ds_drafter_close(p->drafter);
    return ds_drafter_open(&p->drafter, p->files, p->target, &opts, &err) ? failed_open(p, &err)
                                                                          : GOLDEN_PASSED;
}

static golden_result open_pair(pair *p)
{
    ds_error err;
    char path[1024];
    golden_path(p->c, "drafter.gguf", path, sizeof path);
    if (!ds_file_exists(path))
        golden_path(p->c, ".", path, sizeof path);
    if (ds_checkpoint_open(&p->files, path, &err))
        return failed_open(p, &err);
    golden_path(p->c, json_string_value(json_object_get(p->c->json, "target")), path, sizeof path);
    if (ds_checkpoint_open(&p->target_files, path, &err) ||
        ds_model_open(&p->target, p->target_files, golden_backend(), NULL, &err))
        return failed_open(p, &err);
    return reopen(p, 0, 0);
}

static void close_pair(pair *p)
{
    ds_drafter_close(p->drafter);
    ds_model_close(p->target);
    ds_checkpoint_close(p->files);
    ds_checkpoint_close(p->target_files);
    free(p->ids);
}

static bool fail(pair *p, const char *what, const ds_error *err)
{
    golden_say(p->why, p->n_why, GOLDEN_FAILED, "%s: %s", what, err->text);
    return false;
}

static int argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* --- single blocks ---------------------------------------------------------------------------- */

static bool same_inspected(pair *p, ds_draft_state *s, const char *prefix, const char *which,
                           const char *array)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s", prefix, array);
    const golden_array *want = golden_want(p->c, name, 0, 0, p->why, p->n_why);
    if (!want)
        return false;
    float *got = malloc(want->count * sizeof *got);
    size_t n = got ? ds_draft_inspect(s, which, got, want->count) : 0;
    bool ok = n == want->count;
    if (!ok)
        golden_say(p->why, p->n_why, GOLDEN_FAILED, "%s has %zu values, expected %zu", name, n, want->count);
    ok = ok && golden_close(p->c, name, got, want->f, n, GOLDEN_TOL_LOGITS, false, p->why, p->n_why);
    free(got);
    return ok;
}

/* Drafts a full block and compares everything of it. key: the list of expected ids in golden.json. */
static bool same_block(pair *p, ds_draft_state *s, int32_t pending, const char *prefix, const char *key)
{
    ds_error err;
    ds_draft draft;
    const ds_drafter_info *info = ds_drafter_get(p->drafter);
    int n;
    int32_t *want = golden_ids(p->c->json, key, &n);
    bool ok =
        !ds_draft_propose(s, pending, info->max_draft, NULL, NULL, &draft, &err) || fail(p, prefix, &err);
    ok = ok && same_inspected(p, s, prefix, "hidden", "hidden") &&
         same_inspected(p, s, prefix, "base_logits", "base_logits") &&
         same_inspected(p, s, prefix, "step_logits", "step_logits");
    char name[64];
    snprintf(name, sizeof name, "%sconfidence", prefix);
    const golden_array *confidence = golden_find(p->c, name);
    if (ok && info->has_confidence != (confidence != NULL)) {
        golden_say(p->why, p->n_why, GOLDEN_FAILED, "the drafter %s a confidence head",
                   info->has_confidence ? "should not have" : "lacks");
        ok = false;
    }
    if (ok && confidence)
        ok = golden_close(p->c, name, draft.confidence, confidence->f, (size_t)draft.n, GOLDEN_TOL_PROB, true,
                          p->why, p->n_why);
    if (ok && n != draft.n) {
        golden_say(p->why, p->n_why, GOLDEN_FAILED, "%s has %d ids, expected %d", key, draft.n, n);
        ok = false;
    }
    ok = ok && golden_same(key, draft.ids, want, n, p->why, p->n_why);
    free(want);
    return ok;
}

static bool append_array(pair *p, ds_draft_state *s, const char *name)
{
    ds_error err;
    ds_backend *be = golden_backend();
    const golden_array *rows = golden_want(p->c, name, 0, 0, p->why, p->n_why);
    if (!rows)
        return false;
    float *mem = be->mem_alloc(be, rows->count * sizeof *mem);
    if (!mem) {
        golden_say(p->why, p->n_why, GOLDEN_FAILED, "out of memory");
        return false;
    }
    be->upload(be, mem, rows->f, rows->count * sizeof *mem);
    bool ok = !ds_draft_append(s, mem, (int)rows->dims[0], &err) && !be->sync(be, &err);
    be->mem_free(be, mem);
    return ok || fail(p, name, &err);
}

/* The first block from the file's tapped rows. */
static bool block_from_file(pair *p, const char *prefix, const char *key, bool second)
{
    ds_error err;
    ds_draft_state *s = NULL;
    if (ds_draft_state_open(&s, p->drafter, CAPACITY, &err))
        return fail(p, "state", &err);
    bool ok = append_array(p, s, "ctx");
    if (ok && strcmp(prefix, "b1.") == 0)
        ok = same_inspected(p, s, "", "fused", "ctx_fused");
    ok = ok && same_block(p, s, golden_int(p->c->json, "pending", -1), prefix, key);
    if (ok && second)
        ok = append_array(p, s, "ctx2") &&
             same_block(p, s, golden_int(p->c->json, "pending2", -1), "b2.", "draft2");
    ds_draft_state_close(s);
    return ok;
}

/* --- the same bits however a draft comes about --- */

typedef struct {
    ds_draft draft;
    float *logits; /* [max_draft][vocab_out] */
} drafted;

static int pick_largest(void *user, int slot, const float *logits, int n)
{
    (void)user;
    (void)slot;
    return argmax(logits, n);
}

static bool draft_again(pair *p, ds_draft_state *s, int cap, ds_draft_pick pick, drafted *out)
{
    ds_error err;
    const ds_drafter_info *info = ds_drafter_get(p->drafter);
    size_t n = (size_t)cap * (size_t)info->vocab_out;
    if (ds_draft_propose(s, golden_int(p->c->json, "pending", -1), cap, pick, NULL, &out->draft, &err))
        return fail(p, "draft", &err);
    return ds_draft_inspect(s, "step_logits", out->logits, n) == n;
}

static bool same_drafts(pair *p, const char *what, const drafted *got, const drafted *want)
{
    int n = got->draft.n;
    size_t row = (size_t)ds_drafter_get(p->drafter)->vocab_out * sizeof *got->logits;
    bool ok = memcmp(got->draft.ids, want->draft.ids, (size_t)n * sizeof *got->draft.ids) == 0 &&
              memcmp(got->draft.confidence, want->draft.confidence,
                     (size_t)n * sizeof *got->draft.confidence) == 0 &&
              memcmp(got->logits, want->logits, (size_t)n * row) == 0;
    if (!ok)
        golden_say(p->why, p->n_why, GOLDEN_FAILED, "a draft of %d has other bits %s", n, what);
    return ok;
}

static bool exact_bits(pair *p, ds_draft_state *s, ds_draft_state *pieces, drafted *want, drafted *got)
{
    ds_error err;
    ds_backend *be = golden_backend();
    const golden_array *rows = golden_find(p->c, "ctx");
    int n = (int)rows->dims[0], max = ds_drafter_get(p->drafter)->max_draft;
    float *mem = be->mem_alloc(be, rows->count * sizeof *mem);
    bool ok = mem != NULL;
    if (ok) {
        be->upload(be, mem, rows->f, rows->count * sizeof *mem);
        ok = !ds_draft_append(s, mem, n, &err) || fail(p, "append", &err);
    }
    ok = ok && draft_again(p, s, max, NULL, want);
    for (int i = 0, step = 1; ok && i < n; i += step, step = step % 4 + 1) {
        step = step < n - i ? step : n - i;
        ok = !ds_draft_append(pieces, mem + (size_t)i * rows->dims[1], step, &err) || fail(p, "append", &err);
    }
    ok = ok && draft_again(p, pieces, max, NULL, got) &&
         same_drafts(p, "when its context came in pieces", got, want);
    for (int cap = 1; ok && cap <= max; cap++)
        ok = draft_again(p, s, cap, NULL, got) && same_drafts(p, "under a smaller cap", got, want);
    ok = ok && draft_again(p, s, max, pick_largest, got) && same_drafts(p, "when the host picks", got, want);
    for (int keep = n - 5; ok && keep <= n; keep += 5) {
        ok = (!ds_draft_append(s, mem, 7, &err) || fail(p, "append", &err)) &&
             draft_again(p, s, max, NULL, got);
        ds_draft_rollback(s, keep);
        if (ok && keep < n)
            ok = !ds_draft_append(s, mem + (size_t)keep * rows->dims[1], n - keep, &err) ||
                 fail(p, "append", &err);
        ok = ok && draft_again(p, s, max, NULL, got) && same_drafts(p, "after a rollback", got, want);
    }
    be->mem_free(be, mem);
    return ok;
}

static bool same_bits(pair *p)
{
    ds_error err;
    ds_draft_state *s = NULL, *pieces = NULL;
    const ds_drafter_info *info = ds_drafter_get(p->drafter);
    size_t bytes = (size_t)info->max_draft * (size_t)info->vocab_out * sizeof(float);
    drafted want = {.logits = malloc(bytes)}, got = {.logits = malloc(bytes)};
    bool ok = (!ds_draft_state_open(&s, p->drafter, CAPACITY, &err) &&
               !ds_draft_state_open(&pieces, p->drafter, CAPACITY, &err)) ||
              fail(p, "state", &err);
    ok = ok && want.logits && got.logits && exact_bits(p, s, pieces, &want, &got);
    ds_draft_state_close(s);
    ds_draft_state_close(pieces);
    free(want.logits);
    free(got.logits);
    return ok;
}

/* --- a round with the target ------------------------------------------------------------------ */

static bool close_rows(pair *p, const char *name, const float *rows)
{
    ds_error err;
    ds_backend *be = golden_backend();
    const golden_array *want = golden_want(p->c, name, 0, 0, p->why, p->n_why);
    float *got = want ? malloc(want->count * sizeof *got) : NULL;
    bool ok = got && (!be->download(be, got, rows, want->count * sizeof *got, &err) || fail(p, name, &err)) &&
              golden_close(p->c, name, got, want->f, want->count, GOLDEN_TOL_LOGITS, false, p->why, p->n_why);
    free(got);
    return ok;
}

/* What the target chooses after each of n rows. */
static bool choices(pair *p, const ds_forward *f, int n, int32_t *out)
{
    ds_error err;
    ds_backend *be = golden_backend();
    int vocab = ds_model_get(p->target)->vocab;
    float *rows = malloc((size_t)n * (size_t)vocab * sizeof *rows);
    bool ok = rows && (!be->download(be, rows, f->logits, (size_t)n * (size_t)vocab * sizeof *rows, &err) ||
                       fail(p, "logits", &err));
    for (int i = 0; ok && i < n; i++)
        out[i] = argmax(rows + (size_t)i * (size_t)vocab, vocab);
    free(rows);
    return ok;
}

static bool feed(pair *p, ds_state *s, const int32_t *ids, int n, int logits_from, ds_forward *f)
{
    ds_error err;
    ds_span span = {.state = s, .ids = ids, .n = n, .logits_from = logits_from};
    return !ds_model_forward(p->target, &span, 1, f, &err) || fail(p, "target", &err);
}

static bool expect_int(pair *p, const char *what, int got, int want)
{
    if (got != want)
        golden_say(p->why, p->n_why, GOLDEN_FAILED, "%s is %d, expected %d", what, got, want);
    return got == want;
}

/* Prompt, first draft, its verification, second draft: everything from the engine's own rows. */
static bool round_with_target(pair *p, ds_state *s, ds_draft_state *ds)
{
    ds_error err;
    ds_forward f;
    int n = ds_drafter_get(p->drafter)->max_draft, accepted = 0, n_draft;
    int32_t fed[DS_MAX_DRAFT + 1], chosen[DS_MAX_DRAFT + 1];
    int32_t *draft = golden_ids(p->c->json, "draft1", &n_draft);
    bool ok = draft && expect_int(p, "draft1's length", n_draft, n) &&
              feed(p, s, p->ids, p->n_ids, p->n_ids - 1, &f) && close_rows(p, "ctx", f.taps) &&
              choices(p, &f, 1, chosen) &&
              expect_int(p, "pending", chosen[0], golden_int(p->c->json, "pending", -1)) &&
              (!ds_draft_append(ds, f.taps, p->n_ids, &err) || fail(p, "append", &err)) &&
              same_block(p, ds, chosen[0], "b1.", "draft1");
    if (ok) {
        fed[0] = chosen[0];
        memcpy(fed + 1, draft, (size_t)n * sizeof *fed);
        ok = feed(p, s, fed, n + 1, 0, &f) && close_rows(p, "verify_logits", f.logits) &&
             choices(p, &f, n + 1, chosen);
    }
    if (ok) {
        while (accepted < n && chosen[accepted] == fed[accepted + 1])
            accepted++;
        ok = expect_int(p, "accepted1", accepted, golden_int(p->c->json, "accepted1", -1)) &&
             expect_int(p, "pending2", chosen[accepted], golden_int(p->c->json, "pending2", -1)) &&
             close_rows(p, "ctx2", f.taps) &&
             (!ds_draft_append(ds, f.taps, accepted + 1, &err) || fail(p, "append", &err)) &&
             same_block(p, ds, chosen[accepted], "b2.", "draft2");
    }
    free(draft);
    return ok;
}

static bool with_target(pair *p)
{
    ds_error err;
    ds_state *s = NULL;
    ds_draft_state *ds = NULL;
    bool ok = (!ds_state_open(&s, p->target, CAPACITY, &err) &&
               !ds_draft_state_open(&ds, p->drafter, CAPACITY, &err)) ||
              fail(p, "state", &err);
    ok = ok && round_with_target(p, s, ds);
    ds_draft_state_close(ds);
    ds_state_close(s);
    return ok;
}

/* --- whole generations ------------------------------------------------------------------------ */

static const char *source_name(ds_source source)
{
    return source == DS_SOURCE_DRAFTER ? "drafter" : source == DS_SOURCE_LOOKUP ? "lookup" : "plain";
}

/* Rounds that would end behind the budget may be clipped by us and not by the reference: from the first
 * such round on, nothing is compared. The reference counts the tokens behind an EOS as committed, we do not.
 */
static bool same_rounds(pair *p, const json_t *run, const ds_round *got, int n, const char *label)
{
    const json_t *rounds = json_object_get(run, "rounds");
    bool stops = json_array_size(json_object_get(run, "eos_ids")) > 0;
    int made = 1;
    for (size_t i = 0; i < json_array_size(rounds); i++) {
        const json_t *want = json_array_get(rounds, i);
        int drafted = (int)json_integer_value(json_array_get(want, 0));
        int accepted = (int)json_integer_value(json_array_get(want, 1));
        int committed = (int)json_integer_value(json_array_get(want, 2));
        const char *source = json_string_value(json_array_get(want, 3));
        if (made + drafted + 1 > MAX_NEW)
            break;
        if ((int)i >= n || got[i].drafted != drafted || got[i].accepted != accepted ||
            (got[i].committed != committed && !(stops && i + 1 == json_array_size(rounds))) ||
            strcmp(source_name(got[i].source), source)) {
            golden_say(p->why, p->n_why, GOLDEN_FAILED,
                       "%s: round %zu is [%d, %d, %d], expected [%d, %d, %d, %s]", label, i,
                       (int)i < n ? got[i].drafted : -1, (int)i < n ? got[i].accepted : -1,
                       (int)i < n ? got[i].committed : -1, drafted, accepted, committed, source);
            return false;
        }
        made += committed;
    }
    return true;
}

static bool generate(pair *p, ds_gen *gen, const char *label)
{
    ds_error err;
    bool done = false;
    while (!done)
        if (ds_gen_prefill(gen, &done, &err))
            return fail(p, label, &err);
    while (ds_gen_finish(gen) == DS_FINISH_NONE)
        if (ds_gen_round(&gen, 1, &err))
            return fail(p, label, &err);
    return true;
}

static bool same_run(pair *p, const json_t *run, const char *label)
{
    ds_error err;
    ds_gen *gen = NULL;
    const json_t *options = json_object_get(run, "options");
    int n_eos, n_want, n_got, n_rounds;
    int32_t *eos = golden_ids(run, "eos_ids", &n_eos), *want = golden_ids(run, "token_ids", &n_want);
    ds_decode_opts opts = {.max_new = MAX_NEW,
                           .max_draft = golden_int(options, "max_draft_tokens", 0),
                           .confidence_threshold = (float)golden_num(options, "confidence_threshold", 0),
                           .eos = eos,
                           .n_eos = n_eos,
                           .ignore_eos = n_eos == 0};
    bool ok = !ds_gen_open(&gen, p->target, p->drafter, p->ids, p->n_ids, CAPACITY, &opts, &err) ||
              fail(p, label, &err);
    ok = ok && generate(p, gen, label);
    if (ok) {
        const int32_t *got = ds_gen_ids(gen, &n_got);
        const ds_round *rounds = ds_gen_rounds(gen, &n_rounds);
        int n = n_want < MAX_NEW ? n_want : MAX_NEW;
        ok = expect_int(p, label, n_got, n) && golden_same(label, got, want, n, p->why, p->n_why) &&
             same_rounds(p, run, rounds, n_rounds, label);
    }
    ds_gen_close(gen);
    free(eos);
    free(want);
    return ok;
}

static bool needs_more(const json_t *options)
{
    return json_is_true(json_object_get(options, "lookup_drafts")) ||
           json_object_get(options, "presence_penalty") || json_object_get(options, "frequency_penalty");
}

static bool same_runs(pair *p)
{
    const json_t *runs = json_object_get(p->c->json, "runs");
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(runs); i++) {
        const json_t *run = json_array_get(runs, i), *options = json_object_get(run, "options");
        char label[32];
        snprintf(label, sizeof label, "run %zu", i);
        if (needs_more(options)) {
            p->skipped++;
            continue;
        }
        ok = reopen(p, golden_int(options, "drafter_bits", 0), golden_int(options, "drafter_window", 0)) ==
                 GOLDEN_PASSED &&
             same_run(p, run, label);
    }
    return ok;
}

int golden_pair(const golden_case *c, char *why, size_t n)
{
    pair p = {.c = c, .why = why, .n_why = n};
    golden_result result = open_pair(&p);
    if (result == GOLDEN_PASSED) {
        p.ids = golden_ids(c->json, "ids", &p.n_ids);
        bool ok = p.ids && block_from_file(&p, "b1.", "draft1", true) && same_bits(&p) && with_target(&p);
        if (ok && golden_find(c, "w12.hidden"))
            ok = reopen(&p, 0, 12) == GOLDEN_PASSED && block_from_file(&p, "w12.", "draft1_window12", false);
        if (ok && golden_find(c, "q4.b1.hidden"))
            ok = reopen(&p, 4, 0) == GOLDEN_PASSED && block_from_file(&p, "q4.b1.", "draft1_q4", false);
        ok = ok && same_runs(&p);
        result = ok ? GOLDEN_PASSED : GOLDEN_FAILED;
        if (ok && p.skipped)
            golden_say(why, n, result, "%d runs with lookup or penalties left out", p.skipped);
    }
    close_pair(&p);
    return result;
}
