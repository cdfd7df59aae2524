#include "check.h"

#include "base/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int usage(const char *arg)
{
    fprintf(stderr,
            "ds_check: what is %s?\nusage: ds_check [--seed N] [--cpu c|avx2|avx512|neon|auto] "
            "[--only KERNEL] [--bench] [--json]\n",
            arg);
    return 2;
}

int main(int argc, char **argv)
{
    check_run run = {.seed = (uint64_t)time(NULL), .cpu_flags = ds_cpu_flags()};
#ifdef DS_CHECK_EMULATED
    if (run.cpu_flags & DS_CPU_AVX2)
        run.cpu_flags |= DS_CPU_AVX512;
#endif
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        unsigned mask;
        if (strcmp(argv[i], "--bench") == 0)
            run.bench = true;
        else if (strcmp(argv[i], "--json") == 0)
            run.json = true;
        else if (strcmp(argv[i], "--seed") == 0 && value)
            run.seed = strtoull(argv[++i], NULL, 0);
        else if (strcmp(argv[i], "--only") == 0 && value)
            run.only = argv[++i];
        else if (strcmp(argv[i], "--cpu") == 0 && value && ds_cpu_mask(value, &mask)) {
            run.cpu_flags &= mask;
            i++;
        } else
            return usage(argv[i]);
    }
    run.rng = run.seed;
    if (!run.json)
        printf("seed %llu, best ISA %s\n", (unsigned long long)run.seed, ds_cpu_name(run.cpu_flags));
    check_matmul(&run);
    check_attention(&run);
    check_rows(&run);
    check_pool(&run);
    if (run.json)
        printf("{\"seed\":%llu,\"checks\":%d,\"failures\":%d,\"skips\":%d}\n", (unsigned long long)run.seed,
               run.checks, run.failures, run.skips);
    else
        printf("%d checks, %d failures, %d skipped\n", run.checks, run.failures, run.skips);
    return run.failures ? 1 : 0;
}
