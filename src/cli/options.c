#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum { SWITCH, TEXT, INT, NUM, SEED, CHOICE, LIST, INTS } kind;

enum {
    GEN = 1 << CLI_GENERATE,
    DEC = 1 << CLI_DECODE,
    VER = 1 << CLI_VERIFY,
    PRE = 1 << CLI_PREFILL,
    SUI = 1 << CLI_SUITE,
    QUA = 1 << CLI_QUALITY,
    DOC = 1 << CLI_DOCTOR,
    BENCH = DEC | VER | PRE | SUI | QUA,
    ALL = GEN | BENCH | DOC,
};

enum { MANY = 1 << 24 }; /* of whole numbers that have no limit of their own */

typedef struct {
    int commands, required; /* sets of commands */
    const char *name, *arg; /* arg NULL: a switch */
    kind kind;
    double min, max;     /* INT, NUM, INTS: the values allowed */
    const char *choices; /* CHOICE: "a|b|c" */
    const char *initial; /* default, as it would be typed; NULL: none, or told in help */
    size_t at;
    const char *help;
} option;

const char *const cli_cpu_names[] = {"auto", "c", "avx2", "avx512", "neon"};
const int cli_drafter_bits_values[] = {4, 8, -1};

#define AT(field) offsetof(cli_args, field)

static const option options[] = {
    {ALL, ALL & ~DOC, "--model", "PATH", TEXT, 0, 0, NULL, NULL, AT(model),
     "The target model: a GGUF file, or a folder with config.json and safetensors files."},
    {GEN | DEC | SUI | DOC, SUI, "--drafter", "PATH", TEXT, 0, 0, NULL, NULL, AT(drafter),
     "The drafter's folder. Without it decoding is plain."},

    {GEN, 0, "--prompt", "TEXT", TEXT, 0, 0, NULL, NULL, AT(prompt), "What to answer or continue."},
    {GEN, 0, "--prompt-file", "FILE", TEXT, 0, 0, NULL, NULL, AT(prompt_file),
     "Reads the prompt from a file; - is standard input."},
    {GEN, 0, "--system", "TEXT", TEXT, 0, 0, NULL, NULL, AT(system), "A system message before the prompt."},
    {GEN, 0, "--no-chat-template", NULL, SWITCH, 0, 0, NULL, NULL, AT(no_chat_template),
     "Continues the prompt as it is, instead of answering it as a user's message. Special tokens may be "
     "spelled out in it."},
    {GEN | SUI, 0, "--max-new-tokens", "N", INT, 1, MANY, NULL, "256", AT(max_new_tokens),
     "Tokens to generate at most."},
    {GEN | SUI, 0, "--temperature", "T", NUM, 0, 100, NULL, "0", AT(temperature),
     "Spread of sampling; 0 always takes the likeliest token."},
    {GEN | SUI, 0, "--top-p", "P", NUM, 0, 1, NULL, "1", AT(top_p),
     "Samples among the likeliest tokens that together have this probability; 1 is off."},
    {GEN | SUI, 0, "--top-k", "K", INT, 0, MANY, NULL, "0", AT(top_k),
     "Samples among the K likeliest tokens; 0 is off."},
    {GEN | SUI, 0, "--min-p", "P", NUM, 0, 1, NULL, "0", AT(min_p),
     "Leaves out tokens less likely than P times the likeliest; 0 is off."},
    {GEN | SUI, 0, "--seed", "S", SEED, 0, 0, NULL, "0", AT(seed),
     "Of sampling: the same seed gives the same tokens, with a drafter or without."},
    {GEN, 0, "--stop", "S", LIST, 0, 0, NULL, NULL, AT(stop),
     "Ends the answer before this text. May be given several times."},
    {GEN | SUI, 0, "--ignore-eos", NULL, SWITCH, 0, 0, NULL, NULL, AT(ignore_eos),
     "Goes on after the model's end-of-answer token."},

    {GEN | SUI | DEC, 0, "--max-draft", "N", INT, 1, 32, NULL, NULL, AT(max_draft),
     "Drafted tokens a round at most; the default is the drafter's full block."},
    {GEN | SUI, 0, "--confidence-threshold", "X", NUM, 0, 1, NULL, "0", AT(confidence_threshold),
     "Ends a draft where its chance to be accepted falls below X; 0 is off."},
    {GEN | SUI, 0, "--accept", "RULE", CHOICE, 0, 0, "coupled|rejection", "coupled", AT(accept),
     "How drafts are accepted at a temperature above 0: coupled gives the tokens of plain sampling, "
     "rejection only their distribution."},
    {GEN, 0, "--mode", "MODE", CHOICE, 0, 0, "auto|dspark|baseline", "auto", AT(mode),
     "auto speculates where there is a drafter, dspark insists on one, baseline decodes plainly."},
    {GEN, 0, "--compare", NULL, SWITCH, 0, 0, NULL, NULL, AT(compare),
     "Answers twice, plainly and with the drafter, and ends with a table of both."},

    {VER | DEC, 0, "--depth", "D", INT, 0, MANY, NULL, "512", AT(depth),
     "Rows in the cache before measuring starts."},
    {VER, 0, "--rows", "LIST", INTS, 1, 256, NULL, "1,2,4,8,16", AT(rows),
     "Rows of one forward, separated by commas."},
    {VER, 0, "--runs", "R", INT, 1, 100000, NULL, "20", AT(runs), "Runs of each row count."},
    {PRE, 0, "--runs", "R", INT, 1, 100000, NULL, "3", AT(runs), "Runs; the median counts."},
    {DEC, 0, "--tokens", "N", INT, 1, MANY, NULL, "128", AT(tokens), "Tokens to decode."},
    {PRE, 0, "--tokens", "N", INT, 1, MANY, NULL, "512", AT(tokens), "Length of the prompt."},
    {SUI, SUI, "--prompts", "FILE", LIST, 0, 0, NULL, NULL, AT(prompts),
     "Prompts to answer: a JSON object with a \"prompt\" a line. May be given several times, or as a list "
     "separated by commas."},
    {SUI, 0, "--limit", "N", INT, 1, MANY, NULL, NULL, AT(limit), "Prompts of each file at most."},
    {QUA, QUA, "--text", "FILE", TEXT, 0, 0, NULL, NULL, AT(text), "The text to predict."},
    {QUA, 0, "--tokens", "N", INT, 2, MANY, NULL, NULL, AT(tokens),
     "Tokens of the text at most; the default is all of it."},
    {QUA, 0, "--window", "N", INT, 4, 512, NULL, "512", AT(window),
     "Tokens a window; the second half of each is scored."},

    {GEN | SUI | DOC, 0, "--ctx", "N", INT, 1, MANY, NULL, NULL, AT(ctx),
     "Longest context, prompt and answer together; the default is the model's, but at most 8192."},
    {ALL, 0, "--threads", "N", INT, 1, 256, NULL, NULL, AT(threads), "Threads; the default is one a core."},
    {ALL, 0, "--cpu", "ISA", CHOICE, 0, 0, "auto|c|avx2|avx512|neon", "auto", AT(cpu),
     "The fastest instruction set that may be used."},
    {DEC | VER | PRE, 0, "--profile", NULL, SWITCH, 0, 0, NULL, NULL, AT(profile),
     "Also shows where the time of a round goes, operation by operation."},
    {GEN | DEC | VER | PRE | SUI | DOC, 0, "--exact", NULL, SWITCH, 0, 0, NULL, NULL, AT(exact),
     "Computes everything in 32-bit floats: slow, for reference."},
    {GEN | DEC | SUI | DOC, 0, "--drafter-bits", "B", CHOICE, 0, 0, "4|8|keep", "4", AT(drafter_bits),
     "Bits that an unquantised drafter is quantised to; keep leaves it as it is."},
    {GEN | DEC | VER | PRE | SUI | DOC, 0, "--weights-cache", "DIR", TEXT, 0, 0, NULL, NULL, AT(weights_cache),
     "Keeps repacked weights in this folder, so that later starts are faster; doctor only says what is there."},
    {ALL, 0, "--json", NULL, SWITCH, 0, 0, NULL, NULL, AT(json), "Prints one JSON object."},
    {GEN, 0, "--no-stream", NULL, SWITCH, 0, 0, NULL, NULL, AT(no_stream),
     "Prints the answer when it is complete."},
    {ALL, 0, "--help", NULL, SWITCH, 0, 0, NULL, NULL, AT(help), "Prints this help."},
};

/* --- parsing --- */

const char *cli_show(char out[CLI_SHOWN], const char *word)
{
    size_t len = 0;
    int shown = 0;
    for (const unsigned char *p = (const unsigned char *)word; *p; p++) {
        bool inner = (*p & 0xc0) == 0x80; /* of a character of several bytes */
        if (shown == 80 && !inner) {
            memcpy(out + len, "...", 4);
            return out;
        }
        if (len + 8 > CLI_SHOWN) /* stray bytes only */
            break;
        shown += !inner;
        if (*p < 0x20 || *p == 0x7f)
            len += (size_t)snprintf(out + len, 5, "\\x%02x", *p);
        else
            out[len++] = (char)*p;
    }
    out[len] = 0;
    return out;
}

/* Insertions, deletions, changes and swaps of neighbours from a to b, both shorter than 48. */
static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), row[3][49];
    if (n > 48 || m > 48)
        return 99;
    for (size_t j = 0; j <= m; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            best = last[j] + 1 < best ? last[j] + 1 : best;
            best = now[j - 1] + 1 < best ? now[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[n % 3][m];
}

static bool near(const char *word, const char *name, size_t *best)
{
    size_t d = distance(word, name);
    if (d >= *best || d > 1 + strlen(word) / 4)
        return false;
    *best = d;
    return true;
}

const char *cli_nearest_command(const char *word)
{
    const char *found = NULL;
    for (size_t i = 0, best = 99; i < CLI_COMMANDS; i++)
        if (near(word, cli_commands[i].name, &best))
            found = cli_commands[i].name;
    return found;
}

static const option *find(enum cli_id command, const char *name, size_t len)
{
    for (size_t i = 0; i < COUNT(options); i++)
        if (options[i].commands & 1 << command && strlen(options[i].name) == len &&
            !memcmp(options[i].name, name, len))
            return &options[i];
    return NULL;
}

static ds_status unknown(enum cli_id command, const char *name, size_t len, ds_error *err)
{
    char word[128], shown[CLI_SHOWN];
    snprintf(word, sizeof word, "%.*s", (int)(len < 100 ? len : 100), name);
    const char *nearest = NULL;
    for (size_t i = 0, best = 99; i < COUNT(options); i++)
        if (options[i].commands & 1 << command && near(word, options[i].name, &best))
            nearest = options[i].name;
    if (nearest)
        return ds_fail(err, DS_INVALID, "unknown option '%s': did you mean %s?", cli_show(shown, word),
                       nearest);
    return ds_fail(err, DS_INVALID, "unknown option '%s': dspark %s --help lists them", cli_show(shown, word),
                   cli_commands[command].name);
}

static int print_range(char *out, size_t size, const option *o)
{
    const char *what = o->kind == INTS ? "whole numbers" : o->kind == INT ? "a whole number" : "a number";
    if (o->kind == SEED)
        return snprintf(out, size, "a whole number from 0 to 18446744073709551615");
    return snprintf(out, size, "%s from %.10g to %.10g", what, o->min, o->max);
}

static ds_status wrong(const option *o, const char *value, ds_error *err)
{
    char range[96], shown[CLI_SHOWN];
    print_range(range, sizeof range, o);
    return ds_fail(err, DS_INVALID, "%s takes %s, not '%s'", o->name, range, cli_show(shown, value));
}

static bool whole(const char *text, char **end, double min, double max, int *out)
{
    errno = 0;
    long value = strtol(text, end, 10);
    if (*end == text || errno || value < min || value > max)
        return false;
    *out = (int)value;
    return true;
}

static ds_status set_value(cli_args *args, const option *o, const char *value, ds_error *err)
{
    void *at = (char *)args + o->at;
    char *end, shown[CLI_SHOWN];
    if (o->arg && !*value && (!strcmp(o->arg, "PATH") || !strcmp(o->arg, "FILE") || !strcmp(o->arg, "DIR")))
        return ds_fail(err, DS_INVALID, "%s needs a path", o->name);
    switch (o->kind) {
    case SWITCH:
        *(bool *)at = true;
        return DS_OK;
    case TEXT:
        *(const char **)at = value;
        return DS_OK;
    case LIST: {
        cli_list *list = at;
        if (list->n == CLI_MAX_LIST)
            return ds_fail(err, DS_INVALID, "%s may be given %d times at most", o->name, CLI_MAX_LIST);
        list->at[list->n++] = value;
        return DS_OK;
    }
    case INT:
        return whole(value, &end, o->min, o->max, at) && !*end ? DS_OK : wrong(o, value, err);
    case INTS: {
        cli_ints *ints = at;
        ints->n = 0;
        for (const char *p = value;; p = end + 1) {
            if (ints->n == CLI_MAX_LIST || !whole(p, &end, o->min, o->max, &ints->at[ints->n]) ||
                (*end && *end != ','))
                return wrong(o, value, err);
            ints->n++;
            if (!*end)
                return DS_OK;
        }
    }
    case NUM: {
        double number = strtod(value, &end);
        if (end == value || *end || !(number >= o->min && number <= o->max)) /* NaN fails too */
            return wrong(o, value, err);
        *(double *)at = number;
        return DS_OK;
    }
    case SEED:
        errno = 0;
        *(uint64_t *)at = strtoull(value, &end, 10);
        return end == value || *end || errno || strchr(value, '-') ? wrong(o, value, err) : DS_OK;
    case CHOICE: {
        int index = 0;
        for (const char *p = o->choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL, index++)
            if (strcspn(p, "|") == strlen(value) && !strncmp(p, value, strlen(value))) {
                *(int *)at = index;
                return DS_OK;
            }
        return ds_fail(err, DS_INVALID, "%s takes one of %s, not '%s'", o->name, o->choices,
                       cli_show(shown, value));
    }
    }
    return ds_fail(err, DS_INTERNAL, "option %s has no kind", o->name);
}

static bool is_set(const cli_args *args, const option *o)
{
    const void *at = (const char *)args + o->at;
    return o->kind == LIST ? ((const cli_list *)at)->n > 0 : *(const char *const *)at != NULL;
}

ds_status cli_parse(cli_args *args, enum cli_id command, int argc, char **argv, ds_error *err)
{
    memset(args, 0, sizeof *args);
    for (size_t i = 0; i < COUNT(options); i++)
        if (options[i].commands & 1 << command && options[i].initial) {
            ds_status status = set_value(args, &options[i], options[i].initial, err);
            if (status)
                return status;
        }
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (!strcmp(word, "-h"))
            word = "--help";
        char shown[CLI_SHOWN];
        if (word[0] != '-' || !word[1])
            return ds_fail(err, DS_INVALID, "unexpected argument '%s'%s", cli_show(shown, word),
                           command == CLI_GENERATE ? ": give the prompt with --prompt" : "");
        size_t len = strcspn(word, "=");
        const option *o = find(command, word, len);
        if (!o)
            return unknown(command, word, len, err);
        const char *value = word[len] ? word + len + 1 : NULL;
        if (!o->arg && value)
            return ds_fail(err, DS_INVALID, "%s takes no value", o->name);
        if (o->arg && !value) {
            value = i + 1 < argc ? argv[++i] : NULL;
            if (!value || find(command, value, strcspn(value, "=")))
                return ds_fail(err, DS_INVALID, "%s needs a value: %s %s", o->name, o->name, o->arg);
        }
        ds_status status = set_value(args, o, value, err);
        if (status)
            return status;
    }
    for (size_t i = 0; i < COUNT(options) && !args->help; i++)
        if (options[i].required & 1 << command && !is_set(args, &options[i]))
            return ds_fail(err, DS_INVALID, "dspark %s needs %s %s", cli_commands[command].name,
                           options[i].name, options[i].arg);
    return DS_OK;
}

/* --- help, man page, markdown --- */

/* Help, then what the table knows: choices, range, default. */
static const char *describe(char *out, size_t size, const option *o, enum cli_id command)
{
    char range[96] = "";
    if ((o->kind == INT || o->kind == INTS) && o->max >= MANY)
        snprintf(range, sizeof range, " At least %.10g.", o->min);
    else if (o->kind == INT || o->kind == INTS || o->kind == NUM)
        snprintf(range, sizeof range, " From %.10g to %.10g.", o->min, o->max);
    else if (o->kind == CHOICE)
        snprintf(range, sizeof range, " One of %s.", o->choices);
    snprintf(out, size, "%s%s%s%s%s%s", o->help, range, o->initial ? " Default: " : "",
             o->initial ? o->initial : "", o->initial ? "." : "",
             o->required & 1 << command ? " Required." : "");
    return out;
}

static void wrap(FILE *to, const char *text, int indent, int column)
{
    enum { WIDTH = 92 };
    bool first = true;
    for (const char *p = text; *p; p += *p == ' ') {
        int len = (int)strcspn(p, " ");
        if (!first && column + 1 + len > WIDTH) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
        } else if (!first) {
            column += fprintf(to, " ");
        }
        column += fprintf(to, "%.*s", len, p);
        p += len;
        first = false;
    }
    fputc('\n', to);
}

static void label(char *out, size_t size, const option *o)
{
    snprintf(out, size, "%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
}

void cli_help(FILE *to, enum cli_id command)
{
    const cli_command *c = &cli_commands[command];
    fprintf(to, "Usage: dspark %s %s\n\n", c->name, c->usage);
    wrap(to, c->details, 0, 0);
    fputs("\nOptions:\n", to);
    for (size_t i = 0; i < COUNT(options); i++)
        if (options[i].commands & 1 << command) {
            char name[64], text[512];
            label(name, sizeof name, &options[i]);
            int column = fprintf(to, "  %-26s ", name);
            wrap(to, describe(text, sizeof text, &options[i], command), 29, column);
        }
}

static void roff(FILE *to, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (p == text && (*p == '.' || *p == '\''))
            fputs("\\&", to);
        if (*p == '\\')
            fputs("\\e", to);
        else if (*p == '-')
            fputs("\\-", to);
        else
            fputc(*p, to);
    }
}

static void man_command(FILE *to, enum cli_id command)
{
    const cli_command *c = &cli_commands[command];
    fputs(".SS \"dspark ", to);
    roff(to, c->name);
    fputs("\"\n.B dspark ", to);
    roff(to, c->name);
    fputs("\n", to);
    roff(to, c->usage);
    fputs("\n.PP\n", to);
    roff(to, c->details);
    fputc('\n', to);
    for (size_t i = 0; i < COUNT(options); i++)
        if (options[i].commands & 1 << command) {
            char text[512];
            fputs(".TP\n\\fB", to);
            roff(to, options[i].name);
            fputs("\\fR", to);
            if (options[i].arg)
                fprintf(to, " \\fI%s\\fR", options[i].arg);
            fputc('\n', to);
            roff(to, describe(text, sizeof text, &options[i], command));
            fputc('\n', to);
        }
}

static const struct {
    int code;
    const char *meaning;
} exits[] = {
    {0, "Success."},
    {1, "Anything that is not listed here."},
    {2, "Wrong usage, a prompt longer than the context, or a drafter of another target."},
    {3, "A model file is missing, damaged or unsupported."},
    {4, "Out of memory."},
    {130, "Interrupted by Ctrl-C."},
};

static void man_head(FILE *to)
{
    fputs(".TH DSPARK 1 \"\" \"dspark " DSPARK_VERSION "\" \"User Commands\"\n", to);
}

void cli_man(FILE *to, enum cli_id command)
{
    man_head(to);
    if (command != CLI_COMMANDS) {
        man_command(to, command);
        return;
    }
    fputs(".SH NAME\ndspark \\- language models decoded faster, without changing a token\n.SH SYNOPSIS\n"
          ".B dspark\n\\fICOMMAND\\fR [\\fIoptions\\fR]\n.br\n.B dspark \\-\\-version\n.br\n"
          ".B dspark \\-\\-help\n.SH DESCRIPTION\n"
          "A small drafter proposes several tokens at once, the target model verifies them in one pass, and\n"
          "only those that the target itself would have chosen are kept.\n.SH COMMANDS\n",
          to);
    for (int i = 0; i < CLI_COMMANDS; i++)
        man_command(to, i);
    fputs(".SH EXIT STATUS\n", to);
    for (size_t i = 0; i < COUNT(exits); i++) {
        fprintf(to, ".TP\n.B %d\n", exits[i].code);
        roff(to, exits[i].meaning);
        fputc('\n', to);
    }
}

static void cell(FILE *to, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', to);
        fputc(*text, to);
    }
}

void cli_markdown(FILE *to)
{
    fputs("# Command line\n\nMade from the program's own tables by `dspark --dump-man --markdown`.\n\n"
          "| command | what it does |\n|---|---|\n",
          to);
    for (int i = 0; i < CLI_COMMANDS; i++)
        fprintf(to, "| `dspark %s` | %s |\n", cli_commands[i].name, cli_commands[i].summary);
    fputs("| `dspark --version` | Prints the version. |\n"
          "| `dspark --help`, `dspark COMMAND --help` | Prints help. |\n",
          to);
    for (int c = 0; c < CLI_COMMANDS; c++) {
        fprintf(to, "\n## dspark %s\n\n```\ndspark %s %s\n```\n\n%s\n\n| option | meaning |\n|---|---|\n",
                cli_commands[c].name, cli_commands[c].name, cli_commands[c].usage, cli_commands[c].details);
        for (size_t i = 0; i < COUNT(options); i++)
            if (options[i].commands & 1 << c) {
                char name[64], text[512];
                label(name, sizeof name, &options[i]);
                fprintf(to, "| `%s` | ", name);
                cell(to, describe(text, sizeof text, &options[i], c));
                fputs(" |\n", to);
            }
    }
    fputs("\n## Exit codes\n\n| code | meaning |\n|---|---|\n", to);
    for (size_t i = 0; i < COUNT(exits); i++)
        fprintf(to, "| %d | %s |\n", exits[i].code, exits[i].meaning);
}
