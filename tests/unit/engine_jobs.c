/* Requests, jobs and their events on a tiny pair of models. */
#include "engine/core.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DATA    TEST_SOURCE_DIR "/tests/golden/data/"
#define TARGET  DATA "pairs/targets/qwen3"
#define DRAFTER DATA "pairs/p4_vanilla"

static ds_engine *engine; /* with its drafter; of all tests but those of opening and closing */

static ds_engine *open_pair(void)
{
    ds_engine_opts opts = {.target = TARGET, .drafter = DRAFTER, .threads = 2, .context = 2048};
    ds_engine *e;
    ds_error err = {0};
    if (ds_engine_open(&e, &opts, &err))
        fail_msg("%s", err.text);
    return e;
}

static int setup(void **state)
{
    (void)state;
    engine = open_pair();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ds_engine_close(engine);
    return 0;
}

typedef struct {
    ds_stop_reason reason;
    ds_error error;
    int32_t ids[2048];
    int n_ids, usage, prompt_tokens, committed, rounds;
    char text[16384];
    size_t len;
    int events, cancel_at; /* cancel_at: after this many events; 0: never */
    double decode_s, prefill_s, first_token_s;
} result;

static bool collect(void *user, const ds_event *event)
{
    result *r = user;
    r->events++;
    if (event->kind == DS_EVENT_TEXT) {
        assert_int_equal(event->text.data[event->text.len], 0);
        memcpy(r->text + r->len, event->text.data, event->text.len + 1);
        r->len += event->text.len;
    } else if (event->kind == DS_EVENT_END) {
        r->reason = event->end.reason;
        r->error = event->end.error;
        r->n_ids = event->end.n_token_ids;
        r->usage = event->end.usage_tokens;
        r->rounds = event->end.n_rounds;
        r->prompt_tokens = event->end.prompt_tokens;
        r->decode_s = event->end.decode_s;
        r->prefill_s = event->end.prefill_s;
        r->first_token_s = event->end.first_token_s;
        for (int i = 0; i < r->rounds; i++)
            r->committed += event->end.rounds[i].committed;
        if (r->n_ids)
            memcpy(r->ids, event->end.token_ids, sizeof *r->ids * (size_t)r->n_ids);
    }
    return r->events != r->cancel_at;
}

static ds_job *submit(const ds_request *req)
{
    ds_job *job;
    ds_error err = {0};
    if (ds_job_submit(&job, engine, req, &err))
        fail_msg("%s", err.text);
    return job;
}

static ds_status run(result *r, const ds_request *req)
{
    memset(r, 0, sizeof *r);
    ds_job *job = submit(req);
    ds_status status = ds_job_run(job, collect, r);
    const ds_event *event;
    assert_int_equal(ds_job_next(job, &event, -1), DS_OK); /* nothing comes after END */
    assert_null(event);
    ds_job_close(job);
    return status;
}

static const int32_t some_ids[] = {5, 9, 100, 33, 7, 21};

static ds_request request(int max_new)
{
    return (ds_request){.prompt_ids = some_ids,
                        .n_prompt_ids = COUNT(some_ids),
                        .max_new_tokens = max_new,
                        .ignore_eos = true};
}

/* --- what is refused --- */

static void test_open_refusals(void **state)
{
    (void)state;
    static const struct {
        ds_engine_opts opts;
        ds_status status;
        const char *words;
    } cases[] = {
        {{.target = NULL}, DS_INVALID, "target"},
        {{.target = "/nowhere"}, DS_BAD_FILE, "/nowhere"},
        {{.target = TARGET, .drafter = "/nowhere"}, DS_BAD_FILE, "/nowhere"},
        {{.target = DATA "targets/qwen3_q4_g64", .drafter = DRAFTER}, DS_INVALID, ""},
        {{.target = TARGET, .threads = -1}, DS_INVALID, "threads"},
        {{.target = TARGET, .cpu = "z80"}, DS_INVALID, "z80"},
        {{.target = TARGET, .context = 1 << 28}, DS_INVALID, "4096"},
        {{.target = TARGET, .max_draft = 33}, DS_INVALID, "33"},
        {{.target = TARGET, .drafter_bits = 5}, DS_INVALID, "5"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ds_engine *e = (ds_engine *)1;
        ds_error err = {0};
        assert_int_equal(ds_engine_open(&e, &cases[i].opts, &err), cases[i].status);
        assert_int_equal(err.status, cases[i].status);
        assert_null(e);
        if (!strstr(err.text, cases[i].words))
            fail_msg("case %zu: '%s' lacks '%s'", i, err.text, cases[i].words);
    }
}

static void test_request_refusals(void **state)
{
    (void)state;
    static const ds_message user = {"user", "hi"}, odd = {"wizard", "hi"}, bytes = {"user", "\xff"};
    static const char *const empty[] = {""}, *const bad[] = {"\xc3"};
    static const int32_t large[] = {5, 320}, negative[] = {-1};
    static int32_t many[2048];
    const struct {
        ds_request req;
        const char *words;
    } cases[] = {
        {{0}, "exactly one"},
        {{.prompt = "a", .messages = &user, .n_messages = 1}, "exactly one"},
        {{.messages = &user}, "no messages"},
        {{.messages = &odd, .n_messages = 1}, "wizard"},
        {{.messages = &bytes, .n_messages = 1}, "UTF-8"},
        {{.prompt = "\x80"}, "UTF-8"},
        {{.prompt = ""}, "empty"},
        {{.prompt_ids = some_ids}, "empty"},
        {{.prompt_ids = large, .n_prompt_ids = 2}, "320"},
        {{.prompt_ids = negative, .n_prompt_ids = 1}, "-1"},
        {{.prompt_ids = many, .n_prompt_ids = COUNT(many)}, "2048"},
        {{.prompt = "a", .max_new_tokens = -1}, "max_new_tokens"},
        {{.prompt = "a", .temperature = -1}, "temperature"},
        {{.prompt = "a", .top_p = 2}, "top_p"},
        {{.prompt = "a", .top_k = -1}, "top_k"},
        {{.prompt = "a", .min_p = 2}, "min_p"},
        {{.prompt = "a", .stop = empty, .n_stop = 1}, "empty"},
        {{.prompt = "a", .stop = bad, .n_stop = 1}, "UTF-8"},
        {{.prompt = "a", .max_draft = -1}, "max_draft"},
        {{.prompt = "a", .confidence_threshold = 1.5f}, "confidence"},
        {{.prompt = "a", .mode = (ds_mode)9}, "mode"},
        {{.prompt = "a", .rule = (ds_rule)9}, "rule"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ds_job *job = (ds_job *)1;
        ds_error err = {0};
        assert_int_equal(ds_job_submit(&job, engine, &cases[i].req, &err), DS_INVALID);
        assert_null(job);
        if (!strstr(err.text, cases[i].words))
            fail_msg("case %zu: '%s' lacks '%s'", i, err.text, cases[i].words);
    }
}

/* --- what comes back --- */

static void test_modes_agree(void **state)
{
    (void)state;
    static result plain, spec;
    for (int t = 0; t < 2; t++) {
        ds_request req = request(64);
        req.temperature = t ? 0.9f : 0;
        req.seed = 11;
        req.mode = DS_MODE_BASELINE;
        assert_int_equal(run(&plain, &req), DS_OK);
        assert_int_equal(plain.n_ids, 64);
        assert_int_equal(plain.rounds, 63);
        for (int draft = 0; draft < 4; draft++) {
            req.mode = DS_MODE_DSPARK;
            req.max_draft = draft;
            assert_int_equal(run(&spec, &req), DS_OK);
            assert_int_equal(spec.n_ids, 64);
            assert_memory_equal(spec.ids, plain.ids, sizeof *plain.ids * 64);
            assert_int_equal(spec.len, plain.len);
            assert_memory_equal(spec.text, plain.text, plain.len);
            assert_int_equal(spec.committed, 63);
            assert_int_equal(spec.usage, 64);
            assert_int_equal(spec.reason, DS_STOP_LENGTH);
            assert_int_equal(spec.prompt_tokens, COUNT(some_ids));
            assert_true(spec.prefill_s > 0 && spec.decode_s > 0 && spec.first_token_s >= spec.prefill_s);
        }
    }
}

static void test_eos_ends(void **state)
{
    (void)state;
    static result all, cut;
    ds_request req = request(200);
    req.temperature = 1.5f; /* wanders until it meets one */
    for (req.seed = 1; req.seed < 50; req.seed++) {
        req.ignore_eos = true;
        assert_int_equal(run(&all, &req), DS_OK);
        req.ignore_eos = false;
        assert_int_equal(run(&cut, &req), DS_OK);
        assert_memory_equal(cut.ids, all.ids, sizeof *cut.ids * (size_t)cut.n_ids);
        if (cut.reason == DS_STOP_EOS)
            break;
    }
    assert_int_equal(cut.reason, DS_STOP_EOS);
    int32_t last = cut.ids[cut.n_ids - 1];
    assert_true(last >= 0 && last <= 2);
    assert_null(memmem(cut.text, cut.len, "<|", 2));
}

static void test_stop_text(void **state)
{
    (void)state;
    static result full, cut, plain;
    ds_request req = request(40);
    assert_int_equal(run(&full, &req), DS_OK);
    for (size_t at = 0; at + 3 <= full.len; at++) {
        char stop[4] = {full.text[at], full.text[at + 1], full.text[at + 2], 0};
        const char *list[] = {"\x01nothing", stop};
        req.stop = list;
        req.n_stop = 2;
        ds_job *job;
        ds_error err = {0};
        if (ds_job_submit(&job, engine, &req, &err)) /* cut inside a character */
            continue;
        memset(&cut, 0, sizeof cut);
        assert_int_equal(ds_job_run(job, collect, &cut), DS_OK);
        ds_job_close(job);
        assert_int_equal(cut.reason, DS_STOP_TEXT);
        assert_int_equal(cut.len, (size_t)((char *)memmem(full.text, full.len, stop, 3) - full.text));
        assert_memory_equal(cut.text, full.text, cut.len);
        assert_int_equal(cut.usage, cut.n_ids);
        assert_int_equal(cut.committed, cut.n_ids - 1);
        assert_memory_equal(cut.ids, full.ids, sizeof *cut.ids * (size_t)cut.n_ids);
        req.mode = DS_MODE_BASELINE; /* ends with the same token */
        assert_int_equal(run(&plain, &req), DS_OK);
        req.mode = DS_MODE_AUTO;
        assert_int_equal(plain.n_ids, cut.n_ids);
        assert_int_equal(plain.committed, cut.committed);
        assert_memory_equal(plain.ids, cut.ids, sizeof *cut.ids * (size_t)cut.n_ids);
    }
}

static void test_context_ends(void **state)
{
    (void)state;
    static result r;
    ds_request req = request(1 << 20);
    assert_int_equal(run(&r, &req), DS_OK);
    assert_int_equal(r.reason, DS_STOP_LENGTH);
    assert_in_range(r.n_ids + r.prompt_tokens, 2047, 2049);
}

/* --- queues --- */

static void test_cancel(void **state)
{
    (void)state;
    static result r;
    ds_request req = request(2000);
    for (int at = 1; at < 4; at++) {
        ds_job *job = submit(&req);
        memset(&r, 0, sizeof r);
        r.cancel_at = at;
        assert_int_equal(ds_job_run(job, collect, &r), DS_CANCELLED);
        assert_int_equal(r.reason, DS_STOP_CANCELLED);
        assert_true(r.n_ids < 2000);
        ds_job_close(job);
    }
}

/* A job whose reader sleeps waits for it, its events intact; a job behind it can be cancelled at once. */
static void test_slow_reader(void **state)
{
    (void)state;
    static result slow, fast;
    ds_request req = request(400);
    req.mode = DS_MODE_BASELINE; /* an event a token: more than the queue holds */
    assert_int_equal(run(&fast, &req), DS_OK);
    ds_job *job = submit(&req), *behind = submit(&req);
    usleep(300000);
    ds_job_cancel(behind);
    memset(&slow, 0, sizeof slow);
    assert_int_equal(ds_job_run(behind, collect, &slow), DS_CANCELLED);
    assert_int_equal(slow.n_ids, 0);
    ds_job_close(behind);
    memset(&slow, 0, sizeof slow);
    assert_int_equal(ds_job_run(job, collect, &slow), DS_OK);
    assert_int_equal(slow.len, fast.len);
    assert_memory_equal(slow.text, fast.text, fast.len);
    assert_int_equal(slow.n_ids, 400);
    ds_job_close(job);
}

static void test_close_unread(void **state)
{
    (void)state;
    ds_request req = request(2000);
    ds_job *jobs[5];
    for (int i = 0; i < 5; i++)
        jobs[i] = submit(&req);
    usleep(20000);
    for (int i = 0; i < 5; i++)
        ds_job_close(jobs[i * 3 % 5]);
    ds_job_close(NULL);
}

static void test_timeout(void **state)
{
    (void)state;
    ds_request req = request(1500);
    req.mode = DS_MODE_BASELINE;
    ds_job *first = submit(&req), *second = submit(&req); /* the second waits for the first's reader */
    const ds_event *event;
    double begin = ds_now();
    assert_int_equal(ds_job_next(second, &event, 0), DS_OK);
    assert_null(event);
    assert_int_equal(ds_job_next(second, &event, 50), DS_OK);
    assert_null(event);
    assert_true(ds_now() - begin >= 0.045);
    ds_job_close(first);
    ds_job_close(second);
}

/* Jobs outlive their engine: they end as cancelled, and are closed later. */
static void test_engine_closes_first(void **state)
{
    (void)state;
    ds_engine *mine = open_pair();
    ds_request req = request(2000);
    ds_job *jobs[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(ds_job_submit(&jobs[i], mine, &req, NULL), DS_OK);
    usleep(20000);
    ds_engine_close(mine);
    ds_engine_close(NULL);
    for (int i = 0; i < 3; i++) {
        static result r;
        memset(&r, 0, sizeof r);
        assert_int_equal(ds_job_run(jobs[i], collect, &r), DS_CANCELLED);
        ds_job_close(jobs[i]);
    }
}

static void *hammer(void *arg)
{
    (void)arg;
    for (int i = 0; i < 6; i++) {
        result *r = calloc(1, sizeof *r);
        ds_request req = request(20 + i);
        ds_job *job;
        if (ds_job_submit(&job, engine, &req, NULL))
            abort();
        r->cancel_at = i % 3 ? 0 : 2;
        ds_job_run(job, collect, r);
        ds_job_close(job);
        free(r);
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, NULL), 0);
    for (size_t i = 0; i < COUNT(threads); i++)
        pthread_join(threads[i], NULL);
}

/* --- text --- */

static void test_tokenize(void **state)
{
    (void)state;
    int32_t *ids;
    size_t n;
    assert_int_equal(ds_engine_tokenize(engine, "<|im_start|>hi", &ids, &n, NULL), DS_OK);
    assert_true(n >= 2);
    assert_int_equal(ids[0], 1);
    free(ids);
    ds_error err = {0};
    assert_int_equal(ds_engine_tokenize(engine, "\xff", &ids, &n, &err), DS_INVALID);
    assert_null(ids);
}

static void test_messages(void **state)
{
    (void)state;
    static result chat, raw;
    ds_message messages[] = {{"system", "be brief"}, {"user", "hi"}};
    ds_request req = {.messages = messages, .n_messages = 2, .max_new_tokens = 16, .ignore_eos = true};
    assert_int_equal(run(&chat, &req), DS_OK);
    ds_request same = {.prompt = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
                                 "<|im_start|>assistant\n",
                       .max_new_tokens = 16,
                       .ignore_eos = true};
    assert_int_equal(run(&raw, &same), DS_OK);
    assert_int_equal(chat.prompt_tokens, raw.prompt_tokens);
    assert_memory_equal(chat.ids, raw.ids, sizeof *raw.ids * 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_refusals),
        cmocka_unit_test(test_request_refusals),
        cmocka_unit_test(test_modes_agree),
        cmocka_unit_test(test_eos_ends),
        cmocka_unit_test(test_stop_text),
        cmocka_unit_test(test_context_ends),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_close_unread),
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_engine_closes_first),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_tokenize),
        cmocka_unit_test(test_messages),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
