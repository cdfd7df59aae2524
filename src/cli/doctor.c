#include "cli/cli.h"

#include "base/cpu.h"
#include "bench/bench.h"
#include "bench/sha.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the machine --- */

/* The value behind "KEY...: " in a file of the kernel's; "" where there is none. */
static void read_key(char *out, size_t size, const char *path, const char *key)
{
    char line[512];
    out[0] = 0;
    FILE *file = fopen(path, "r");
    while (file && !out[0] && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || !value)
            continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = 0;
        snprintf(out, size, "%s", value);
    }
    if (file)
        fclose(file);
}

/* "always [madvise] never" -> "madvise" */
static void huge_page_mode(char *out, size_t size)
{
    char line[128] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (file && !fgets(line, sizeof line, file))
        line[0] = 0;
    if (file)
        fclose(file);
    const char *mode = strchr(line, '[');
    snprintf(out, size, "%.*s", mode ? (int)strcspn(mode + 1, "]") : 7, mode ? mode + 1 : "unknown");
}

static json_t *machine(void)
{
    char cpu[128], huge[32], total[64], available[64];
    read_key(cpu, sizeof cpu, "/proc/cpuinfo", "model name");
    read_key(total, sizeof total, "/proc/meminfo", "MemTotal");
    read_key(available, sizeof available, "/proc/meminfo", "MemAvailable");
    huge_page_mode(huge, sizeof huge);
    return json_pack("{s:s, s:s, s:i, s:s, s:I, s:I}", "cpu", cpu[0] ? cpu : "unknown", "isa",
                     ds_cpu_name(ds_cpu_flags()), "cores", ds_cpu_cores(), "huge_pages", huge, "memory_bytes",
                     (json_int_t)(strtoll(total, NULL, 10) * 1024), "available_bytes",
                     (json_int_t)(strtoll(available, NULL, 10) * 1024));
}

/* --- the model --- */

static json_t *model_json(const ds_engine_info *info)
{
    size_t cache = info->kv_bytes_per_token * (size_t)info->context;
    json_t *model = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:i, s:I, s:I, s:I, s:I}", "family", info->family, "layers",
        info->layers, "hidden", info->hidden, "vocab", info->vocab, "context", info->context, "threads",
        info->threads, "isa", info->isa, "integer_matrices", info->integer_matrices, "float_matrices",
        info->float_matrices, "weight_bytes", (json_int_t)info->weight_bytes, "drafter_bytes",
        (json_int_t)info->drafter_bytes, "cache_bytes", (json_int_t)cache, "total_bytes",
        (json_int_t)(info->weight_bytes + info->drafter_bytes + cache));
    json_object_set_new(model, "slow_reason",
                        info->slow_reason ? json_string(info->slow_reason) : json_null());
    json_object_set_new(model, "drafter", info->drafter_kind ? json_string(info->drafter_kind) : json_null());
    json_object_set_new(model, "max_draft", json_integer(info->max_draft));
    json_object_set_new(model, "target_cache", info->target_cache ? json_string(info->target_cache) : json_null());
    json_object_set_new(model, "drafter_cache",
                        info->drafter_cache ? json_string(info->drafter_cache) : json_null());
    return model;
}

static double mb(const json_t *object, const char *key)
{
    return (double)json_integer_value(json_object_get(object, key)) / 1e6;
}

static const char *text(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static int whole(const json_t *object, const char *key)
{
    return (int)json_integer_value(json_object_get(object, key));
}

static void print_machine(const json_t *m)
{
    printf("cpu          %s\n", text(m, "cpu"));
    printf("isa          %s\n", text(m, "isa"));
    printf("cores        %d\n", whole(m, "cores"));
    printf("huge pages   %s%s\n", text(m, "huge_pages"),
           strcmp(text(m, "huge_pages"), "never") ? "" : ": weights are read more slowly without them");
    printf("memory       %.0f MB, %.0f MB available\n", mb(m, "memory_bytes"), mb(m, "available_bytes"));
}

static void print_model(const json_t *m, const json_t *matrices)
{
    printf("\nmodel        %s, %d layers of %d, vocabulary %d, context %d\n", text(m, "family"),
           whole(m, "layers"), whole(m, "hidden"), whole(m, "vocab"), whole(m, "context"));
    printf("runs on      %s, %d threads\n", text(m, "isa"), whole(m, "threads"));
    size_t i;
    json_t *row;
    json_array_foreach(matrices, i, row)
        printf("%s %-10s %3d x %-24s %8.1f MB  %s\n", i ? "            " : "matrices    ", text(row, "class"),
               whole(row, "matrices"), text(row, "type"), mb(row, "bytes"), text(row, "path"));
    printf("paths        %d matrices integer, %d float\n", whole(m, "integer_matrices"),
           whole(m, "float_matrices"));
    if (text(m, "drafter"))
        printf("drafter      %s, up to %d tokens a round\n", text(m, "drafter"), whole(m, "max_draft"));
    printf("memory       %.0f MB weights, %.0f MB drafter, %.0f MB cache at full context: %.0f MB\n",
           mb(m, "weight_bytes"), mb(m, "drafter_bytes"), mb(m, "cache_bytes"), mb(m, "total_bytes"));
    if (text(m, "target_cache"))
        printf("cache        %s\n", text(m, "target_cache"));
    if (text(m, "drafter_cache"))
        printf("             %s\n", text(m, "drafter_cache"));
    printf("slow paths   %s\n", text(m, "slow_reason") ? text(m, "slow_reason") : "none");
}

int cli_doctor(const cli_args *args)
{
    ds_error err = {0};
    ds_engine *engine = NULL;
    ds_status status = DS_OK;
    json_t *result = json_object();
    json_object_set_new(result, "machine", machine());
    if (args->drafter && !args->model)
        status = ds_fail(&err, DS_INVALID, "--drafter needs its target: give --model PATH");
    if (!status && args->model) {
        status = cli_open(&engine, args, true, &err);
        json_t *matrices = NULL;
        if (!status)
            status = ds_bench_inspect(&matrices, args->model, args->exact, &err);
        if (!status) {
            const ds_engine_info *info = ds_engine_get(engine);
            json_object_set_new(result, "model", model_json(info));
            json_object_set_new(result, "matrices", matrices);
            if (args->json)
                status = ds_result_sign(result, args->model, info->threads, info->isa, &err);
        }
    }
    ds_engine_close(engine);
    if (status) {
        json_decref(result);
        return cli_fail(&err);
    }
    if (args->json) {
        json_object_set_new(result, "version", json_string(DSPARK_VERSION));
        return cli_print_json(result);
    }
    print_machine(json_object_get(result, "machine"));
    if (args->model)
        print_model(json_object_get(result, "model"), json_object_get(result, "matrices"));
    json_decref(result);
    return 0;
}
