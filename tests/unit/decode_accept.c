/* Both acceptance rules give the target's own distribution: one generation is prefilled once, then
 * replayed for many seeds, and its tokens are counted against the exact probabilities. */
#include "decode/gen.h"

#include "decode_pair.h"
#include "decode_stats.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEEDS = 1500 };
#else
enum { SEEDS = 20000 };
#endif

enum { TOP_K = 8, MAX_FIRST = 16, AGREED = 30 };

/* p of the token after `ids`, fed behind the prompt. */
static void exact_row(test_pair *p, const ds_sampling *s, const int32_t *ids, int n, ds_dist *out)
{
    ds_state *state;
    ds_forward fwd;
    int vocab = ds_model_get(p->target)->vocab;
    float *row = malloc((size_t)vocab * sizeof *row);
    MUST(ds_state_open(&state, p->target, p->n_prompt + n, err));
    ds_span spans[] = {{state, p->prompt, p->n_prompt, p->n_prompt, false}, {state, ids, n, n - 1, false}};
    MUST(ds_model_forward(p->target, &spans[0], 1, &fwd, err));
    MUST(ds_model_forward(p->target, &spans[1], 1, &fwd, err));
    MUST(p->be->download(p->be, row, fwd.logits, (size_t)vocab * sizeof *row, err));
    MUST(ds_dist_make(out, row, vocab, s, err));
    ds_state_close(state);
    free(row);
}

static int index_of(const ds_dist *d, int32_t id)
{
    for (int i = 0; i < d->n; i++)
        if (d->ids[i] == id)
            return i;
    return -1;
}

static void check_rule(const char *name, ds_accept_rule rule, int max_draft)
{
    test_pair p;
    pair_open(&p, name, true);
    pair_prompt(&p, "greedy_ids", AGREED); /* to where the drafter is often right */
    ds_decode_opts opts = {
        .sampling = {.temperature = 1, .top_p = 1, .top_k = TOP_K},
        .accept = rule,
        .max_new = 40,
        .max_draft = max_draft,
    };
    ds_gen *gen;
    bool done = false;
    MUST(ds_gen_open(&gen, p.target, p.drafter, p.prompt, p.n_prompt, 0, &opts, err));
    while (!done)
        MUST(ds_gen_prefill(gen, &done, err));

    int32_t pending = gen->ids[0];
    ds_dist first = {0}, second[MAX_FIRST] = {0};
    exact_row(&p, &opts.sampling, &pending, 1, &first);
    assert_in_range(first.n, 2, MAX_FIRST);
    for (int i = 0; i < first.n; i++) {
        exact_row(&p, &opts.sampling, (int32_t[]){pending, first.ids[i]}, 2, &second[i]);
        assert_in_range(second[i].n, 1, MAX_FIRST);
    }

    double one[MAX_FIRST] = {0}, one_expected[MAX_FIRST] = {0};
    double two[MAX_FIRST * MAX_FIRST] = {0}, two_expected[MAX_FIRST * MAX_FIRST] = {0};
    int accepted = 0, rounds = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        gen->opts.sampling.seed = (uint64_t)seed;
        gen->n_ids = 1;
        gen->n_rounds = 0;
        ds_state_rollback(gen->state, p.n_prompt);
        ds_draft_rollback(gen->draft_state, p.n_prompt);
        while (gen->n_ids < 3)
            MUST(ds_gen_round(&gen, 1, err));
        for (int r = 0; r < gen->n_rounds; r++, rounds++)
            accepted += gen->rounds[r].accepted;
        int i = index_of(&first, gen->ids[1]);
        assert_true(i >= 0);
        int j = index_of(&second[i], gen->ids[2]);
        assert_true(j >= 0);
        one[i]++;
        two[i * MAX_FIRST + j]++;
    }
    for (int i = 0; i < first.n; i++) {
        one_expected[i] = (double)first.p[i] * SEEDS;
        for (int j = 0; j < second[i].n; j++)
            two_expected[i * MAX_FIRST + j] = (double)first.p[i] * (double)second[i].p[j] * SEEDS;
    }
    double z1 = chi_square_z(one, one_expected, MAX_FIRST);
    double z2 = chi_square_z(two, two_expected, MAX_FIRST * MAX_FIRST);
    printf("%s, %s, drafts of %d: %.2f accepted a round; deviations: first token %.2f, two tokens %.2f\n",
           name, rule == DS_ACCEPT_COUPLED ? "coupled" : "rejection", max_draft, (double)accepted / rounds,
           z1, z2);
    assert_true(accepted > 0); /* or nothing was tested */
    assert_true(z1 < CHI_LIMIT && z2 < CHI_LIMIT);

    for (int i = 0; i < first.n; i++)
        ds_dist_release(&second[i]);
    ds_dist_release(&first);
    ds_gen_close(gen);
    pair_close(&p);
}

static void test_coupled(void **state)
{
    (void)state;
    check_rule("p4_vanilla", DS_ACCEPT_COUPLED, 3);
}

static void test_rejection(void **state)
{
    (void)state;
    check_rule("p4_vanilla", DS_ACCEPT_REJECTION, 3);
}

static void test_rejection_reduced_vocabulary(void **state)
{
    (void)state;
    check_rule("p4_d2t", DS_ACCEPT_REJECTION, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coupled),
        cmocka_unit_test(test_rejection),
        cmocka_unit_test(test_rejection_reduced_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
