#include "cli/cli.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const cli_command cli_commands[] = {
    {"generate", "--model PATH --prompt TEXT [options]", "Answers a prompt.",
     "Answers a prompt, with a drafter or without, and prints the answer as it comes.", cli_generate},
    {"bench decode", "--model PATH [options]", "Measures decoding, token after token.",
     "Measures decoding at a given depth: milliseconds a token and tokens per second.", cli_bench_decode},
    {"bench verify", "--model PATH [options]", "Measures one forward of several rows.",
     "Measures one forward of several rows at a given depth, as in verifying a draft: the median and the "
     "fastest, in milliseconds.",
     cli_bench_verify},
    {"bench prefill", "--model PATH [options]", "Measures reading a prompt.",
     "Measures how fast a prompt is read: tokens per second.", cli_bench_prefill},
    {"bench generate", "--model PATH --drafter PATH --prompts FILE [options]",
     "Answers prompts plainly and speculatively, and compares.",
     "Answers every prompt plainly and with the drafter, in turn, and compares speed and tokens. Tokens "
     "per second count decoding only.",
     cli_bench_generate},
    {"bench quality", "--model PATH --text FILE [options]", "Measures what integer arithmetic costs.",
     "Predicts a text with the default arithmetic and with --exact, and compares: perplexity, divergence "
     "and how often the likeliest token is the same.",
     cli_bench_quality},
    {"doctor", "[--model PATH] [--drafter PATH] [options]", "Says what this machine and model can do.",
     "Says what the machine offers, and for a model which path its matrices take and how much memory it "
     "needs.",
     cli_doctor},
};

int cli_exit_code(ds_status status)
{
    switch (status) {
    case DS_OK:
        return 0;
    case DS_INVALID:
        return 2;
    case DS_BAD_FILE:
        return 3;
    case DS_NO_MEMORY:
        return 4;
    case DS_CANCELLED:
        return 130;
    case DS_DEVICE:
    case DS_INTERNAL:
        break;
    }
    return 1;
}

void cli_say(const char *text)
{
    fputs("dspark: ", stderr);
    for (const char *c = text; *c; c++)
        fputc((unsigned char)*c < 32 || *c == 127 ? '?' : *c, stderr);
    fputc('\n', stderr);
}

int cli_fail(const ds_error *err)
{
    cli_say(err->text);
    return cli_exit_code(err->status);
}

/* --- loading --- */

typedef struct {
    double begin;
    bool shown;
} progress_line;

static void on_progress(void *user, double done)
{
    progress_line *line = user;
    if (ds_now() - line->begin < 0.5)
        return;
    line->shown = true;
    fprintf(stderr, "\rloading %3.0f%%", done * 100);
}

static void on_log(void *user, int level, const char *text)
{
    progress_line *line = user;
    if (level < DS_LOG_WARN)
        return;
    if (line && line->shown)
        fputs("\r\033[K", stderr);
    cli_say(text);
}

ds_status cli_open(ds_engine **out, const cli_args *args, bool look_only, ds_error *err)
{
    /* static: the log is used for as long as the engine lives */
    static progress_line line;
    line = (progress_line){.begin = ds_now()};
    ds_engine_opts opts = {
        .target = args->model,
        .drafter = args->drafter,
        .threads = args->threads,
        .cpu = cli_cpu_names[args->cpu],
        .exact = args->exact,
        .context = args->ctx,
        .drafter_bits = cli_drafter_bits_values[args->drafter_bits],
        .weights_cache = args->weights_cache,
        .weights_cache_readonly = look_only,
        .log = {on_log, &line},
    };
    if (isatty(STDERR_FILENO))
        opts.progress.fn = on_progress, opts.progress.user = &line;
    ds_status status = ds_engine_open(out, &opts, err);
    if (line.shown)
        fputs("\r\033[K", stderr);
    line.shown = false;
    return status;
}

/* --- output --- */

static int write_errno; /* of the first write that failed */

bool cli_write(const char *data, size_t len)
{
    if (fwrite(data, 1, len, stdout) == len && !fflush(stdout))
        return true;
    if (!write_errno)
        write_errno = errno;
    return false;
}

/* Whatever was printed is out, or the exit code says so. A reader that has left is no failure. */
static int finish(int code)
{
    if (!fflush(stdout) && !ferror(stdout))
        return code;
    if (!write_errno)
        write_errno = errno;
    if (write_errno == EPIPE)
        return code;
    fprintf(stderr, "dspark: cannot write the result: %s\n", strerror(write_errno));
    return 1;
}

int cli_print_json(json_t *object)
{
    char *text = object ? json_dumps(object, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    if (!text) {
        fputs("dspark: out of memory for the result\n", stderr);
        return 4;
    }
    if (cli_write(text, strlen(text)))
        cli_write("\n", 1);
    free(text);
    return 0;
}

/* --- dispatch --- */

static int help(void)
{
    puts("dspark " DSPARK_VERSION ": language models decoded faster, without changing a token\n\n"
         "Usage: dspark COMMAND [options]\n\nCommands:");
    for (int i = 0; i < CLI_COMMANDS; i++)
        printf("  %-16s %s\n", cli_commands[i].name, cli_commands[i].summary);
    puts("\n  dspark COMMAND --help lists a command's options; dspark --version prints the version.");
    return 0;
}

static int usage(const char *text, const char *word, const char *nearest)
{
    char shown[CLI_SHOWN];
    fprintf(stderr, "dspark: %s '%s': %s%s%s\n", text, cli_show(shown, word), nearest ? "did you mean " : "",
            nearest ? nearest : "dspark --help lists them", nearest ? "?" : "");
    return 2;
}

/* Which command argv begins with, and how many words name it; CLI_COMMANDS: none. */
static enum cli_id pick(int argc, char **argv, int *words)
{
    for (int i = 0; i < CLI_COMMANDS; i++) {
        const char *name = cli_commands[i].name, *space = strchr(name, ' ');
        *words = space ? 2 : 1;
        if (!space && !strcmp(argv[0], name))
            return i;
        if (space && argc > 1 && !strcmp(argv[1], space + 1) && strlen(argv[0]) == (size_t)(space - name) &&
            !strncmp(argv[0], name, (size_t)(space - name)))
            return i;
    }
    return CLI_COMMANDS;
}

static int dump(int argc, char **argv)
{
    int words;
    if (argc == 1 && !strcmp(argv[0], "--markdown")) {
        cli_markdown(stdout);
        return 0;
    }
    enum cli_id command = argc ? pick(argc, argv, &words) : CLI_COMMANDS;
    if (argc && command == CLI_COMMANDS)
        return usage("unknown command", argv[0], NULL);
    cli_man(stdout, command);
    return 0;
}

static int bench_help(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--help") != 0 && strcmp(argv[1], "-h") != 0) {
        char full[64];
        snprintf(full, sizeof full, "bench %.40s", argv[1]);
        return usage("unknown command", full, cli_nearest_command(full));
    }
    FILE *to = argc > 1 ? stdout : stderr;
    fputs("Usage: dspark bench decode|verify|prefill|generate|quality [options]\n", to);
    for (int i = 0; i < CLI_COMMANDS && argc > 1; i++)
        if (!strncmp(cli_commands[i].name, "bench ", 6))
            printf("  %-16s %s\n", cli_commands[i].name, cli_commands[i].summary);
    return argc > 1 ? 0 : 2;
}

static int dispatch(int argc, char **argv)
{
    if (!argc || !strcmp(argv[0], "--help") || !strcmp(argv[0], "-h") || !strcmp(argv[0], "help"))
        return help();
    if (!strcmp(argv[0], "--version")) {
        puts("dspark " DSPARK_VERSION);
        return 0;
    }
    if (!strcmp(argv[0], "--dump-man"))
        return dump(argc - 1, argv + 1);
    int words;
    enum cli_id command = pick(argc, argv, &words);
    if (command == CLI_COMMANDS) {
        if (!strcmp(argv[0], "bench"))
            return bench_help(argc, argv);
        if (argv[0][0] != '-')
            return usage("unknown command", argv[0], cli_nearest_command(argv[0]));
        char shown[CLI_SHOWN];
        fprintf(stderr, "dspark: unknown option '%s': options follow a command\n", cli_show(shown, argv[0]));
        return 2;
    }
    cli_args args;
    ds_error err = {0};
    if (cli_parse(&args, command, argc - words, argv + words, &err))
        return cli_fail(&err);
    if (args.help) {
        cli_help(stdout, command);
        return 0;
    }
    return cli_commands[command].run(&args);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* writes fail with EPIPE instead */
    return finish(dispatch(argc - 1, argv + 1));
}
