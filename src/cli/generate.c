#include "cli/cli.h"

#include "base/buf.h"
#include "bench/sha.h"
#include "bench/tally.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- Ctrl-C: the first ends the answer, the second the program --- */

static volatile sig_atomic_t interrupted, answering;

static void on_interrupt(int signal)
{
    (void)signal;
    if (!answering || interrupted)
        _exit(130);
    interrupted = 1;
}

static void catch_interrupts(void)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

/* --- the prompt --- */

static ds_status read_prompt(ds_buf *out, const cli_args *args, ds_error *err)
{
    enum { MAX_BYTES = 64 << 20 };
    if (!args->prompt == !args->prompt_file)
        return ds_fail(err, DS_INVALID, "dspark generate needs either --prompt TEXT or --prompt-file FILE");
    out->max = MAX_BYTES;
    if (args->prompt) {
        ds_buf_str(out, args->prompt);
    } else {
        bool piped = !strcmp(args->prompt_file, "-");
        const char *name = piped ? "standard input" : args->prompt_file;
        FILE *file = piped ? stdin : fopen(args->prompt_file, "rb");
        if (!file)
            return ds_fail(err, DS_INVALID, "%s: %s", name, strerror(errno));
        char chunk[16384];
        for (size_t n; !out->failed && (n = fread(chunk, 1, sizeof chunk, file)) > 0;)
            ds_buf_add(out, chunk, n);
        bool bad = ferror(file);
        int reason = errno;
        if (!piped)
            fclose(file);
        if (bad)
            return ds_fail(err, DS_INVALID, "%s: %s", name, strerror(reason));
    }
    if (out->failed)
        return ds_fail(err, DS_INVALID, "the prompt is larger than %d MB", MAX_BYTES >> 20);
    if (!out->len)
        return ds_fail(err, DS_INVALID, "the prompt is empty");
    if (memchr(out->data, 0, out->len))
        return ds_fail(err, DS_INVALID, "the prompt contains a NUL byte");
    json_t *string = json_stringn(out->data, out->len); /* jansson refuses what is not UTF-8 */
    json_decref(string);
    return string ? DS_OK : ds_fail(err, DS_INVALID, "the prompt is not valid UTF-8");
}

/* --- one answer --- */

typedef struct {
    ds_buf text;
    ds_stop_reason reason;
    int prompt_tokens;
    int usage_tokens;
    int32_t *ids;
    int n_ids;
    ds_round_info *rounds;
    int n_rounds;
    double prefill_s, decode_s, first_token_s;
    ds_tally tally;
    bool closed; /* standard output takes no more */
} answer;

static void answer_release(answer *a)
{
    ds_buf_release(&a->text);
    free(a->ids);
    free(a->rounds);
}

/* Everything of END, copied: the job is closed before the answer is reported. */
static ds_status keep_end(answer *a, const ds_event *event, ds_error *err)
{
    a->reason = event->end.reason;
    a->prompt_tokens = event->end.prompt_tokens;
    a->usage_tokens = event->end.usage_tokens;
    a->n_ids = event->end.n_token_ids;
    a->n_rounds = event->end.n_rounds;
    a->prefill_s = event->end.prefill_s;
    a->decode_s = event->end.decode_s;
    a->first_token_s = event->end.first_token_s;
    if (a->reason == DS_STOP_ERROR) {
        *err = event->end.error;
        return err->status ? err->status : DS_INTERNAL;
    }
    a->ids = malloc(sizeof *a->ids * (size_t)(a->n_ids + 1));
    a->rounds = malloc(sizeof *a->rounds * (size_t)(a->n_rounds + 1));
    if (!a->ids || !a->rounds)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for the result");
    if (a->n_ids)
        memcpy(a->ids, event->end.token_ids, sizeof *a->ids * (size_t)a->n_ids);
    if (a->n_rounds)
        memcpy(a->rounds, event->end.rounds, sizeof *a->rounds * (size_t)a->n_rounds);
    ds_tally_add(&a->tally, event);
    return DS_OK;
}

static ds_status run_answer(answer *a, ds_engine *engine, const ds_request *req, bool stream, ds_error *err)
{
    ds_job *job;
    ds_status status = ds_job_submit(&job, engine, req, err);
    if (status)
        return status;
    bool cancelled = false, ended = false;
    while (!ended) {
        const ds_event *event;
        ds_job_next(job, &event, 50); /* so that an interrupt is seen soon */
        if ((interrupted || a->closed) && !cancelled) {
            ds_job_cancel(job);
            cancelled = true;
        }
        if (!event)
            continue;
        if (event->kind == DS_EVENT_TEXT) {
            ds_buf_add(&a->text, event->text.data, event->text.len);
            if (stream && !a->closed)
                a->closed = !cli_write(event->text.data, event->text.len);
        } else if (event->kind == DS_EVENT_END) {
            ended = true;
            if (!status)
                status = keep_end(a, event, err);
        }
    }
    ds_job_close(job);
    if (a->text.failed && !status)
        status = ds_fail(err, DS_NO_MEMORY, "out of memory for the answer");
    return status;
}

/* --- results as JSON --- */

static const char *reason_name(ds_stop_reason reason)
{
    switch (reason) {
    case DS_STOP_EOS:
    case DS_STOP_TEXT:
        return "stop";
    case DS_STOP_LENGTH:
        return "length";
    case DS_STOP_CANCELLED:
        return "cancelled";
    case DS_STOP_ERROR:
        break;
    }
    return "error";
}

static json_t *answer_json(const answer *a)
{
    json_t *ids = json_array(), *rounds = json_array();
    for (int i = 0; i < a->n_ids; i++)
        json_array_append_new(ids, json_integer(a->ids[i]));
    for (int i = 0; i < a->n_rounds; i++)
        json_array_append_new(rounds, json_pack("[i,i,i,s]", a->rounds[i].drafted, a->rounds[i].accepted,
                                                a->rounds[i].committed, a->rounds[i].source));
    return json_pack(
        "{s:s#, s:o, s:i, s:i, s:s, s:o, s:f, s:f, s:f, s:f, s:f, s:f}", "text", ds_buf_text(&a->text),
        (int)a->text.len, "token_ids", ids, "prompt_tokens", a->prompt_tokens, "generated_tokens",
        a->usage_tokens, "finish_reason", reason_name(a->reason), "rounds", rounds, "prefill_s", a->prefill_s,
        "decode_s", a->decode_s, "first_token_s", a->first_token_s, "tokens_per_s", ds_tally_speed(&a->tally),
        "e2e_tokens_per_s", ds_tally_e2e_speed(&a->tally), "tokens_per_round", ds_tally_per_round(&a->tally));
}

static int print_signed(json_t *result, const cli_args *args, ds_engine *engine)
{
    const ds_engine_info *info = ds_engine_get(engine);
    ds_error err = {0};
    if (!result || ds_result_sign(result, args->model, info->threads, info->isa, &err)) {
        json_decref(result);
        if (!err.status)
            ds_fail(&err, DS_NO_MEMORY, "out of memory for the result");
        return cli_fail(&err);
    }
    return cli_print_json(result);
}

/* --- dspark generate --- */

static void summary(const answer *a)
{
    fprintf(stderr, "%d tokens, %.1f tokens/s", a->usage_tokens, ds_tally_speed(&a->tally));
    if (a->tally.drafted)
        fprintf(stderr, ", %.2f tokens a round", ds_tally_per_round(&a->tally));
    fprintf(stderr, ", first token after %.0f ms\n", a->first_token_s * 1e3);
}

static int plain_answer(const cli_args *args, ds_engine *engine, const ds_request *req)
{
    answer a = {0};
    ds_error err = {0};
    bool stream = !args->json && !args->no_stream;
    ds_status status = run_answer(&a, engine, req, stream, &err);
    answering = 0;
    int code = status ? cli_exit_code(status) : interrupted ? 130 : 0;
    if (stream && a.text.len && !a.closed)
        cli_write("\n", 1);
    if (status) {
        cli_fail(&err);
    } else if (args->json) {
        int printed = print_signed(answer_json(&a), args, engine);
        code = printed ? printed : code;
    } else {
        if (!stream) {
            ds_buf_str(&a.text, "\n");
            cli_write(ds_buf_text(&a.text), a.text.len);
        }
        if (isatty(STDERR_FILENO))
            summary(&a);
    }
    answer_release(&a);
    return code;
}

static bool same_ids(const answer *a, const answer *b)
{
    return a->ids && b->ids && a->n_ids == b->n_ids &&
           !memcmp(a->ids, b->ids, sizeof *a->ids * (size_t)a->n_ids);
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static double prefill_speed(const answer *a)
{
    return ratio(a->prompt_tokens, a->prefill_s);
}

static void compare_table(const answer *plain, const answer *spec)
{
    double slow = ds_tally_speed(&plain->tally), fast = ds_tally_speed(&spec->tally);
    printf("\n%-22s %12s %12s\n", "", "plain", "speculative");
    printf("%-22s %12d %12d\n", "tokens", plain->usage_tokens, spec->usage_tokens);
    printf("%-22s %12.1f %12.1f\n", "tokens/s", slow, fast);
    printf("%-22s %12s %11.2fx\n", "speedup", "", ratio(fast, slow));
    printf("%-22s %12.2f %12.2f\n", "tokens per round", ds_tally_per_round(&plain->tally),
           ds_tally_per_round(&spec->tally));
    printf("%-22s %12.0f %12.0f\n", "prefill tokens/s", prefill_speed(plain), prefill_speed(spec));
    printf("%-22s %9.0f ms %9.0f ms\n", "time to first token", plain->first_token_s * 1e3,
           spec->first_token_s * 1e3);
    printf("accepted by position  ");
    for (int i = 0; i < DS_TALLY_POSITIONS && spec->tally.tried[i]; i++)
        printf(" %.0f%%", 100 * ratio(spec->tally.taken[i], spec->tally.tried[i]));
    printf("\nidentical: %s\n", same_ids(plain, spec) ? "yes" : "no");
}

static json_t *compare_json(const answer *plain, const answer *spec)
{
    json_t *positions = json_array();
    for (int i = 0; i < DS_TALLY_POSITIONS && spec->tally.tried[i]; i++)
        json_array_append_new(positions, json_real(ratio(spec->tally.taken[i], spec->tally.tried[i])));
    double slow = ds_tally_speed(&plain->tally), fast = ds_tally_speed(&spec->tally);
    return json_pack("{s:o, s:o, s:f, s:f, s:f, s:f, s:o, s:f, s:f, s:b}", "plain", answer_json(plain),
                     "spec", answer_json(spec), "plain_tokens_per_s", slow, "spec_tokens_per_s", fast,
                     "speedup", ratio(fast, slow), "tokens_per_round", ds_tally_per_round(&spec->tally),
                     "acceptance_by_position", positions, "prefill_tokens_per_s", prefill_speed(spec),
                     "first_token_s", spec->first_token_s, "identical", same_ids(plain, spec));
}

static int compare(const cli_args *args, ds_engine *engine, ds_request *req)
{
    static const char *const titles[] = {"--- plain ---\n", "\n--- speculative ---\n"};
    answer a[2] = {{.reason = DS_STOP_CANCELLED}, {.reason = DS_STOP_CANCELLED}};
    ds_error err = {0};
    ds_status status = DS_OK;
    bool stream = !args->json && !args->no_stream, whole = !args->json && args->no_stream, closed = false;
    for (int i = 0; i < 2 && !status && !interrupted && !closed; i++) {
        req->mode = i ? DS_MODE_DSPARK : DS_MODE_BASELINE;
        if (stream)
            closed = !cli_write(titles[i], strlen(titles[i]));
        if (closed)
            break;
        status = run_answer(&a[i], engine, req, stream, &err);
        closed = a[i].closed;
        if (whole && !status)
            closed = !cli_write(titles[i], strlen(titles[i])) ||
                     !cli_write(ds_buf_text(&a[i].text), a[i].text.len);
        if ((stream || (whole && !status)) && !closed)
            closed = !cli_write("\n", 1);
    }
    answering = 0;
    int code = interrupted ? 130 : 0;
    if (status) {
        code = cli_fail(&err);
    } else if (args->json) {
        int printed = print_signed(compare_json(&a[0], &a[1]), args, engine);
        code = printed ? printed : code;
    } else if (!closed && !interrupted) {
        compare_table(&a[0], &a[1]);
    }
    answer_release(&a[0]);
    answer_release(&a[1]);
    return code;
}

static bool is_utf8(const char *text)
{
    json_t *string = json_string(text); /* jansson refuses what is not UTF-8 */
    json_decref(string);
    return string != NULL;
}

/* What options ask for together, before anything is read or loaded. */
static ds_status check_args(const cli_args *args, ds_error *err)
{
    if (args->no_chat_template && args->system)
        return ds_fail(err, DS_INVALID, "--system needs the chat template: leave out --no-chat-template");
    if (args->compare && args->mode == DS_MODE_BASELINE)
        return ds_fail(err, DS_INVALID, "--compare answers in both modes: leave out --mode baseline");
    if ((args->compare || args->mode == DS_MODE_DSPARK) && !args->drafter)
        return ds_fail(err, DS_INVALID, "%s needs a drafter: give --drafter PATH",
                       args->compare ? "--compare" : "--mode dspark");
    if (args->system && !is_utf8(args->system))
        return ds_fail(err, DS_INVALID, "--system is not valid UTF-8");
    for (size_t i = 0; i < args->stop.n; i++)
        if (!args->stop.at[i][0] || !is_utf8(args->stop.at[i]))
            return ds_fail(err, DS_INVALID, "--stop is %s",
                           args->stop.at[i][0] ? "not valid UTF-8" : "empty: it needs a text");
    return DS_OK;
}

int cli_generate(const cli_args *args)
{
    ds_buf prompt = {0};
    ds_error err = {0};
    ds_engine *engine = NULL;
    int code = 0;
    catch_interrupts();
    ds_status status = check_args(args, &err);
    if (!status)
        status = read_prompt(&prompt, args, &err);
    if (!status)
        status = cli_open(&engine, args, false, &err);
    if (status) {
        code = cli_fail(&err);
        goto done;
    }
    ds_message messages[2];
    size_t n_messages = 0;
    if (args->system)
        messages[n_messages++] = (ds_message){"system", args->system};
    messages[n_messages++] = (ds_message){"user", ds_buf_text(&prompt)};
    ds_request req = {
        .messages = args->no_chat_template ? NULL : messages,
        .n_messages = args->no_chat_template ? 0 : n_messages,
        .prompt = args->no_chat_template ? ds_buf_text(&prompt) : NULL,
        .max_new_tokens = args->max_new_tokens,
        .temperature = (float)args->temperature,
        .top_p = (float)args->top_p,
        .top_k = args->top_k,
        .min_p = (float)args->min_p,
        .seed = args->seed,
        .stop = args->stop.at,
        .n_stop = args->stop.n,
        .ignore_eos = args->ignore_eos,
        .mode = (ds_mode)args->mode,
        .max_draft = args->max_draft,
        .confidence_threshold = (float)args->confidence_threshold,
        .rule = (ds_rule)args->accept,
    };
    answering = 1;
    code = args->compare ? compare(args, engine, &req) : plain_answer(args, engine, &req);
done:
    ds_engine_close(engine);
    ds_buf_release(&prompt);
    return code;
}
