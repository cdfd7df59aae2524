/* The command line as one table: parsing, --help, the man page and docs/cli.md all come from it. */
#ifndef DS_CLI_OPTIONS_H
#define DS_CLI_OPTIONS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CLI_MAX_LIST = 64, CLI_SHOWN = 4 * 80 + 12 };

typedef struct {
    const char *at[CLI_MAX_LIST];
    size_t n;
} cli_list;

typedef struct {
    int at[CLI_MAX_LIST];
    int n;
} cli_ints;

enum { CLI_CPU_AUTO, CLI_CPU_C, CLI_CPU_AVX2, CLI_CPU_AVX512, CLI_CPU_NEON };

/* Every option's value; texts point into argv. What was not given has the table's default, else 0. */
typedef struct {
    bool help;
    const char *model, *drafter, *weights_cache;
    const char *prompt, *prompt_file, *system;
    bool no_chat_template, ignore_eos, json, no_stream, compare, exact, profile;
    int max_new_tokens, top_k, max_draft, ctx, threads;
    double temperature, top_p, min_p, confidence_threshold;
    uint64_t seed;
    cli_list stop, prompts;
    int accept, mode, cpu, drafter_bits; /* index of the choice */
    int depth, tokens, runs, window, limit;
    cli_ints rows;
    const char *text;
} cli_args;

typedef struct cli_command {
    const char *name; /* "generate", "bench decode" */
    const char *usage, *summary, *details;
    int (*run)(const cli_args *args); /* returns the exit code */
} cli_command;

extern const cli_command cli_commands[]; /* in main.c; the order of cli_id */
enum cli_id {
    CLI_GENERATE,
    CLI_DECODE,
    CLI_VERIFY,
    CLI_PREFILL,
    CLI_SUITE,
    CLI_QUALITY,
    CLI_DOCTOR,
    CLI_COMMANDS
};

/* Parses what follows the command's name. DS_INVALID: one sentence. */
ds_status cli_parse(cli_args *args, enum cli_id command, int argc, char **argv, ds_error *err);
/* A word as messages quote it: 80 characters at most, control characters escaped. Returns out. */
const char *cli_show(char out[CLI_SHOWN], const char *word);
/* The nearest of the commands to a word, or NULL where none is near. */
const char *cli_nearest_command(const char *word);

void cli_help(FILE *to, enum cli_id command);
/* command CLI_COMMANDS: the whole page */
void cli_man(FILE *to, enum cli_id command);
void cli_markdown(FILE *to);

extern const char *const cli_cpu_names[];   /* by cli_args.cpu */
extern const int cli_drafter_bits_values[]; /* by cli_args.drafter_bits */

#endif
