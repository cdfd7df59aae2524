/* What is asked of an engine, and what comes back: one request and one stream of events, whatever
 * dialect they came in or go out in. */
#ifndef DSPARK_REQUEST_H
#define DSPARK_REQUEST_H

#include <dspark/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *role;    /* "system", "user", "assistant" */
    const char *content; /* UTF-8 */
} ds_message;

typedef enum { DS_MODE_AUTO, DS_MODE_DSPARK, DS_MODE_BASELINE } ds_mode;
typedef enum { DS_RULE_COUPLED, DS_RULE_REJECTION } ds_rule;

/* Zero it, then set what you want: 0 and NULL mean the default. Exactly one of messages, prompt and
 * prompt_ids says what to continue. Strings and arrays are borrowed during ds_job_submit() only. */
typedef struct {
    const ds_message *messages; /* rendered with the model's chat template */
    size_t n_messages;
    const char *prompt; /* continued as it is, special strings in it recognised */
    const int32_t *prompt_ids;
    size_t n_prompt_ids;

    int max_new_tokens;  /* 0: 256 */
    float temperature;   /* 0: greedy */
    float top_p;         /* 0 or 1: off */
    int top_k;           /* 0: off */
    float min_p;         /* 0: off */
    uint64_t seed;
    const char *const *stop; /* texts that end the answer; they are not part of it */
    size_t n_stop;
    bool ignore_eos;

    ds_mode mode;  /* AUTO: speculative where the engine has a drafter; DSPARK without one is INVALID */
    int max_draft; /* 0: the engine's; else at most this many drafted tokens a round */
    float confidence_threshold; /* 0: off; drafts end where the chance of acceptance falls below it */
    ds_rule rule;               /* how drafts are accepted at temperature > 0 */
} ds_request;

typedef enum {
    DS_EVENT_PREFILL, /* tokens of the prompt processed so far */
    DS_EVENT_TEXT,    /* more of the answer */
    DS_EVENT_END,     /* always the last event, exactly once */
} ds_event_kind;

typedef enum { DS_STOP_EOS, DS_STOP_TEXT, DS_STOP_LENGTH, DS_STOP_CANCELLED, DS_STOP_ERROR } ds_stop_reason;

/* One round: tokens drafted, accepted of these, and committed (the bonus token included). */
typedef struct {
    int drafted, accepted, committed;
    const char *source; /* "drafter", "plain" */
} ds_round_info;

typedef struct {
    ds_event_kind kind;
    struct {
        int done, total; /* prompt tokens */
    } prefill;
    struct {
        const char *data; /* UTF-8, whole characters, NUL-terminated */
        size_t len;
    } text;
    struct { /* END */
        ds_stop_reason reason;
        ds_error error; /* with DS_STOP_ERROR */
        int prompt_tokens;
        const int32_t *token_ids; /* every generated id, an EOS id included; a stop text ends them with
                                     the id that completes it, and counts no id after it */
        int n_token_ids;
        int usage_tokens;            /* always n_token_ids */
        const ds_round_info *rounds; /* what they commit and the first id add up to n_token_ids */
        int n_rounds;
        double prefill_s;     /* prompt to first token */
        double decode_s;      /* the rounds */
        double first_token_s; /* submit to first token */
    } end;
} ds_event;

#endif
