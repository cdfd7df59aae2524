/* Token ids are plain decoding's whatever drafts: over tiny pairs, every draft length, thresholds,
 * limits, ends, and batches. */
#include "decode/decode.h"

#include "decode_pair.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MAX_NEW = 24, SEEDS = 1 };
#else
enum { MAX_NEW = 48, SEEDS = 3 };
#endif
enum { PLAIN = -1 };

static const char *const names[] = {"p4_vanilla", "p4_d2t", "p4_nomarkov", "p4_noconf", "p4_q4target"};

static const ds_sampling settings[] = {
    {0, 1, 0, 0, 0}, {0.8f, 1, 0, 0, 1}, {1, 1, 8, 0, 2}, {0.9f, 0.9f, 0, 0, 3}, {1.2f, 0.95f, 40, 0.02f, 4},
};

typedef struct {
    int32_t ids[64];
    int n;
    ds_finish finish;
    int rounds, drafted, accepted;
} answer;

/* What must hold of any finished generation. */
static answer finish(ds_gen *gen, const ds_decode_opts *opts)
{
    answer a = {.finish = ds_gen_finish(gen)};
    const int32_t *ids = ds_gen_ids(gen, &a.n);
    assert_in_range(a.n, 1, COUNT(a.ids));
    assert_true(a.n <= opts->max_new);
    memcpy(a.ids, ids, (size_t)a.n * sizeof *ids);
    const ds_round *rounds = ds_gen_rounds(gen, &a.rounds);
    int so_far = 1;
    for (int r = 0; r < a.rounds; r++) {
        assert_in_range(rounds[r].committed, 1, rounds[r].accepted + 1);
        assert_in_range(rounds[r].accepted, 0, rounds[r].drafted);
        assert_true(so_far + rounds[r].drafted + 1 <= opts->max_new);
        assert_true(opts->max_draft <= 0 || rounds[r].drafted <= opts->max_draft);
        assert_true(opts->max_draft >= 0 || rounds[r].drafted == 0);
        assert_int_equal(rounds[r].source, rounds[r].drafted ? DS_SOURCE_DRAFTER : DS_SOURCE_PLAIN);
        so_far += rounds[r].committed;
        a.drafted += rounds[r].drafted;
        a.accepted += rounds[r].accepted;
    }
    assert_int_equal(so_far, a.n);
    assert_int_not_equal(a.finish, DS_FINISH_NONE);
    return a;
}

static answer generate(test_pair *p, const ds_decode_opts *opts, int ctx)
{
    ds_gen *gen;
    bool done = false;
    MUST(ds_gen_open(&gen, p->target, p->drafter, p->prompt, p->n_prompt, ctx, opts, err));
    while (!done)
        MUST(ds_gen_prefill(gen, &done, err));
    assert_int_equal(ds_gen_prefilled(gen), p->n_prompt);
    while (ds_gen_finish(gen) == DS_FINISH_NONE)
        MUST(ds_gen_round(&gen, 1, err));
    answer a = finish(gen, opts);
    ds_gen_close(gen);
    return a;
}

static void same(const answer *got, const answer *want, int n, const char *name, const ds_decode_opts *o)
{
    if (got->n != n || memcmp(got->ids, want->ids, (size_t)n * sizeof *got->ids))
        fail_msg(
            "%s, T %g, seed %d, max_draft %d, max_new %d, confidence %g: ids differ from plain decoding's",
            name, (double)o->sampling.temperature, (int)o->sampling.seed, o->max_draft, o->max_new,
            (double)o->confidence_threshold);
}

static void test_drafts_change_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++)
        for (int exact = 0; exact < 2; exact++) {
            test_pair p;
            pair_open(&p, names[i], exact);
            int full = ds_drafter_get(p.drafter)->max_draft, drafted = 0, accepted = 0;
            for (size_t s = 0; s < COUNT(settings); s++)
                for (int seed = 0; seed < SEEDS; seed++) {
                    ds_decode_opts o = {.sampling = settings[s], .max_new = MAX_NEW, .max_draft = PLAIN};
                    o.sampling.seed += (uint64_t)seed * 1000;
                    answer plain = generate(&p, &o, 0);
                    for (o.max_draft = 0; o.max_draft <= full; o.max_draft++) {
                        answer a = generate(&p, &o, 0);
                        same(&a, &plain, MAX_NEW, names[i], &o);
                        drafted += a.drafted;
                        accepted += a.accepted;
                    }
                    o.max_draft = 0;
                    for (int c = 1; c <= 3; c++) {
                        o.confidence_threshold = (const float[]){0.2f, 0.6f, 1}[c - 1];
                        answer a = generate(&p, &o, 0);
                        same(&a, &plain, MAX_NEW, names[i], &o);
                    }
                    if (settings[s].temperature == 0) /* one seed is as good as another */
                        break;
                }
            printf("%s%s: %d of %d drafts accepted\n", names[i], exact ? ", exact" : "", accepted, drafted);
            assert_true(accepted > 0);
            pair_close(&p);
        }
}

static void test_golden_ids(void **state)
{
    (void)state;
    test_pair p;
    pair_open(&p, "p4_vanilla", true);
    ds_decode_opts o = {.max_new = MAX_NEW};
    answer a = generate(&p, &o, 0);
    const json_t *want = json_object_get(p.golden, "greedy_ids");
    for (int i = 0; i < MAX_NEW; i++)
        assert_int_equal(a.ids[i], json_integer_value(json_array_get(want, (size_t)i)));
    pair_close(&p);
}

static void test_limits(void **state)
{
    (void)state;
    test_pair p;
    pair_open(&p, "p4_vanilla", true);
    for (int sampled = 0; sampled < 2; sampled++) {
        ds_decode_opts o = {.sampling = settings[sampled], .max_new = 24, .max_draft = PLAIN};
        answer plain = generate(&p, &o, 0);
        o.max_draft = 0;
        for (o.max_new = 1; o.max_new <= 20; o.max_new++) {
            answer a = generate(&p, &o, 0);
            same(&a, &plain, o.max_new, "max_new", &o);
            assert_int_equal(a.finish, DS_FINISH_LENGTH);
        }
        o.max_new = 24; /* the context ends sooner: as if max_new were smaller */
        for (int room = 1; room <= 12; room++) {
            answer a = generate(&p, &o, p.n_prompt + room);
            same(&a, &plain, room, "context", &o);
            assert_int_equal(a.finish, DS_FINISH_LENGTH);
        }
        for (int at = 0; at < 24;
             at++) { /* at each place of a block: EOS ends, and what follows is dropped */
            int32_t eos[] = {-1, plain.ids[at]};
            int n = 0;
            while (plain.ids[n++] != eos[1])
                ;
            o.eos = eos;
            o.n_eos = COUNT(eos);
            answer a = generate(&p, &o, 0);
            same(&a, &plain, n, "EOS", &o);
            assert_int_equal(a.finish, DS_FINISH_STOP);
            o.ignore_eos = true;
            a = generate(&p, &o, 0);
            same(&a, &plain, 24, "EOS ignored", &o);
            o.ignore_eos = false;
        }
    }
    pair_close(&p);
}

static void test_refusals(void **state)
{
    (void)state;
    test_pair p;
    pair_open(&p, "p4_vanilla", true);
    ds_gen *gen;
    ds_error err;
    ds_decode_opts o = {.max_new = 4};
    char number[16];
    assert_int_equal(ds_gen_open(&gen, p.target, p.drafter, p.prompt, p.n_prompt, p.n_prompt, &o, &err),
                     DS_INVALID);
    assert_null(gen);
    snprintf(number, sizeof number, "%d", p.n_prompt);
    assert_non_null(strstr(err.text, number));
    assert_int_equal(ds_gen_open(&gen, p.target, p.drafter, p.prompt, 0, 0, &o, &err), DS_INVALID);
    assert_int_equal(ds_gen_open(&gen, p.target, p.drafter, (int32_t[]){1, 99999}, 2, 0, &o, &err),
                     DS_INVALID);
    o.max_new = 0;
    assert_int_equal(ds_gen_open(&gen, p.target, p.drafter, p.prompt, p.n_prompt, 0, &o, &err), DS_INVALID);
    o.max_new = 1;
    o.sampling.top_p = 2;
    assert_int_equal(ds_gen_open(&gen, p.target, p.drafter, p.prompt, p.n_prompt, 0, &o, &err), DS_INVALID);
    o.sampling.top_p = 0;
    bool done;
    MUST(ds_gen_open(&gen, p.target, p.drafter, p.prompt, p.n_prompt, 0, &o, err));
    assert_int_equal(ds_gen_round(&gen, 1, &err), DS_INVALID); /* not prefilled */
    MUST(ds_gen_prefill(gen, &done, err));
    assert_int_equal(ds_gen_finish(gen), DS_FINISH_LENGTH);
    assert_int_equal(ds_gen_round(&gen, 1, &err), DS_INVALID); /* ended */
    assert_int_equal(ds_gen_round(&gen, 0, &err), DS_INVALID);
    ds_gen_close(gen);
    ds_gen_close(NULL);
    pair_close(&p);
}

/* Prompts longer than one forward takes. */
static void test_long_prompt(void **state)
{
    (void)state;
    enum { LONG = DS_MAX_ROWS + 100 };
    test_pair p;
    pair_open(&p, "p4_vanilla", false);
    int32_t prompt[LONG];
    for (int i = 0; i < LONG; i++)
        prompt[i] = p.prompt[i * 7 % p.n_prompt];
    for (int sampled = 0; sampled < 2; sampled++) {
        answer answers[2];
        for (int plain = 0; plain < 2; plain++) {
            ds_decode_opts o = {.sampling = settings[sampled], .max_new = 16, .max_draft = plain ? PLAIN : 0};
            ds_gen *gen;
            bool done = false;
            MUST(ds_gen_open(&gen, p.target, p.drafter, prompt, LONG, 0, &o, err));
            MUST(ds_gen_prefill(gen, &done, err));
            assert_false(done);
            assert_int_equal(ds_gen_prefilled(gen), DS_MAX_ROWS);
            MUST(ds_gen_prefill(gen, &done, err));
            assert_true(done);
            while (ds_gen_finish(gen) == DS_FINISH_NONE)
                MUST(ds_gen_round(&gen, 1, err));
            answers[plain] = finish(gen, &o);
            ds_gen_close(gen);
        }
        assert_memory_equal(answers[0].ids, answers[1].ids, 16 * sizeof(int32_t));
    }
    pair_close(&p);
}

/* Greedy, sampled, plain and drafted sequences of different lengths in one batch, which shrinks. */
static void test_batch(void **state)
{
    (void)state;
    enum { N = 10 };
    test_pair p;
    pair_open(&p, "p4_vanilla", false);
    ds_decode_opts opts[N];
    answer alone[N];
    ds_gen *gens[N], *active[N];
    test_pair cut[N];
    for (int i = 0; i < N; i++) {
        opts[i] = (ds_decode_opts){
            .sampling = settings[(size_t)i % COUNT(settings)],
            .max_new = 5 + 4 * i,
            .max_draft = i % 4 == 3 ? PLAIN : i % 3,
        };
        cut[i] = p;
        cut[i].n_prompt = p.n_prompt - i;
        alone[i] = generate(&cut[i], &opts[i], 0);
        bool done = false;
        MUST(ds_gen_open(&gens[i], p.target, p.drafter, p.prompt, cut[i].n_prompt, 0, &opts[i], err));
        while (!done)
            MUST(ds_gen_prefill(gens[i], &done, err));
    }
    for (;;) {
        int n = 0;
        for (int i = N - 1; i >= 0; i--)
            if (ds_gen_finish(gens[i]) == DS_FINISH_NONE)
                active[n++] = gens[i];
        if (!n)
            break;
        MUST(ds_gen_round(active, n, err));
    }
    for (int i = 0; i < N; i++) {
        answer a = finish(gens[i], &opts[i]);
        same(&a, &alone[i], alone[i].n, "batch", &opts[i]);
        assert_int_equal(a.rounds, alone[i].rounds);
        ds_gen_close(gens[i]);
    }
    pair_close(&p);
}

/* The most sequences that a round takes: drafts are shortened so that all fit into one forward. */
static void test_full_batch(void **state)
{
    (void)state;
    enum { LENGTH = 12 };
    test_pair p;
    pair_open(&p, "p4_vanilla", false);
    ds_decode_opts o = {.sampling = settings[1], .max_new = LENGTH};
    ds_gen *gens[DS_MAX_SPANS + 1], *active[DS_MAX_SPANS];
    for (int i = 0; i <= DS_MAX_SPANS; i++) {
        bool done = false;
        o.sampling.seed = (uint64_t)i % 3;
        MUST(ds_gen_open(&gens[i], p.target, p.drafter, p.prompt, p.n_prompt, 0, &o, err));
        MUST(ds_gen_prefill(gens[i], &done, err));
    }
    assert_int_equal(ds_gen_round(gens, DS_MAX_SPANS + 1, NULL), DS_INVALID);
    for (int n = 1; n;) {
        n = 0;
        for (int i = 0; i < DS_MAX_SPANS; i++)
            if (ds_gen_finish(gens[i]) == DS_FINISH_NONE)
                active[n++] = gens[i];
        if (n)
            MUST(ds_gen_round(active, n, err));
    }
    for (int i = 0; i < 3; i++) {
        o.sampling.seed = (uint64_t)i;
        o.max_draft = PLAIN;
        answer plain = generate(&p, &o, 0);
        o.max_draft = 0;
        for (int j = i; j < DS_MAX_SPANS; j += 3) {
            answer a = finish(gens[j], &o);
            same(&a, &plain, LENGTH, "full batch", &o);
        }
    }
    for (int i = 0; i <= DS_MAX_SPANS; i++)
        ds_gen_close(gens[i]);
    pair_close(&p);
}

/* The other rule promises the distribution (decode_accept), and that a run repeats. */
static void test_rejection_repeats(void **state)
{
    (void)state;
    test_pair p;
    pair_open(&p, "p4_d2t", false);
    ds_decode_opts o = {.sampling = settings[3], .accept = DS_ACCEPT_REJECTION, .max_new = MAX_NEW};
    for (o.max_draft = PLAIN; o.max_draft < 3; o.max_draft++) {
        answer a = generate(&p, &o, 0), b = generate(&p, &o, 0);
        same(&a, &b, MAX_NEW, "rejection", &o);
    }
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drafts_change_nothing),
        cmocka_unit_test(test_golden_ids),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_long_prompt),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_full_batch),
        cmocka_unit_test(test_rejection_repeats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
