/* What a machine can do at most, as far as decoding on the CPU needs it: bytes read a second by size and
 * threads, and operations a second of the inner loops. Prints one JSON object.
 *
 *   cc -O3 -march=native -pthread bench/roofline.c -o roofline
 *   roofline [--threads 1,2] [--sizes 64K,96M,1G] [--seconds 0.1] [--repeats 5] [--no-huge] [--no-rates]
 *
 * bandwidth: all threads read one array, each its own part, again and again, as threads that decode share one
 * file of weights; of a plain loop and one that prefetches, the faster counts. Wall time.
 * rates: operations (a multiply and an add are two) a second and core while all threads compute. Time is the
 * threads' processor time, so that other programs disturb little.
 *   int8_dot  unsigned times signed bytes, sums in 32 bits, in registers
 *   u4_dot_1, u4_dot_4  packed 4-bit weights from L1 times 1 or 4 rows of bytes: load, unpack, multiply, add
 * up fp32_fma  fused multiply-adds in registers The instructions are those the file is compiled for: VNNI if
 * they are there, else AVX2's. */
#define _GNU_SOURCE
#include <errno.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if !defined(__AVX2__) || !defined(__FMA__)
#error "roofline.c needs AVX2 and FMA: compile with -march=native, or -mavx2 -mfma"
#endif

enum { MAX_THREADS = 256, MAX_SIZES = 32, MAX_REPEATS = 101 };
static const size_t huge_page = (size_t)2 << 20;

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Results end up here, so that no loop can be left out. */
static volatile int64_t sink;

/* --- reading -------------------------------------------------------------------------------------- */

enum { STEP = 256 }; /* bytes of one turn of the loop */

#ifdef __AVX512F__
typedef __m512i wide;
#define WIDE_OR(a, p) _mm512_or_si512(a, _mm512_load_si512((const void *)(p)))
#else
typedef __m256i wide;
#define WIDE_OR(a, p) _mm256_or_si256(a, _mm256_load_si256((const void *)(p)))
#endif

static inline __attribute__((always_inline)) int64_t read_with(const uint8_t *p, size_t size, size_t ahead)
{
    wide a = {0}, b = {0}, c = {0}, d = {0};
    for (const uint8_t *end = p + size; p < end; p += STEP) {
        if (ahead) /* past the end only of the last part: prefetches never fault */
            for (int line = 0; line < STEP; line += 64)
                _mm_prefetch((const char *)p + ahead + line, _MM_HINT_T0);
        for (size_t at = 0; at < STEP; at += 4 * sizeof(wide)) {
            a = WIDE_OR(a, p + at);
            b = WIDE_OR(b, p + at + sizeof(wide));
            c = WIDE_OR(c, p + at + 2 * sizeof(wide));
            d = WIDE_OR(d, p + at + 3 * sizeof(wide));
        }
    }
    a |= b | c | d;
    return a[0] | a[1] | a[2] | a[3];
}

static int64_t read_plain(const uint8_t *p, size_t size)
{
    return read_with(p, size, 0);
}

static int64_t read_ahead(const uint8_t *p, size_t size)
{
    return read_with(p, size, 2048);
}

/* --- computing ------------------------------------------------------------------------------------ */

/* The compiler must take x for changed: nothing is hoisted, merged or put off. */
#define CHANGED(x) __asm__ volatile("" : "+v"(x))
#define TWELVE(F)  F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
enum { CHAINS = 12, TURNS = 20000, L1_BYTES = 16384, ACT_BYTES = 4096 };

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
static const char isa[] = "avx512-vnni";
#define HAVE_VNNI 1
typedef __m512i vec;
#define SET8(x)        _mm512_set1_epi8(x)
#define SET32(x)       _mm512_set1_epi32(x)
#define DOT(acc, u, s) _mm512_dpbusd_epi32(acc, u, s)
#define AND(a, b)      _mm512_and_si512(a, b)
#define HIGH(a)        _mm512_srli_epi16(a, 4)
#define LOAD(p)        _mm512_load_si512((const void *)(p))
#define ADD32(a, b)    _mm512_add_epi32(a, b)
#elif defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
static const char isa[] = "avx2-vnni";
#define HAVE_VNNI 1
#ifdef __AVXVNNI__
#define DOT(acc, u, s) _mm256_dpbusd_avx_epi32(acc, u, s)
#else
#define DOT(acc, u, s) _mm256_dpbusd_epi32(acc, u, s)
#endif
#else
static const char isa[] = "avx2";
#define HAVE_VNNI 0
#endif
#ifndef LOAD
typedef __m256i vec;
#define SET8(x)     _mm256_set1_epi8(x)
#define SET32(x)    _mm256_set1_epi32(x)
#define AND(a, b)   _mm256_and_si256(a, b)
#define HIGH(a)     _mm256_srli_epi16(a, 4)
#define LOAD(p)     _mm256_load_si256((const void *)(p))
#define ADD32(a, b) _mm256_add_epi32(a, b)
#endif
#ifdef __AVX512F__
typedef __m512 fvec;
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define FSET(x)      _mm512_set1_ps(x)
#else
typedef __m256 fvec;
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define FSET(x)      _mm256_set1_ps(x)
#endif

/* Each of these does a fixed amount of work and returns its operations. */

static double work_fp32(void)
{
    fvec x = FSET(1.0000001f), y = FSET(1e-9f);
#define BEGIN(i) fvec a##i = FSET((float)i);
#define TURN(i)                                                                                              \
    a##i = FMA(a##i, x, y);                                                                                  \
    CHANGED(a##i);
    TWELVE(BEGIN)
    for (int k = 0; k < TURNS; k++) {
        TWELVE(TURN)
    }
#undef BEGIN
#undef TURN
    return 2.0 * (sizeof(fvec) / sizeof(float)) * CHAINS * TURNS;
}

static double work_int8(void)
{
    vec u = SET8(3), s = SET8(5);
#if HAVE_VNNI
#define TURN(i)                                                                                              \
    a##i = DOT(a##i, u, s);                                                                                  \
    CHANGED(a##i);
#else
    const vec one = _mm256_set1_epi16(1);
#define TURN(i)                                                                                              \
    CHANGED(u);                                                                                              \
    a##i = ADD32(a##i, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), one));
#endif
#define BEGIN(i) vec a##i = SET32(i);
#define END(i)   CHANGED(a##i);
    TWELVE(BEGIN)
    for (int k = 0; k < TURNS; k++) {
        TWELVE(TURN)
    }
    TWELVE(END)
#undef BEGIN
#undef TURN
#undef END
    return 2.0 * sizeof(vec) * CHAINS * TURNS;
}

/* `tiles` runs of packed weights side by side give `rows * tiles` sums. A vector of weights holds, for each
 * of its 32-bit lanes, 8 inputs of one output: 4 in the low nibbles, 4 in the high ones; 4 bytes of a row of
 * activations go to all lanes. A block of 32 inputs is 4 vectors a tile. Without VNNI the products of a block
 * are summed in 16 bits, which hold them: 8 * 2 * 15 * 127 < 2^15. */
static inline __attribute__((always_inline)) double work_u4(int rows, int tiles)
{
    static __thread uint8_t weights[L1_BYTES] __attribute__((aligned(64)));
    static __thread int32_t act[ACT_BYTES / 4];
    memset(weights, 0x35, sizeof weights);
    for (int i = 0; i < ACT_BYTES / 4; i++)
        act[i] = 0x01020304 + i % 5;
    const vec mask = SET8(15);
    vec sum[8];
    for (int i = 0; i < rows * tiles; i++)
        sum[i] = SET32(0);
    const size_t block = 4 * sizeof(vec) * (size_t)tiles;
    const int blocks = (int)(L1_BYTES / block), passes = 200;
    for (int pass = 0; pass < passes; pass++) {
        __asm__ volatile("" ::: "memory");
        const uint8_t *w = weights;
        for (int b = 0; b < blocks; b++, w += block) {
            const int32_t *x = act + b % 16 * 8 * rows;
#if !HAVE_VNNI
            vec part[8];
            for (int i = 0; i < rows * tiles; i++)
                part[i] = SET32(0);
#endif
#pragma GCC unroll 4
            for (int step = 0; step < 4; step++) {
                vec low[8], high[8];
#pragma GCC unroll 8
                for (int t = 0; t < tiles; t++) {
                    const vec q = LOAD(w + (size_t)(step * tiles + t) * sizeof(vec));
                    low[t] = AND(q, mask);
                    high[t] = AND(HIGH(q), mask);
                }
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    const vec a = SET32(x[r * 8 + step * 2]), c = SET32(x[r * 8 + step * 2 + 1]);
#pragma GCC unroll 8
                    for (int t = 0; t < tiles; t++) {
                        const int i = r * tiles + t;
#if HAVE_VNNI
                        sum[i] = DOT(sum[i], low[t], a);
                        sum[i] = DOT(sum[i], high[t], c);
#else
                        part[i] = _mm256_add_epi16(part[i], _mm256_maddubs_epi16(low[t], a));
                        part[i] = _mm256_add_epi16(part[i], _mm256_maddubs_epi16(high[t], c));
                        CHANGED(part[i]); /* or products are kept, and spilled, for a sum at the end */
#endif
                    }
                }
            }
#if !HAVE_VNNI
            for (int i = 0; i < rows * tiles; i++)
                sum[i] = ADD32(sum[i], _mm256_madd_epi16(part[i], _mm256_set1_epi16(1)));
#endif
        }
    }
    for (int i = 1; i < rows * tiles; i++)
        sum[0] = ADD32(sum[0], sum[i]);
    sink = sum[0][0] | sum[0][1];
    return 2.0 * 2.0 * (double)(block * (size_t)blocks) * rows * passes;
}

/* As many chains as hide the latency of a sum, and registers hold. */
static double work_u4_1(void)
{
    return work_u4(1, HAVE_VNNI ? 8 : 4);
}

static double work_u4_4(void)
{
    return work_u4(4, 2);
}

static const struct {
    const char *name;
    double (*work)(void);
} kinds[] = {
    {"int8_dot", work_int8}, {"u4_dot_1", work_u4_1}, {"u4_dot_4", work_u4_4}, {"fp32_fma", work_fp32}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* --- threads -------------------------------------------------------------------------------------- */

typedef struct {
    int64_t (*read)(const uint8_t *p, size_t size); /* NULL: computes */
    double (*work)(void);
    const uint8_t *part;
    size_t size;
    double seconds, rate;
    pthread_barrier_t *start;
} job;

static void *run_job(void *arg)
{
    job *j = arg;
    const clockid_t clock = j->read ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    /* a small part is read several times between two looks at the clock */
    const int passes = j->read ? (int)(((size_t)1 << 20) / j->size) + 1 : 1;
    int64_t seen = 0;
    if (j->read)
        seen |= j->read(j->part, j->size);
    else
        j->work();
    pthread_barrier_wait(j->start);
    double begin = seconds_of(clock), took, done = 0;
    do {
        for (int pass = 0; pass < passes && j->read; pass++)
            seen |= j->read(j->part, j->size);
        done += j->read ? (double)j->size * passes : j->work();
        took = seconds_of(clock) - begin;
    } while (took < j->seconds);
    j->rate = done / took;
    if (j->read)
        sink = seen;
    return NULL;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sum of the threads' rates, the median of some runs; *best: the most. */
static double measure(const job *model, int threads, int repeats, double *best)
{
    static pthread_t thread[MAX_THREADS];
    static job jobs[MAX_THREADS];
    double rates[MAX_REPEATS];
    for (int run = 0; run < repeats; run++) {
        pthread_barrier_t start;
        pthread_barrier_init(&start, NULL, (unsigned)threads);
        for (int i = 0; i < threads; i++) {
            jobs[i] = *model;
            jobs[i].part = model->part + (size_t)i * model->size;
            jobs[i].start = &start;
            if (pthread_create(&thread[i], NULL, run_job, &jobs[i])) {
                fprintf(stderr, "roofline: no thread %d could be made\n", i + 1);
                exit(1);
            }
        }
        rates[run] = 0;
        for (int i = 0; i < threads; i++) {
            pthread_join(thread[i], NULL);
            rates[run] += jobs[i].rate;
        }
        pthread_barrier_destroy(&start);
    }
    qsort(rates, (size_t)repeats, sizeof *rates, ascending);
    *best = rates[repeats - 1];
    return rates[repeats / 2];
}

/* --- arguments ------------------------------------------------------------------------------------ */

static int usage(const char *what)
{
    fprintf(stderr,
            "roofline: what is '%s'?\nusage: roofline [--threads 1,2] [--sizes 64K,96M,1G] "
            "[--seconds S] [--repeats N] [--no-huge] [--no-rates]\n",
            what);
    return 2;
}

/* "64K,96M" -> bytes; the number of items, or -1 */
static int parse_list(const char *text, size_t *out, int most, size_t limit)
{
    int n = 0;
    for (const char *p = text; *p;) {
        char *end;
        errno = 0;
        unsigned long long value = strtoull(p, &end, 10);
        int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
        end += shift != 0;
        if (errno || end == p || !value || value > limit >> shift || n == most || (*end && *end != ','))
            return -1;
        out[n++] = (size_t)value << shift;
        p = *end ? end + 1 : end;
    }
    return n ? n : -1;
}

int main(int argc, char **argv)
{
    size_t threads[MAX_SIZES] = {1}, sizes[MAX_SIZES] = {(size_t)256 << 20};
    int n_threads = 1, n_sizes = 1, repeats = 5;
    double seconds = 0.1;
    bool huge = true, rates = true;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool takes = true, good = true;
        if (strcmp(argv[i], "--threads") == 0)
            good = (n_threads = parse_list(value, threads, MAX_SIZES, MAX_THREADS)) > 0;
        else if (strcmp(argv[i], "--sizes") == 0)
            good = (n_sizes = parse_list(value, sizes, MAX_SIZES, (size_t)1 << 40)) > 0;
        else if (strcmp(argv[i], "--seconds") == 0)
            good = (seconds = atof(value)) > 0 && seconds < 3600;
        else if (strcmp(argv[i], "--repeats") == 0)
            good = (repeats = atoi(value)) > 0 && repeats <= MAX_REPEATS;
        else {
            takes = false;
            if (strcmp(argv[i], "--no-huge") == 0)
                huge = false;
            else if (strcmp(argv[i], "--no-rates") == 0)
                rates = false;
            else
                return usage(argv[i]);
        }
        if (!good)
            return usage(value);
        i += takes;
    }
    size_t most = 0;
    for (int i = 0; i < n_sizes; i++)
        most = sizes[i] > most ? sizes[i] : most;
    most = (most + huge_page - 1) / huge_page * huge_page;
    uint8_t *map = mmap(NULL, most + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        fprintf(stderr, "roofline: no memory for an array of %zu MiB\n", most >> 20);
        return 1;
    }
    uint8_t *array = (uint8_t *)(((uintptr_t)map + huge_page - 1) / huge_page * huge_page);
    madvise(array, most, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(array, 1, most); /* or every page would be the same page of zeros */

    printf("{\"isa\":\"%s\",\"huge_pages\":%s,\"seconds\":%g,\"repeats\":%d,\"bandwidth\":[", isa,
           huge ? "true" : "false", seconds, repeats);
    const char *comma = "";
    for (int s = 0; s < n_sizes; s++)
        for (int t = 0; t < n_threads; t++) {
            job model = {.part = array, .size = sizes[s] / threads[t] / STEP * STEP, .seconds = seconds};
            if (!model.size)
                continue;
            double best_plain, best_ahead;
            model.read = read_plain;
            double plain = measure(&model, (int)threads[t], repeats, &best_plain);
            model.read = read_ahead;
            double ahead = measure(&model, (int)threads[t], repeats, &best_ahead);
            printf("%s\n{\"bytes\":%zu,\"threads\":%zu,\"gb_s\":%.2f,\"best_gb_s\":%.2f}", comma, sizes[s],
                   threads[t], (plain > ahead ? plain : ahead) / 1e9,
                   (best_plain > best_ahead ? best_plain : best_ahead) / 1e9);
            comma = ",";
        }
    printf("],\n\"rates\":[");
    comma = "";
    for (int k = 0; k < KINDS && rates; k++)
        for (int t = 0; t < n_threads; t++) {
            job model = {.work = kinds[k].work, .seconds = seconds};
            double best, rate = measure(&model, (int)threads[t], repeats, &best), cores = (double)threads[t];
            printf("%s\n{\"kind\":\"%s\",\"threads\":%zu,\"gop_s_per_core\":%.1f,\"best\":%.1f}", comma,
                   kinds[k].name, threads[t], rate / cores / 1e9, best / cores / 1e9);
            comma = ",";
        }
    printf("]}\n");
    munmap(map, most + huge_page);
    return 0;
}
