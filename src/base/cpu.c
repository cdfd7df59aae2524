#include "base/cpu.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)
static unsigned probe(void)
{
    unsigned a, b, c, d, flags = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    const unsigned leaf1 =
        1u << 12 /* FMA */ | 1u << 27 /* OSXSAVE */ | 1u << 28 /* AVX */ | 1u << 29 /* F16C */;
    if ((c & leaf1) != leaf1)
        return 0;
    unsigned xcr0, high;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0)); /* what the system saves */
    if ((xcr0 & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    const unsigned avx2 = 1u << 5 | 1u << 8 /* BMI2 */;
    const unsigned avx512 = 1u << 16 /* F */ | 1u << 17 /* DQ */ | 1u << 30 /* BW */ | 1u << 31 /* VL */;
    if ((b & avx2) == avx2)
        flags |= DS_CPU_AVX2;
    if (flags && (xcr0 & 0xE6) == 0xE6 && (b & avx512) == avx512 && (c & 1u << 11 /* VNNI */))
        flags |= DS_CPU_AVX512;
    return flags;
}
#elif defined(__aarch64__)
static unsigned probe(void)
{
    return getauxval(AT_HWCAP) & 1ul << 20 /* ASIMDDP */ ? DS_CPU_NEON : 0;
}
#else
static unsigned probe(void)
{
    return 0;
}
#endif

unsigned ds_cpu_flags(void)
{
    static atomic_uint known; /* flags and a bit for "probed"; two threads may both probe: same answer */
    const unsigned probed = 1u << 31;
    unsigned flags = atomic_load_explicit(&known, memory_order_relaxed);
    if (!flags) {
        flags = probe() | probed;
        atomic_store_explicit(&known, flags, memory_order_relaxed);
    }
    return flags & ~probed;
}

bool ds_cpu_mask(const char *name, unsigned *mask)
{
    static const struct {
        const char *name;
        unsigned mask;
    } masks[] = {
        {"auto", ~0u},         {"c", DS_CPU_NONE}, {"avx2", DS_CPU_AVX2}, {"avx512", DS_CPU_AVX2 | DS_CPU_AVX512},
        {"neon", DS_CPU_NEON},
    };
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++)
        if (strcmp(name, masks[i].name) == 0) {
            *mask = masks[i].mask;
            return true;
        }
    return false;
}

const char *ds_cpu_name(unsigned flags)
{
    return flags & DS_CPU_AVX512 ? "avx512"
           : flags & DS_CPU_AVX2 ? "avx2"
           : flags & DS_CPU_NEON ? "neon"
                                 : "c";
}

static bool read_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool ok = fgets(line, (int)size, file) != NULL;
    fclose(file);
    return ok;
}

/* Does the list, as in "0,4" or "0-1,8-9", name an allowed processor before `cpu`? */
static bool names_earlier(const char *list, int cpu, const unsigned char *allowed)
{
    for (const char *p = list; *p >= '0' && *p <= '9';) {
        char *end;
        long first = strtol(p, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long i = first; i <= last && i < cpu; i++)
            if (i >= 0 && allowed[i])
                return true;
        p = *end == ',' ? end + 1 : end;
    }
    return false;
}

int ds_cpu_count_cores(const char *root, const unsigned char *allowed, int processors)
{
    int cores = 0;
    for (int cpu = 0; cpu < processors; cpu++) {
        char path[512], list[1024];
        if (!allowed[cpu])
            continue;
        snprintf(path, sizeof path, "%s/cpu%d/topology/thread_siblings_list", root, cpu);
        if (!read_line(path, list, sizeof list) || !names_earlier(list, cpu, allowed))
            cores++;
    }
    return cores;
}

static int affinity(void)
{
    int cores = 0;
    for (int cpus = 1024; !cores && cpus <= 1 << 20; cpus *= 4) { /* too small a set is refused */
        size_t size = CPU_ALLOC_SIZE(cpus);
        cpu_set_t *set = calloc(1, size);
        unsigned char *allowed = malloc((size_t)cpus);
        if (set && allowed && sched_getaffinity(0, size, set) == 0) {
            for (int i = 0; i < cpus; i++)
                allowed[i] = CPU_ISSET_S(i, size, set) != 0;
            cores = ds_cpu_count_cores("/sys/devices/system/cpu", allowed, cpus);
        }
        free(set);
        free(allowed);
    }
    return cores > 0 ? cores : 1;
}

/* Processors that the quota files in one cgroup folder grant, rounded up; 0: no limit there. */
static long quota(const char *root, const char *group, bool v2)
{
    char path[1200], line[128];
    long long limit = -1, period = 0;
    if (v2) {
        snprintf(path, sizeof path, "%s%s/cpu.max", root, group);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld %lld", &limit, &period) != 2)
            return 0; /* also "max 100000" */
    } else {
        snprintf(path, sizeof path, "%s%s/cpu.cfs_quota_us", root, group);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &limit) != 1)
            return 0;
        snprintf(path, sizeof path, "%s%s/cpu.cfs_period_us", root, group);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &period) != 1)
            return 0;
    }
    if (limit <= 0 || period <= 0 || limit > 1LL << 40)
        return 0;
    return (long)((limit + period - 1) / period);
}

/* The least quota of our group and its parents: each of them binds. */
static long tree_quota(const char *root, char *group, bool v2)
{
    long least = 0;
    for (;;) {
        long cpus = quota(root, group, v2);
        if (cpus && (!least || cpus < least))
            least = cpus;
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

static long cgroup_quota(void)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return 0;
    char line[1024];
    long least = 0;
    while (fgets(line, sizeof line, file)) { /* ID:CONTROLLERS:/GROUP; version 2 has no controllers */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        controllers++;
        bool v2 = !*controllers, v1 = false;
        char *rest = NULL;
        for (char *name = strtok_r(controllers, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
            v1 = v1 || strcmp(name, "cpu") == 0;
        if (!v2 && !v1)
            continue;
        long cpus = tree_quota(v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu", group, v2);
        if (cpus && (!least || cpus < least))
            least = cpus;
    }
    fclose(file);
    return least;
}

int ds_cpu_cores(void)
{
    int cores = affinity();
    long limit = cgroup_quota();
    return limit > 0 && limit < cores ? (int)limit : cores;
}
