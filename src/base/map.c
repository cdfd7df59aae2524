#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

ds_status ds_map_open(ds_map *map, const char *path, ds_error *err)
{
    *map = (ds_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not make us wait */
    if (fd < 0)
        return ds_fail(err, DS_BAD_FILE, "%s: cannot open: %s", path, strerror(errno));
    struct stat st;
    ds_status status = DS_OK;
    if (fstat(fd, &st) < 0) {
        status = ds_fail(err, DS_BAD_FILE, "%s: cannot read: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        status = ds_fail(err, DS_BAD_FILE, "%s: not a regular file", path);
    } else if (st.st_size > 0) {
        void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status = ds_fail(err, errno == ENOMEM ? DS_NO_MEMORY : DS_BAD_FILE,
                             "%s: cannot map %lld bytes: %s", path, (long long)st.st_size, strerror(errno));
        else
            *map = (ds_map){.data = data, .size = (size_t)st.st_size};
    }
    if (!status) {
        map->inode = (uint64_t)st.st_ino;
        map->mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    }
    close(fd); /* the mapping stays */
    return status;
}

void ds_map_close(ds_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->size);
    *map = (ds_map){0};
}

void ds_map_drop(const void *begin, const void *end)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)begin + page - 1) & ~(page - 1), to = (uintptr_t)end & ~(page - 1);
    if (from < to)
        madvise((void *)from, to - from, MADV_DONTNEED); /* only advice: a failure costs memory, no more */
}
