/* What the commands share. */
#ifndef DS_CLI_CLI_H
#define DS_CLI_CLI_H

#include "cli/options.h"

#include <dspark/engine.h>
#include <jansson.h>

int cli_generate(const cli_args *args);
int cli_bench_decode(const cli_args *args);
int cli_bench_verify(const cli_args *args);
int cli_bench_prefill(const cli_args *args);
int cli_bench_generate(const cli_args *args);
int cli_bench_quality(const cli_args *args);
int cli_doctor(const cli_args *args);

int cli_exit_code(ds_status status);
/* Prints the sentence on stderr, on a line of its own, and returns its exit code. */
/* "dspark: text" on stderr, as one line: file names may hold control characters. */
void cli_say(const char *text);
int cli_fail(const ds_error *err);

/* Opens what the arguments name, with a progress line on a terminal if it takes long. look_only: leaves the
 * weights cache as it is. */
ds_status cli_open(ds_engine **out, const cli_args *args, bool look_only, ds_error *err);

/* False: standard output takes no more. main says why at the end, unless its reader has just left. */
bool cli_write(const char *data, size_t len);
/* Prints an object and a newline, frees it, and returns the exit code. */
int cli_print_json(json_t *object);

#endif
