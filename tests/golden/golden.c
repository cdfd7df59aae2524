/* ds_golden [DIR] [--only NAME] [--list]: runs every case below DIR; see golden.h.
 * DIR: else $DSPARK_GOLDEN_DIR, else the copy in the source tree. */
#include "golden.h"

#include "backend/cpu/cpu.h"
#include "formats/dequant.h"
#include "formats/safetensors.h"

#include <dirent.h>
#include <fnmatch.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { EXIT_SKIP = 77 }; /* what ctest takes for "skipped" */

struct golden_arrays {
    ds_safetensors *file;
    golden_array *items;
    float **widened;
    size_t count;
};

static const struct {
    const char *kind;
    int (*run)(const golden_case *c, char *why, size_t n);
} kinds[] = {
    {"target", golden_target},     {"gguf", golden_target},
    {"quant", golden_quant},       {"gguf_blocks", golden_quant},
    {"dspark", golden_pair},
    {"sampling", golden_sampling},
};

static struct {
    ds_backend *be;
    const char *only;
    bool list;
    char not_yet[64][64];
    int n_not_yet;
    int passed, failed, skipped;
} run;

ds_backend *golden_backend(void)
{
    return run.be;
}

golden_result golden_say(char *why, size_t n_why, golden_result result, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, n_why, fmt, args);
    va_end(args);
    return result;
}

/* --- arrays --- */

static void close_arrays(golden_arrays *arrays)
{
    if (!arrays)
        return;
    for (size_t i = 0; arrays->widened && i < arrays->count; i++)
        free(arrays->widened[i]);
    free(arrays->widened);
    free(arrays->items);
    ds_safetensors_close(arrays->file);
    free(arrays);
}

static golden_arrays *open_arrays(const char *path, ds_error *err)
{
    golden_arrays *arrays = calloc(1, sizeof *arrays);
    if (!arrays || ds_safetensors_open(&arrays->file, path, err)) {
        free(arrays);
        return NULL;
    }
    arrays->count = arrays->file->count;
    arrays->items = calloc(arrays->count + 1, sizeof *arrays->items);
    arrays->widened = calloc(arrays->count + 1, sizeof *arrays->widened);
    for (size_t i = 0; arrays->items && arrays->widened && i < arrays->count; i++) {
        const ds_tensor *t = &arrays->file->tensors[i];
        golden_array *a = &arrays->items[i];
        *a = (golden_array){.name = t->name,
                            .type = t->type,
                            .rank = t->rank,
                            .count = 1,
                            .data = t->data,
                            .bytes = (size_t)t->bytes};
        for (int d = 0; d < 4; d++) {
            a->dims[d] = (size_t)t->dims[d];
            a->count *= a->dims[d];
        }
        if (t->type != DS_F32 && t->type != DS_F16 && t->type != DS_BF16)
            continue;
        arrays->widened[i] = malloc((a->count + 1) * sizeof(float));
        if (arrays->widened[i] && ds_dequant(t->type, t->data, a->count, arrays->widened[i]))
            a->f = arrays->widened[i];
    }
    return arrays;
}

const golden_array *golden_find(const golden_case *c, const char *name)
{
    for (size_t i = 0; c->arrays && i < c->arrays->count; i++)
        if (strcmp(c->arrays->items[i].name, name) == 0)
            return &c->arrays->items[i];
    return NULL;
}

const golden_array *golden_want(const golden_case *c, const char *name, size_t rows, size_t cols, char *why,
                                size_t n_why)
{
    const golden_array *a = golden_find(c, name);
    if (!a || !a->f) {
        golden_say(why, n_why, GOLDEN_FAILED, "golden.st has no float array %s", name);
        return NULL;
    }
    size_t has_rows = a->rank > 1 ? a->dims[0] : 1, has_cols = has_rows ? a->count / has_rows : 0;
    if ((rows && rows != has_rows) || (cols && cols != has_cols)) {
        golden_say(why, n_why, GOLDEN_FAILED, "golden.st: %s is %zu x %zu, not %zu x %zu", name, has_rows,
                   has_cols, rows, cols);
        return NULL;
    }
    return a;
}

/* --- golden.json --- */

int32_t *golden_ids(const json_t *obj, const char *key, int *n)
{
    const json_t *list = json_object_get(obj, key);
    *n = 0;
    if (!json_is_array(list))
        return NULL;
    int32_t *ids = malloc((json_array_size(list) + 1) * sizeof *ids);
    for (size_t i = 0; ids && i < json_array_size(list); i++)
        ids[(*n)++] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

int golden_int(const json_t *obj, const char *key, int or)
{
    const json_t *value = json_object_get(obj, key);
    return json_is_integer(value) ? (int)json_integer_value(value) : or ;
}

double golden_num(const json_t *obj, const char *key, double or)
{
    const json_t *value = json_object_get(obj, key);
    return json_is_number(value) ? json_number_value(value) : or ;
}

void golden_path(const golden_case *c, const char *rel, char *out, size_t n_out)
{
    snprintf(out, n_out, "%s/%s", c->dir, rel);
}

/* --- comparing --- */

double golden_abs(const float *got, const float *want, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double diff = got[i] == want[i] ? 0 : fabs((double)got[i] - (double)want[i]);
        if (!(diff <= worst)) /* NaN too */
            worst = isnan(diff) ? INFINITY : diff;
    }
    return worst;
}

double golden_rel(const float *got, const float *want, size_t n)
{
    double scale = 0, diff = golden_abs(got, want, n);
    for (size_t i = 0; i < n; i++)
        scale = fmax(scale, fabs((double)want[i]));
    return diff == 0 ? 0 : scale > 0 ? diff / scale : INFINITY;
}

bool golden_close(const golden_case *c, const char *what, const float *got, const float *want, size_t n,
                  double tol, bool absolute, char *why, size_t n_why)
{
    double error = absolute ? golden_abs(got, want, n) : golden_rel(got, want, n);
    if (error > *c->worst)
        *c->worst = error;
    if (error <= tol)
        return true;
    size_t at = 0;
    while (at + 1 < n && fabs((double)got[at] - (double)want[at]) <= tol)
        at++;
    golden_say(why, n_why, GOLDEN_FAILED, "%s: off by %.2g, allowed %.0e; value %zu of %zu is %g, not %g",
               what, error, tol, at, n, (double)got[at], (double)want[at]);
    return false;
}

bool golden_same(const char *what, const int32_t *got, const int32_t *want, int n, char *why, size_t n_why)
{
    for (int i = 0; i < n; i++)
        if (got[i] != want[i]) {
            golden_say(why, n_why, GOLDEN_FAILED, "%s: id %d of %d is %d, not %d", what, i, n, got[i],
                       want[i]);
            return false;
        }
    return true;
}

/* --- cases --- */

static bool expected_later(const char *name)
{
    for (int i = 0; i < run.n_not_yet; i++)
        if (fnmatch(run.not_yet[i], name, 0) == 0)
            return true;
    return false;
}

static void read_not_yet(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[256];
    while (file && fgets(line, sizeof line, file) && run.n_not_yet < (int)COUNT(run.not_yet)) {
        line[strcspn(line, " \t\r\n#")] = '\0';
        if (line[0])
            snprintf(run.not_yet[run.n_not_yet++], sizeof run.not_yet[0], "%.63s", line);
    }
    if (file)
        fclose(file);
}

static void run_case(const char *name, const char *dir)
{
    char path[4096], why[600] = "";
    double worst = 0;
    ds_error err = {0};
    json_t *json = NULL;
    golden_case c = {.name = name, .dir = dir, .worst = &worst};
    golden_result result = GOLDEN_FAILED;
    bool elsewhere = false;

    snprintf(path, sizeof path, "%s/golden.json", dir);
    json_error_t bad;
    json = json_load_file(path, JSON_ALLOW_NUL, &bad); /* texts to tokenise contain all characters */
    ds_status status =
        json ? DS_OK : ds_fail(&err, DS_BAD_FILE, "golden.json: %s at line %d", bad.text, bad.line);
    if (!status) {
        c.json = json;
        c.kind = json_string_value(json_object_get(json, "kind"));
        if (!c.kind)
            c.kind = "none";
        snprintf(path, sizeof path, "%s/golden.st", dir);
        if (ds_file_exists(path)) {
            c.arrays = open_arrays(path, &err);
            status = c.arrays ? DS_OK : DS_BAD_FILE;
        }
    }
    if (status) {
        snprintf(why, sizeof why, "%.500s", err.text);
    } else if (strcmp(c.kind, "text") == 0) {
        elsewhere = true; /* ds_golden_text: it needs tokenizers that are downloaded */
    } else {
        result = golden_say(why, sizeof why, GOLDEN_UNSUPPORTED, "kind %s", c.kind);
        for (size_t k = 0; k < COUNT(kinds); k++)
            if (strcmp(kinds[k].kind, c.kind) == 0) {
                why[0] = '\0';
                result = (golden_result)kinds[k].run(&c, why, sizeof why);
            }
    }

    if (elsewhere) {
        printf("skipped      %s (ds_golden_text runs it)\n", name);
        run.skipped++;
    } else if (result == GOLDEN_PASSED) {
        printf("passed       %s (%s%sworst error %.1e)\n", name, why, why[0] ? "; " : "", worst);
        run.passed++;
    } else if (result == GOLDEN_UNSUPPORTED && expected_later(name)) {
        printf("unsupported  %s (%s)\n", name, why);
        run.skipped++;
    } else {
        printf("%s  %s (%s%s; worst error %.1e)\n", result == GOLDEN_FAILED ? "FAILED     " : "UNSUPPORTED",
               name, why, result == GOLDEN_FAILED ? "" : "; not listed in not-yet.txt", worst);
        run.failed++;
    }
    fflush(stdout);
    close_arrays((golden_arrays *)c.arrays);
    json_decref(json);
}

static void walk(const char *name, const char *dir)
{
    char path[4096];
    struct dirent **entries;
    snprintf(path, sizeof path, "%s/golden.json", dir);
    if (ds_file_exists(path) && (!run.only || strstr(name, run.only) || fnmatch(run.only, name, 0) == 0)) {
        if (run.list)
            puts(name);
        else
            run_case(name, dir);
    }
    int n = scandir(dir, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char below[1024];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", dir, entries[i]->d_name);
        snprintf(below, sizeof below, "%s%s%s", name, name[0] ? "/" : "", entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && stat(path, &info) == 0 && S_ISDIR(info.st_mode))
            walk(below, path);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
}

int main(int argc, char **argv)
{
    const char *dir = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--list") == 0)
            run.list = true;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            run.only = argv[++i];
        else if (argv[i][0] != '-' && !dir)
            dir = argv[i];
        else {
            fprintf(stderr, "usage: ds_golden [DIR] [--only NAME] [--list]\n");
            return 2;
        }
    }
    if (!dir)
        dir = getenv("DSPARK_GOLDEN_DIR");
    if (!dir || !dir[0])
        dir = TEST_SOURCE_DIR "/tests/golden/data";
    if (!ds_file_exists(dir)) {
        printf("SKIP: there are no golden vectors at %s (set DSPARK_GOLDEN_DIR)\n", dir);
        return EXIT_SKIP;
    }
    read_not_yet(TEST_SOURCE_DIR "/tests/golden/not-yet.txt");
    ds_error err;
    ds_cpu_opts opts = {.threads = 2, .exact = true};
    if (!run.list && ds_cpu_open(&run.be, &opts, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    walk("", dir);
    if (!run.list) {
        run.be->close(run.be);
        printf("%d passed, %d failed, %d skipped\n", run.passed, run.failed, run.skipped);
    }
    return run.failed || (!run.list && !run.passed) ? 1 : 0;
}
