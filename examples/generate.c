/* Answers one prompt: generate MODEL [DRAFTER] PROMPT
 *
 *   cc generate.c $(pkg-config --cflags --libs dspark) -o generate */
#include <dspark/engine.h>

#include <stdio.h>

static void on_log(void *user, int level, const char *line)
{
    (void)user;
    if (level >= 2)
        fprintf(stderr, "%s\n", line);
}

static bool on_event(void *user, const ds_event *event)
{
    int *rounds = user;
    switch (event->kind) {
    case DS_EVENT_PREFILL:
        break;
    case DS_EVENT_TEXT:
        fwrite(event->text.data, 1, event->text.len, stdout);
        fflush(stdout);
        break;
    case DS_EVENT_END:
        *rounds = event->end.n_rounds;
        printf("\n%d tokens in %d rounds\n", event->end.n_token_ids, *rounds);
        if (event->end.reason == DS_STOP_ERROR)
            fprintf(stderr, "%s\n", event->end.error.text);
        break;
    }
    return true; /* false cancels */
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: %s MODEL [DRAFTER] PROMPT\n", argv[0]);
        return 2;
    }
    ds_engine_opts opts = {.target = argv[1], .drafter = argc == 4 ? argv[2] : NULL, .log.fn = on_log};
    ds_message message = {"user", argv[argc - 1]};
    ds_request request = {.messages = &message, .n_messages = 1, .max_new_tokens = 64};
    ds_engine *engine = NULL;
    ds_job *job = NULL;
    ds_error err = {0};
    int rounds = 0;

    ds_status status = ds_engine_open(&engine, &opts, &err);
    if (!status)
        status = ds_job_submit(&job, engine, &request, &err);
    if (status)
        fprintf(stderr, "%s: %s\n", ds_status_name(status), err.text);
    else
        status = ds_job_run(job, on_event, &rounds);
    ds_job_close(job);
    ds_engine_close(engine);
    return status != DS_OK;
}
