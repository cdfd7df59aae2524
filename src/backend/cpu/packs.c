/* Keeping repacked matrices in a file between starts.
 *
 * The file is read into memory of our own instead of being mapped: file pages are small, which costs
 * decoding speed; one truncated while it is mapped would kill the process; and what was hashed is what is
 * used. It is written under another name, which takes its place when it is complete. */
#include "backend/cpu/packs.h"

#include "backend/cpu/pack.h"
#include "backend/cpu/packfile.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LABEL_MAX = 64 };

typedef struct {
    const ds_matrix *m;
    char *name;
} opened;

struct ds_packs {
    ds_cpu *cpu;
    char *dir, *path;
    uint64_t key[2];
    bool read_only;

    int fd; /* of a file that may be used, else -1 */
    ds_pack_head head;
    ds_pack_entry *entries;
    size_t next;
    char *table;   /* hashes of the blocks, names of the entries */
    ds_slab *slab; /* the data as they are in the file */
    size_t loaded; /* blocks of it that are there */
    bool no_folder;
    ds_error why;  /* not OK: there is a file, but it is not used, or not to its end */

    opened *list; /* all matrices so far */
    size_t n_list, cap;
    bool no_memory; /* the list is not complete */
};

/* 0, an errno, or -1 where the file ends. */
static int transfer(int fd, bool write, void *data, uint64_t at, size_t bytes)
{
    for (char *p = data; bytes;) {
        ssize_t n = write ? pwrite(fd, p, bytes, (off_t)at) : pread(fd, p, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? errno : -1;
        p += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* --- using a file --- */

static void close_file(ds_packs *p)
{
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
    free(p->entries);
    free(p->table);
    p->entries = NULL;
    p->table = NULL;
    ds_slab_give_back(p->slab); /* matrices that came from it keep it */
    p->slab = NULL;
}

static ds_status unreadable(ds_error *err, int failed)
{
    return ds_fail(err, DS_BAD_FILE, "it cannot be read: %s",
                   failed > 0 ? strerror(failed) : "it became shorter");
}

/* Header and table. */
static ds_status read_file(ds_packs *p, ds_error *err)
{
    struct stat st;
    char bytes[sizeof p->head];
    if (fstat(p->fd, &st))
        return unreadable(err, errno);
    if (!S_ISREG(st.st_mode))
        return ds_fail(err, DS_BAD_FILE, "it is no regular file");
    uint64_t size = (uint64_t)st.st_size;
    size_t n = size < sizeof bytes ? (size_t)size : sizeof bytes;
    int failed = transfer(p->fd, false, bytes, 0, n);
    if (failed)
        return unreadable(err, failed);
    ds_status status = ds_pack_read_head(&p->head, bytes, n, size, p->key, err);
    if (status)
        return status;
    p->table = malloc((size_t)p->head.table_bytes + 1);
    p->slab = ds_slab_open((size_t)(size - p->head.data_at));
    if (!p->table || !p->slab)
        return ds_fail(err, DS_NO_MEMORY, "there is no memory for it");
    failed = transfer(p->fd, false, p->table, sizeof p->head, (size_t)p->head.table_bytes);
    return failed ? unreadable(err, failed) : ds_pack_read_table(&p->entries, &p->head, p->table, err);
}

typedef struct {
    const ds_packs *p;
    uint8_t *data;
    size_t block;
    atomic_int *failed;
    atomic_bool *damaged;
} load_arg;

static void load_task(void *arg, int chunk, int worker)
{
    (void)worker;
    const load_arg *a = arg;
    const ds_packs *p = a->p;
    size_t block = a->block + (size_t)chunk, pieces = 0;
    uint64_t at = (uint64_t)block * DS_PACK_BLOCK, end = p->head.file_bytes - p->head.data_at;
    uint64_t hashes[DS_PACK_PIECES], wanted;
    end = end < at + DS_PACK_BLOCK ? end : at + DS_PACK_BLOCK;
    for (; at < end; at += DS_PACK_PIECE) {
        size_t bytes = end - at < DS_PACK_PIECE ? (size_t)(end - at) : DS_PACK_PIECE;
        int failed = transfer(p->fd, false, a->data + at, p->head.data_at + at, bytes);
        if (failed) {
            atomic_store(a->failed, failed);
            return;
        }
        hashes[pieces++] = ds_hash64(a->data + at, bytes);
    }
    memcpy(&wanted, p->table + block * sizeof wanted, sizeof wanted);
    if (ds_hash64(hashes, pieces * sizeof *hashes) != wanted)
        atomic_store(a->damaged, true);
}

/* Reads on to where the entry ends, and further: all threads need something to do, but progress is to show.
 */
static ds_status load_to(ds_packs *p, const ds_pack_entry *e, ds_error *err)
{
    size_t all = ds_pack_blocks(p->head.data_at, p->head.file_bytes);
    size_t want = ds_pack_blocks(p->head.data_at, e->at + e->bytes);
    if (want <= p->loaded)
        return DS_OK;
    size_t step = 64 + 4 * (size_t)ds_pool_threads(p->cpu->pool);
    want = want > p->loaded + step ? want : p->loaded + step;
    want = want < all ? want : all;
    atomic_int failed = 0;
    atomic_bool damaged = false;
    uint8_t *data = ds_slab_share(p->slab);
    for (size_t n; p->loaded < want; p->loaded += n) {
        n = want - p->loaded < DS_POOL_MAX_CHUNKS ? want - p->loaded : DS_POOL_MAX_CHUNKS;
        ds_pool_waits(p->cpu->pool);
        load_arg *a = ds_pool_add(p->cpu->pool, "load", load_task, (int)n, sizeof *a);
        *a = (load_arg){p, data, p->loaded, &failed, &damaged};
        ds_pool_run(p->cpu->pool);
    }
    ds_slab_give_back(p->slab);
    if (atomic_load(&failed))
        return unreadable(err, atomic_load(&failed));
    return atomic_load(&damaged) ? ds_fail(err, DS_BAD_FILE, "it is damaged: a checksum of its data is wrong")
                                 : DS_OK;
}

static ds_pack_shape shape_of(const ds_matrix *m)
{
    ds_pack_shape s = {.integer = m->integer, .n = (uint32_t)m->n, .k = (uint32_t)m->k};
    if (!m->integer) {
        s.type = m->f.type;
        s.tile_bytes = m->f.tile_bytes;
        return s;
    }
    s.bits = (uint32_t)m->q.bits;
    s.group = (uint32_t)m->q.group;
    s.zero = (uint32_t)m->q.zero;
    s.code_max = (uint32_t)m->q.code_max;
    s.has_min = m->q.has_min;
    s.type = m->q.scale_type;
    s.tile_bytes = m->q.tile_bytes;
    return s;
}

/* Takes the next matrix of the file, which must be m: the order is that of loading. */
static ds_status take_next(ds_packs *p, ds_matrix *m, const char *name, ds_error *err)
{
    if (p->next == p->head.count)
        return ds_fail(err, DS_BAD_FILE, "%s is not in it", name);
    const ds_pack_entry *e = &p->entries[p->next];
    ds_pack_shape shape = shape_of(m);
    if (strcmp(e->name, name) != 0 || memcmp(&e->shape, &shape, sizeof shape) != 0 || e->bytes != m->bytes)
        return ds_fail(err, DS_BAD_FILE, "its matrix %zu is not the %s that was expected", p->next, name);
    ds_status status = load_to(p, e, err);
    if (status)
        return status;
    p->next++;
    m->slab = p->slab;
    m->pages = ds_slab_share(p->slab) + (e->at - p->head.data_at);
    return DS_OK;
}

bool ds_packs_take(ds_packs *p, ds_matrix *m, const char *name)
{
    if (!p || p->fd < 0)
        return false;
    if (!take_next(p, m, name, &p->why))
        return true;
    close_file(p); /* what came from it before was as it should be */
    return false;
}

void ds_packs_add(ds_packs *p, const ds_matrix *m, const char *name)
{
    if (!p)
        return;
    if (p->n_list == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 256;
        opened *grown = realloc(p->list, cap * sizeof *grown);
        p->no_memory = p->no_memory || !grown;
        if (!grown)
            return;
        p->list = grown;
        p->cap = cap;
    }
    char *copy = strdup(name);
    p->no_memory = p->no_memory || !copy;
    if (copy)
        p->list[p->n_list++] = (opened){m, copy};
}

bool ds_packs_checked(const ds_packs *p)
{
    return p && p->fd >= 0;
}

/* --- writing a file --- */

/* DIR/LABEL-KEY.dspack */
static char *path_of(const ds_pack_place *place, const uint64_t key[2])
{
    static const char kept[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    char label[LABEL_MAX + 1], *path;
    size_t len = 0;
    for (const char *c = place->label; *c && len < LABEL_MAX; c++)
        label[len++] = strchr(kept, *c) ? *c : '_';
    label[len] = 0;
    int n = asprintf(&path, "%s/%s-%016" PRIx64 "%016" PRIx64 ".dspack", place->dir, label, key[0], key[1]);
    return n < 0 ? NULL : path;
}

/* Takes the unfinished file for ourselves: whoever holds its lock writes it. What a killed process left is
 * taken over. 0 and *busy: somebody else is writing, or just has. */
static int lock_unfinished(const char *path, int *fd, bool *busy)
{
    struct stat ours, now;
    *busy = false;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (*fd < 0)
        return errno;
    int failed = 0;
    if (flock(*fd, LOCK_EX | LOCK_NB)) {
        *busy = errno == EWOULDBLOCK;
        failed = *busy ? 0 : errno;
    } else if (fstat(*fd, &ours) || stat(path, &now) || ours.st_ino != now.st_ino ||
               ours.st_dev != now.st_dev) {
        *busy = true; /* it got its final name between our open and our lock */
    } else if (!S_ISREG(ours.st_mode)) {
        failed = EEXIST;
    } else if (ftruncate(*fd, 0)) {
        failed = errno;
    }
    if (failed || *busy) {
        close(*fd);
        *fd = -1;
    }
    return failed;
}

typedef struct {
    const ds_packs *p;
    const ds_pack_entry *entries; /* of p->list, in its order */
    int fd;
    uint64_t data_at, file_bytes;
    uint64_t *hashes;
    size_t block;
    atomic_int *failed;
} store_arg;

/* The file's bytes [at, at + bytes) from the matrices that lie there. */
static void gather(const store_arg *a, uint8_t *to, uint64_t at, size_t bytes)
{
    size_t low = 0, high = a->p->n_list; /* the last matrix that begins at or before `at` */
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (a->entries[middle].at <= at)
            low = middle;
        else
            high = middle;
    }
    for (size_t i = low; bytes; i++) {
        uint64_t from = at - a->entries[i].at, left = a->entries[i].bytes - from;
        size_t n = left < bytes ? (size_t)left : bytes;
        memcpy(to, a->p->list[i].m->pages + from, n);
        to += n;
        at += n;
        bytes -= n;
    }
}

static void store_task(void *arg, int chunk, int worker)
{
    const store_arg *a = arg;
    size_t block = a->block + (size_t)chunk, pieces = 0;
    uint64_t at = a->data_at + (uint64_t)block * DS_PACK_BLOCK, hashes[DS_PACK_PIECES];
    uint64_t end = a->file_bytes < at + DS_PACK_BLOCK ? a->file_bytes : at + DS_PACK_BLOCK;
    uint8_t *piece = a->p->cpu->local[worker].data + DS_LOCAL_HEADER;
    for (; at < end && !atomic_load(a->failed); at += DS_PACK_PIECE) {
        size_t bytes = end - at < DS_PACK_PIECE ? (size_t)(end - at) : DS_PACK_PIECE;
        gather(a, piece, at, bytes);
        hashes[pieces++] = ds_hash64(piece, bytes);
        int failed = transfer(a->fd, true, piece, at, bytes);
        if (failed)
            atomic_store(a->failed, failed);
    }
    a->hashes[block] = ds_hash64(hashes, pieces * sizeof *hashes);
}

/* The data; returns as transfer. */
static int store_data(ds_packs *p, store_arg all)
{
    size_t blocks = ds_pack_blocks(all.data_at, all.file_bytes);
    if (!ds_locals_get(p->cpu, DS_LOCAL_HEADER + DS_PACK_PIECE)) {
        p->cpu->no_memory = false;
        return ENOMEM;
    }
    for (size_t n; all.block < blocks && !atomic_load(all.failed); all.block += n) {
        n = blocks - all.block < DS_POOL_MAX_CHUNKS ? blocks - all.block : DS_POOL_MAX_CHUNKS;
        ds_pool_waits(p->cpu->pool);
        store_arg *a = ds_pool_add(p->cpu->pool, "store", store_task, (int)n, sizeof *a);
        *a = all;
        ds_pool_run(p->cpu->pool);
    }
    return atomic_load(all.failed);
}

/* Room for all of it, at once where the file system can. */
static int reserve(int fd, uint64_t bytes)
{
    struct rlimit limit; /* the system kills a process that makes a larger file */
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
        return EFBIG;
    if (fallocate(fd, 0, 0, (off_t)bytes) && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR)
        return errno;
    return ftruncate(fd, (off_t)bytes) ? errno : 0;
}

static int write_all(ds_packs *p, int fd, ds_pack_entry *entries)
{
    for (size_t i = 0; i < p->n_list; i++) {
        const ds_matrix *m = p->list[i].m;
        entries[i] = (ds_pack_entry){.name = p->list[i].name, .shape = shape_of(m), .bytes = m->bytes};
    }
    atomic_int stopped = 0;
    store_arg all = {.p = p, .entries = entries, .fd = fd, .failed = &stopped};
    ds_pack_lay_out(entries, p->n_list, &all.data_at, &all.file_bytes);
    int failed = reserve(fd, all.file_bytes);
    if (failed)
        return failed;
    all.hashes = calloc(ds_pack_blocks(all.data_at, all.file_bytes) + 1, sizeof *all.hashes);
    ds_buf head = {0};
    failed = all.hashes ? store_data(p, all) : ENOMEM;
    if (!failed && !ds_pack_build(&head, entries, p->n_list, all.hashes, p->key))
        failed = ENOMEM;
    if (!failed)
        failed = transfer(fd, true, head.data, 0, head.len);
    ds_buf_release(&head);
    free(all.hashes);
    return failed < 0 ? EIO : failed;
}

/* 0 or an errno. */
static int write_file(ds_packs *p, bool *busy)
{
    char *unfinished = NULL;
    int fd = -1, failed = 0;
    *busy = false;
    if (p->no_memory || asprintf(&unfinished, "%s.unfinished", p->path) < 0)
        return ENOMEM;
    ds_pack_entry *entries = calloc(p->n_list + 1, sizeof *entries);
    if (!entries)
        failed = ENOMEM;
    else if (mkdir(p->dir, 0777) && errno != EEXIST)
        failed = errno;
    else
        failed = lock_unfinished(unfinished, &fd, busy);
    if (!failed && !*busy) {
        failed = write_all(p, fd, entries);
        if (!failed && rename(unfinished, p->path))
            failed = errno;
        if (failed)
            unlink(unfinished);
        close(fd); /* and the lock with it */
    }
    free(entries);
    free(unfinished);
    return failed;
}

/* --- begin and end --- */

void ds_cpu_pack_begin(ds_backend *be, const ds_pack_place *place)
{
    ds_cpu *cpu = ds_cpu_of(be);
    ds_cpu_pack_end(be, false, NULL);
    ds_packs *p = calloc(1, sizeof *p);
    if (!p)
        return;
    p->cpu = cpu;
    p->fd = -1;
    p->read_only = place->read_only;
    ds_buf all = {0}; /* what of ours decides a file's bytes joins the caller's key */
    ds_buf_fmt(&all, "%016" PRIx64 "%016" PRIx64 " %s %d %d", place->key[0], place->key[1], DSPARK_VERSION,
               DS_PACK_LAYOUT, be->exact);
    ds_hash128(p->key, ds_buf_text(&all), all.len);
    p->dir = strdup(place->dir);
    p->path = all.failed || !p->dir ? NULL : path_of(place, p->key);
    ds_buf_release(&all);
    cpu->packs = p;
    if (!p->path) {
        p->no_memory = true;
        return;
    }
    p->fd = open(p->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    p->no_folder = p->fd < 0 && p->read_only && errno == ENOTDIR; /* else trying to write says so */
    if (p->no_folder)
        ds_fail(&p->why, DS_BAD_FILE, "%s is not a folder", p->dir);
    else if (p->fd < 0 && errno == ENOENT && p->read_only && !stat(p->dir, &st) && access(p->dir, W_OK))
        ds_fail(&p->why, DS_BAD_FILE, "nothing can be written to %s: %s", p->dir, strerror(errno));
    else if (p->fd < 0 && errno != ENOENT && errno != ENOTDIR)
        ds_fail(&p->why, DS_BAD_FILE, "it cannot be opened: %s", strerror(errno));
    if (p->fd >= 0 && read_file(p, &p->why))
        close_file(p);
}

static void say(ds_packs *p, ds_pack_report *report, ds_pack_outcome outcome, bool warn, const char *text)
{
    ds_say(&p->cpu->be.log, warn ? DS_LOG_WARN : DS_LOG_INFO, "%s", text);
    if (!report)
        return;
    report->outcome = outcome;
    snprintf(report->text, sizeof report->text, "%s", text);
}

static void finish(ds_packs *p, ds_pack_report *report)
{
    char text[sizeof report->text];
    const char *path = p->path ? p->path : "the repacked weights", *why = p->why.text;
    bool bad = p->why.status != DS_OK, busy = false;
    if (!bad && p->fd >= 0 && p->next != p->head.count) {
        ds_fail(&p->why, DS_BAD_FILE, "it has %zu matrices more than the model", p->head.count - p->next);
        bad = true;
    }
    if (!bad && p->fd >= 0) {
        snprintf(text, sizeof text, "repacked weights read from %s", path);
        say(p, report, DS_PACK_USED, false, text);
        return;
    }
    if (p->read_only || p->why.status == DS_NO_MEMORY) { /* the file may be as good as any */
        snprintf(text, sizeof text, bad ? "%s is not used: %s" : "%s is not there yet%s", path,
                 bad ? why : "");
        say(p, report, bad ? DS_PACK_IGNORED : DS_PACK_ABSENT, bad && !p->no_folder, text);
        return;
    }
    close_file(p);
    int failed = write_file(p, &busy);
    if (failed && bad)
        snprintf(text, sizeof text, "%s is not used: %s; it cannot be written anew: %s", path, why,
                 strerror(failed));
    else if (failed)
        snprintf(text, sizeof text, "%s cannot be written, so later starts repack again: %s", path,
                 strerror(failed));
    else
        snprintf(text, sizeof text, "%s%s%s%s", path, bad ? " was not used: " : "", bad ? why : "",
                 busy  ? bad ? "; another process writes it anew" : " is being written by another process"
                 : bad ? "; it is written anew"
                       : " holds the repacked weights for later starts");
    say(p, report, failed ? DS_PACK_FAILED : DS_PACK_WRITTEN, failed || bad, text);
}

void ds_cpu_pack_end(ds_backend *be, bool complete, ds_pack_report *report)
{
    ds_cpu *cpu = ds_cpu_of(be);
    ds_packs *p = cpu->packs;
    cpu->packs = NULL;
    if (report)
        *report = (ds_pack_report){0};
    if (!p)
        return;
    if (complete)
        finish(p, report);
    close_file(p);
    for (size_t i = 0; i < p->n_list; i++)
        free(p->list[i].name);
    free(p->list);
    free(p->dir);
    free(p->path);
    free(p);
}
