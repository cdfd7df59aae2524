#include "base/mem.h"

#include <stdint.h>
#include <sys/mman.h>

static const size_t huge = (size_t)2 << 20;

static size_t round_up(size_t bytes) /* 0: too large */
{
    if (bytes == 0)
        return huge;
    return bytes > SIZE_MAX - 2 * huge ? 0 : (bytes + huge - 1) & ~(huge - 1);
}

/* A mapping is rarely aligned to a huge page: take one more and give the ends back. */
static void *map_aligned(size_t bytes, int flags)
{
    size_t size = round_up(bytes);
    if (!size)
        return NULL;
    char *all = mmap(NULL, size + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (all == MAP_FAILED)
        return NULL;
    size_t head = (huge - ((uintptr_t)all & (huge - 1))) & (huge - 1);
    if (head)
        munmap(all, head);
    if (huge - head)
        munmap(all + head + size, huge - head);
    return all + head;
}

void *ds_pages_alloc(size_t bytes)
{
    void *pages = map_aligned(bytes, 0);
    if (pages)
        madvise(pages, round_up(bytes), MADV_HUGEPAGE);
    return pages;
}

void *ds_pages_reserve(size_t bytes, bool huge_pages)
{
    void *pages = map_aligned(bytes, MAP_NORESERVE);
    if (pages)
        madvise(pages, round_up(bytes), huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return pages;
}

void ds_pages_free(void *pages, size_t bytes)
{
    if (pages)
        munmap(pages, round_up(bytes));
}
