/* What talks to the operating system: maps, pages, processor, clock; and errors and the log. */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void test_error(void **state)
{
    (void)state;
    ds_error err = {0};
    assert_int_equal(ds_fail(&err, DS_INVALID, "%s is %d", "x", 3), DS_INVALID);
    assert_int_equal(err.status, DS_INVALID);
    assert_string_equal(err.text, "x is 3");
    assert_int_equal(ds_fail(NULL, DS_DEVICE, "no one listens"), DS_DEVICE);
    char longer[2000];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    ds_fail(&err, DS_BAD_FILE, "%s", longer);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_string_equal(ds_status_text(DS_OK), "OK: ok");
    for (int s = DS_OK; s <= DS_NO_MEMORY; s++)
        assert_non_null(strchr(ds_status_text((ds_status)s), ':'));
    assert_non_null(ds_status_text((ds_status)999));
}

static void keep_line(void *user, int level, const char *line)
{
    snprintf(user, 2000, "%d:%s", level, line);
}

static void test_log(void **state)
{
    (void)state;
    char got[2000] = "";
    ds_log log = {.fn = keep_line, .user = got};
    ds_say(&log, DS_LOG_WARN, "%s %d\nsecond", "a", 1);
    assert_string_equal(got, "2:a 1");
    ds_say(&(ds_log){0}, DS_LOG_INFO, "silent");
    ds_say(NULL, DS_LOG_INFO, "silent");
}

static void test_map(void **state)
{
    (void)state;
    char path[] = "/tmp/ds_map_XXXXXX", fifo[64];
    int fd = mkstemp(path);
    ds_map map;
    ds_error err = {0};
    assert_int_equal(ds_map_open(&map, path, &err), DS_OK); /* empty */
    assert_null(map.data);
    assert_int_equal(map.size, 0);
    ds_map_close(&map);

    size_t size = 3 * 4096 + 5;
    char *bytes = malloc(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i * 7);
    assert_int_equal(write(fd, bytes, size), size);
    close(fd);
    assert_int_equal(ds_map_open(&map, path, &err), DS_OK);
    assert_int_equal(map.size, size);
    assert_memory_equal(map.data, bytes, size);
    ds_map_drop(map.data + 1, map.data + size); /* dropped pages read the same again */
    ds_map_drop(map.data + 5, map.data + 5);
    assert_memory_equal(map.data, bytes, size);
    ds_map_close(&map);
    assert_null(map.data);
    ds_map_close(&map);
    free(bytes);
    unlink(path);

    assert_int_equal(ds_map_open(&map, path, &err), DS_BAD_FILE); /* gone */
    assert_non_null(strstr(err.text, path));
    assert_int_equal(ds_map_open(&map, "/tmp", &err), DS_BAD_FILE);
    snprintf(fifo, sizeof fifo, "%s.fifo", path);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(ds_map_open(&map, fifo, &err), DS_BAD_FILE); /* and does not wait for a writer */
    unlink(fifo);
}

static void test_pages(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 4096, (2 << 20) - 1, 2 << 20, (4 << 20) + 1};
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int reserve = 0; reserve < 3; reserve++) { /* 1: small pages, 2: huge */
            unsigned char *p = reserve ? ds_pages_reserve(sizes[i], reserve > 1) : ds_pages_alloc(sizes[i]);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 4096, 0);
            if (reserve != 1)
                assert_int_equal((uintptr_t)p % (2 << 20), 0);
            if (sizes[i]) {
                assert_int_equal(p[0] | p[sizes[i] - 1], 0);
                p[0] = p[sizes[i] - 1] = 1;
            }
            ds_pages_free(p, sizes[i]);
        }
    void *many = ds_pages_reserve((size_t)64 << 30, false); /* only touched pages count */
    assert_non_null(many);
    ds_pages_free(many, (size_t)64 << 30);
    assert_null(ds_pages_alloc(SIZE_MAX));
    assert_null(ds_pages_reserve(SIZE_MAX - 4096, false));
    ds_pages_free(NULL, 1);
}

static void test_cpu(void **state)
{
    (void)state;
    static const struct {
        const char *name, *best; /* of a machine that has everything on x86 */
    } cases[] = {{"auto", "avx512"}, {"c", "c"}, {"avx2", "avx2"}, {"avx512", "avx512"}};
    unsigned mask;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_true(ds_cpu_mask(cases[i].name, &mask));
        assert_string_equal(ds_cpu_name(mask & (DS_CPU_AVX2 | DS_CPU_AVX512)), cases[i].best);
    }
    assert_true(ds_cpu_mask("neon", &mask));
    assert_string_equal(ds_cpu_name(mask), "neon");
    assert_false(ds_cpu_mask("sse9", &mask));
    unsigned flags = ds_cpu_flags();
    assert_int_equal(flags, ds_cpu_flags());
    if (flags & DS_CPU_AVX512)
        assert_true(flags & DS_CPU_AVX2);
    assert_true(ds_cpu_cores() >= 1);
    assert_true(ds_cpu_cores() <= sysconf(_SC_NPROCESSORS_CONF));
}

/* The files of a machine with two threads a core, made in a folder of its own. */
static void write_siblings(const char *root, int cpu, const char *list)
{
    char path[256];
    static const char *const parts[] = {"", "/topology"};
    for (size_t i = 0; i < COUNT(parts); i++) {
        snprintf(path, sizeof path, "%s/cpu%d%s", root, cpu, parts[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(path, sizeof path, "%s/cpu%d/topology/thread_siblings_list", root, cpu);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(list, file);
    fclose(file);
}

static void test_cores(void **state)
{
    (void)state;
    static const char *const lists[] = {"0,4\n", "1,5\n", "2-3\n", "2-3\n", "0,4\n", "1,5\n", "odd\n"};
    static const struct {
        const char *allowed; /* a digit a processor; the eighth has no file */
        int cores;
    } cases[] = {{"11111111", 5}, {"10000000", 1}, {"10001000", 1}, {"00001100", 2}, {"01110100", 2},
                 {"00110000", 1}, {"00000011", 2}, {"00000000", 0}, {"11", 2},       {"", 0}};
    char root[] = "/tmp/ds_cpu_XXXXXX", command[64];
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < COUNT(lists); i++)
        write_siblings(root, (int)i, lists[i]);
    for (size_t i = 0; i < COUNT(cases); i++) {
        unsigned char allowed[8];
        int n = (int)strlen(cases[i].allowed);
        for (int k = 0; k < n; k++)
            allowed[k] = cases[i].allowed[k] == '1';
        assert_int_equal(ds_cpu_count_cores(root, allowed, n), cases[i].cores);
    }
    assert_int_equal(ds_cpu_count_cores("/nonexistent", (const unsigned char[]){1, 0, 1}, 3), 2);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

static void test_clock(void **state)
{
    (void)state;
    double before = ds_now();
    usleep(2000);
    double passed = ds_now() - before;
    assert_true(passed >= 0.002 && passed < 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error), cmocka_unit_test(test_log), cmocka_unit_test(test_map),
        cmocka_unit_test(test_pages), cmocka_unit_test(test_cpu), cmocka_unit_test(test_cores),
        cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
