/* Files of repacked matrices: written, used again, and whatever is wrong with one ends in the same bytes. */
#include "backend/cpu/internal.h"
#include "backend/cpu/pack.h"
#include "backend/cpu/packfile.h"
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64], sub[80];
static ds_backend *be;
static int warnings;
static char warning[1024];
static _Atomic int rows_read;

/* --- weights made of arithmetic --- */

static uint32_t mix(uint32_t row, uint32_t col, int zero)
{
    uint32_t h = row * 2654435761u ^ (col + 1) * 40503u ^ (uint32_t)zero;
    h ^= h >> 13;
    h *= 0x5bd1e995;
    return h ^ h >> 15;
}

static void made_codes(const ds_weight *w, uint32_t row, uint8_t *codes, float *scales, float *mins)
{
    atomic_fetch_add(&rows_read, 1);
    for (uint32_t i = 0; i < w->cols; i++)
        codes[i] = (uint8_t)(mix(row, i, w->codes.zero) & ((1u << w->codes.bits) - 1));
    for (uint32_t g = 0; g < w->cols / (uint32_t)w->codes.group; g++) {
        scales[g] = (float)(1 + mix(row, g, 77) % 64) / 64;
        if (w->codes.has_min)
            mins[g] = -(float)(mix(row, g, 78) % 64) / 64;
    }
}

static void made_floats(const ds_weight *w, uint32_t row, float *out)
{
    atomic_fetch_add(&rows_read, 1);
    for (uint32_t i = 0; i < w->cols; i++)
        out[i] = (float)(int)(mix(row, i, w->codes.zero) % 65) / 16 - 2;
}

static bool never_finite(const ds_weight *w, uint32_t begin, uint32_t end)
{
    (void)begin;
    return end < w->rows;
}

#define CODES(b, g, z, m, s) .codes = {.bits = b, .group = g, .zero = z, .has_min = m, .scale_type = s}
static const ds_weight weights[] = {
    {.name = "a", .type = DS_Q4_0, .rows = 300, .cols = 512, CODES(4, 32, 8, false, DS_F16)},
    {.name = "a", .type = DS_Q8_0, .rows = 40, .cols = 64, CODES(8, 32, 128, false, DS_F16)},
    {.name = "b", .type = DS_AFFINE, .rows = 17, .cols = 128, CODES(4, 64, 0, true, DS_BF16)},
    {.name = "c", .type = DS_AFFINE, .rows = 16, .cols = 128, CODES(6, 128, 0, true, DS_F32)},
    {.name = "d", .type = DS_F32, .rows = 1030, .cols = 1024},
    {.name = "e", .type = DS_F16, .rows = 16, .cols = 40},
    {.name = "f", .type = DS_BF16, .rows = 5, .cols = 8},
    {.name = "g", .type = DS_F32, .rows = 600, .cols = 1000},
};
enum { N = sizeof weights / sizeof *weights };

static ds_weight weight_of(int i)
{
    ds_weight w = weights[i];
    w.floats = made_floats;
    w.codes_row = w.codes.bits ? made_codes : NULL;
    return w;
}

/* --- one start --- */

static void on_log(void *user, int level, const char *line)
{
    (void)user;
    if (level < DS_LOG_WARN)
        return;
    warnings++;
    snprintf(warning, sizeof warning, "%s", line);
}

static void open_backend(bool exact)
{
    ds_cpu_opts opts = {.threads = 2, .exact = exact, .log = {on_log, NULL}};
    assert_int_equal(ds_cpu_open(&be, &opts, NULL), DS_OK);
}

/* Opens weights [from, to) and compares them with what they must be. */
static ds_pack_outcome start_some(uint64_t key, bool read_only, int from, int to)
{
    static uint64_t expected[2][N]; /* by exact */
    ds_matrix *m[N];
    ds_pack_report report;
    ds_pack_place place = {.dir = sub, .label = "a model/b", .key = {key, 2}, .read_only = read_only};
    warnings = 0;
    atomic_store(&rows_read, 0);
    be->pack_begin(be, &place);
    for (int i = from; i < to; i++) {
        ds_weight w = weight_of(i);
        assert_int_equal(be->matrix_open(be, &m[i], &w, NULL), DS_OK);
    }
    be->pack_end(be, true, &report);
    for (int i = from; i < to; i++) {
        uint64_t *want = &expected[be->exact][i], got = ds_hash64(m[i]->pages, m[i]->bytes);
        if (!*want)
            *want = got;
        if (got != *want)
            fail_msg("matrix %d differs (%s)", i, report.text);
        assert_ptr_equal(m[i]->pages, m[i]->integer ? m[i]->q.data : m[i]->f.data);
        assert_int_equal((uintptr_t)m[i]->pages % 64, 0);
    }
    assert_true(warnings <= 1);
    if (report.outcome == DS_PACK_USED)
        assert_int_equal(rows_read, 0);
    for (int i = from; i < to; i++)
        be->matrix_close(be, m[i]);
    return report.outcome;
}

static ds_pack_outcome start(uint64_t key)
{
    return start_some(key, false, 0, N);
}

/* The files of the folder; path: of one of them. */
static int files(char *path, size_t size)
{
    int n = 0;
    DIR *d = opendir(sub);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') {
            n++;
            if (path)
                snprintf(path, size, "%s/%s", sub, e->d_name);
        }
    if (d)
        closedir(d);
    return n;
}

static void clear(void)
{
    char path[512];
    while (files(path, sizeof path))
        assert_int_equal(remove(path), 0);
    rmdir(sub);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/dspark_packs_XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(sub, sizeof sub, "%s/made", dir);
    open_backend(false);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    be->close(be);
    clear();
    return rmdir(dir);
}

/* --- tests --- */

/* If this fails because the layout of repacked matrices was changed on purpose: raise DS_PACK_LAYOUT, so that
 * files of the old layout are not used, and put the new hash here. */
static void test_layout(void **state)
{
    (void)state;
    uint64_t hashes[N];
    for (int i = 0; i < N; i++) {
        ds_weight w = weight_of(i);
        ds_matrix *m;
        assert_int_equal(be->matrix_open(be, &m, &w, NULL), DS_OK);
        hashes[i] = ds_hash64(m->pages, m->bytes);
        be->matrix_close(be, m);
    }
    assert_int_equal(DS_PACK_LAYOUT, 1);
    assert_int_equal(ds_hash64(hashes, sizeof hashes), 0xdba6ec39e10ed2fc);
}

static void test_written_then_used(void **state)
{
    (void)state;
    char path[512];
    assert_int_equal(start(1), DS_PACK_WRITTEN);
    assert_int_equal(files(path, sizeof path), 1); /* no unfinished one */
    assert_non_null(strstr(path, "/a_model_b-"));
    for (int i = 0; i < 3; i++)
        assert_int_equal(start(1), DS_PACK_USED);
    assert_int_equal(warnings, 0);
    assert_int_equal(start(2), DS_PACK_WRITTEN); /* of another key */
    assert_int_equal(files(NULL, 0), 2);
    assert_int_equal(start(1), DS_PACK_USED);
    be->close(be);
    open_backend(true); /* exact: of another layout */
    assert_int_equal(start(1), DS_PACK_WRITTEN);
    assert_int_equal(files(NULL, 0), 3);
    assert_int_equal(start(1), DS_PACK_USED);
    be->close(be);
    open_backend(false);
    assert_int_equal(start(1), DS_PACK_USED);
    clear();
}

/* The same key, other matrices: not possible but for a fault of ours, and found. */
static void test_other_matrices(void **state)
{
    (void)state;
    static const int parts[][2] = {{0, N - 1}, {1, N}, {0, N}, {2, 4}, {0, 0}, {3, 4}};
    assert_int_equal(start(1), DS_PACK_WRITTEN);
    for (size_t i = 0; i < COUNT(parts); i++) {
        assert_int_equal(start_some(1, false, parts[i][0], parts[i][1]), DS_PACK_WRITTEN);
        assert_int_equal(warnings, 1);
        if (parts[i][1])
            assert_int_equal(start_some(1, false, parts[i][0], parts[i][1]), DS_PACK_USED);
    }
    clear();
}

static void damage(const char *path, long at, int how)
{
    int fd = open(path, O_RDWR);
    struct stat st;
    uint8_t byte;
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    at = at < 0 ? st.st_size + at : at;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= (uint8_t)how;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void expect_rebuilt(const char *what, long at)
{
    if (start(1) != DS_PACK_WRITTEN || warnings != 1)
        fail_msg("%s %ld: %d warnings", what, at, warnings);
    if (start(1) != DS_PACK_USED || files(NULL, 0) != 1)
        fail_msg("%s %ld: the file was not written anew", what, at);
}

static void test_damaged(void **state)
{
    (void)state;
    char path[512];
    struct stat st;
    assert_int_equal(start(1), DS_PACK_WRITTEN);
    files(path, sizeof path);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 3 * DS_PACK_BLOCK); /* header and table, then several blocks */
    for (long at = 0; at < (long)sizeof(ds_pack_head); at += 7) {
        damage(path, at, 1 << at % 8);
        expect_rebuilt("header", at);
    }
    for (long at = sizeof(ds_pack_head); at < (long)sizeof(ds_pack_head) + N * 72; at += 131) {
        damage(path, at, 1 << at % 8);
        expect_rebuilt("table", at);
    }
    const long places[] = {DS_PACK_BLOCK,
                           DS_PACK_BLOCK + DS_PACK_PIECE - 1,
                           2 * DS_PACK_BLOCK - 1,
                           2 * DS_PACK_BLOCK,
                           -1,
                           -(st.st_size % DS_PACK_BLOCK)};
    for (size_t i = 0; i < COUNT(places); i++) {
        damage(path, places[i], 0x10);
        expect_rebuilt("data", places[i]);
    }
    const long sizes[] = {
        0, 1, 71, 72, 100, 2000, DS_PACK_BLOCK, DS_PACK_BLOCK + 1, st.st_size - 1, st.st_size + 1};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        assert_int_equal(truncate(path, sizes[i]), 0);
        expect_rebuilt("size", sizes[i]);
    }
    clear();
}

/* Another version, and files that only look right because their hashes are. */
static void test_forged(void **state)
{
    (void)state;
    char path[512];
    assert_int_equal(start(1), DS_PACK_WRITTEN);
    files(path, sizeof path);
    for (int what = 0; what < 4; what++) {
        int fd = open(path, O_RDWR);
        ds_pack_head head;
        assert_int_equal(pread(fd, &head, sizeof head, 0), sizeof head);
        head.version += what == 0;
        head.key[1] += what == 1;
        head.count += what == 2 ? 1000000 : 0;
        head.data_at += what == 3 ? DS_PACK_BLOCK : 0;
        head.hash = ds_hash64(&head, offsetof(ds_pack_head, hash));
        assert_int_equal(pwrite(fd, &head, sizeof head, 0), sizeof head);
        close(fd);
        expect_rebuilt("forged", what);
        assert_non_null(strstr(warning, what == 0 ? "version" : what == 1 ? "belongs to other" : "table"));
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not make us wait */
    expect_rebuilt("fifo", 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(start(1), DS_PACK_FAILED);
    assert_int_equal(warnings, 1);
    clear();
}

static void test_read_only(void **state)
{
    (void)state;
    char path[512];
    struct stat st, after;
    assert_int_equal(start_some(1, true, 0, N), DS_PACK_ABSENT);
    assert_int_equal(warnings, 0);
    assert_int_not_equal(stat(sub, &st), 0); /* not even the folder */
    assert_int_equal(start(1), DS_PACK_WRITTEN);
    assert_int_equal(start_some(1, true, 0, N), DS_PACK_USED);
    files(path, sizeof path);
    damage(path, -1, 1);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(start_some(1, true, 0, N), DS_PACK_IGNORED);
    assert_int_equal(warnings, 1);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(st.st_ino, after.st_ino);
    clear();
}

/* Where nothing can be written the start goes on, with one warning. */
static void test_cannot_write(void **state)
{
    (void)state;
    char kept[sizeof sub], path[512];
    memcpy(kept, sub, sizeof sub);
    snprintf(path, sizeof path, "%s/file", dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    const char *const folders[] = {"file", "file/below", "no/such"};
    for (size_t i = 0; i < COUNT(folders); i++) {
        snprintf(sub, sizeof sub, "%.40s/%s", dir, folders[i]);
        assert_int_equal(start(1), DS_PACK_FAILED);
        assert_int_equal(warnings, 1);
        assert_non_null(strstr(warning, sub));
    }
    unlink(path);
    strcpy(sub, "/proc/self");
    assert_int_equal(start(1), DS_PACK_FAILED);
    memcpy(sub, kept, sizeof sub);
    if (geteuid() != 0) { /* root may write anywhere */
        assert_int_equal(mkdir(sub, 0500), 0);
        assert_int_equal(start(1), DS_PACK_FAILED);
        assert_int_equal(warnings, 1);
        rmdir(sub);
    }
    struct rlimit limit, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = (struct rlimit){1 << 20, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(start(1), DS_PACK_FAILED);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(warnings, 1);
    assert_int_equal(files(NULL, 0), 0); /* nothing half-written stays */
    assert_int_equal(start(1), DS_PACK_WRITTEN);
    clear();
}

/* What a killed process left is taken over; what a living one is writing is left to it. */
static void test_unfinished(void **state)
{
    (void)state;
    char path[512], unfinished[600];
    assert_int_equal(start(1), DS_PACK_WRITTEN);
    files(path, sizeof path);
    snprintf(unfinished, sizeof unfinished, "%s.unfinished", path);
    assert_int_equal(rename(path, unfinished), 0);
    assert_int_equal(start(1), DS_PACK_WRITTEN);
    assert_int_equal(files(NULL, 0), 1);
    assert_int_equal(start(1), DS_PACK_USED);
    assert_int_equal(rename(path, unfinished), 0);
    int fd = open(unfinished, O_RDWR); /* a lock of our own is as good as another process's */
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(start(1), DS_PACK_WRITTEN);
    assert_int_equal(warnings, 0);
    assert_int_not_equal(access(path, F_OK), 0);
    close(fd);
    assert_int_equal(start(1), DS_PACK_WRITTEN);
    assert_int_equal(start(1), DS_PACK_USED);
    clear();
}

static void test_concurrent(void **state)
{
    (void)state;
    enum { PROCESSES = 6 };
    be->close(be);
    be = NULL;
    for (int round = 0; round < 3; round++) {
        pid_t children[PROCESSES];
        for (int c = 0; c < PROCESSES; c++) {
            children[c] = fork();
            assert_true(children[c] >= 0);
            if (!children[c]) {
                open_backend(false);
                int bad = 0;
                for (int i = 0; i < 3; i++) {
                    ds_pack_outcome outcome = start(1);
                    bad += warnings || (outcome != DS_PACK_USED && outcome != DS_PACK_WRITTEN);
                }
                be->close(be);
                _exit(bad);
            }
        }
        for (int c = 0; c < PROCESSES; c++) {
            int result;
            assert_int_equal(waitpid(children[c], &result, 0), children[c]);
            assert_int_equal(result, 0);
        }
        open_backend(false);
        assert_int_equal(start(1), DS_PACK_USED);
        assert_int_equal(files(NULL, 0), 1);
        be->close(be);
        clear();
    }
    open_backend(false);
}

/* A load that fails writes nothing; a backend may be closed in the middle of one. */
static void test_failed_load(void **state)
{
    (void)state;
    ds_pack_place place = {.dir = sub, .label = "x"};
    ds_pack_report report;
    ds_error err;
    ds_matrix *m;
    ds_weight w = weight_of(0);
    w.finite = never_finite;
    be->pack_begin(be, &place);
    assert_int_equal(be->matrix_open(be, &m, &w, &err), DS_BAD_FILE);
    assert_null(m);
    assert_non_null(strstr(err.text, "NaN or infinite"));
    be->pack_end(be, false, &report);
    assert_int_equal(report.outcome, DS_PACK_OFF);
    assert_int_equal(files(NULL, 0), 0);
    be->pack_end(be, true, &report); /* nothing begun */
    assert_int_equal(report.outcome, DS_PACK_OFF);
    ds_table *table;
    w.bytes = 4096; /* says how the rows are shared out */
    assert_int_equal(be->table_open(be, &table, &w, &err), DS_BAD_FILE);
    assert_null(table);
    be->pack_begin(be, &place);
    w.finite = NULL;
    assert_int_equal(be->matrix_open(be, &m, &w, &err), DS_OK);
    be->matrix_close(be, m);
    be->close(be);
    open_backend(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),         cmocka_unit_test(test_written_then_used),
        cmocka_unit_test(test_other_matrices), cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_forged),         cmocka_unit_test(test_read_only),
        cmocka_unit_test(test_cannot_write),   cmocka_unit_test(test_unfinished),
        cmocka_unit_test(test_concurrent),     cmocka_unit_test(test_failed_load),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
