#include "engine/weights_cache.h"

#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The last part of a path, for people who look into the folder. Without links: by whatever name a model is
 * opened, its file is one. */
static void label_of(char *out, size_t size, const char *given)
{
    char *real = realpath(given, NULL);
    const char *path = real ? real : given;
    size_t len = strlen(path);
    while (len && path[len - 1] == '/')
        len--;
    size_t begin = len;
    while (begin && path[begin - 1] != '/')
        begin--;
    if (len - begin > 5 && !strncmp(path + len - 5, ".gguf", 5))
        len -= 5;
    snprintf(out, size, "%.*s", (int)(len - begin), path + begin);
    free(real);
}

/* key: a text that changes with whatever changes the repacked weights of `files`. */
static void begin(ds_weights_cache *cache, ds_backend *be, const ds_checkpoint *files, const ds_buf *key,
                  char *said)
{
    char label[64];
    label_of(label, sizeof label, ds_checkpoint_path(files));
    ds_pack_place place = {.dir = cache->dir, .label = label, .read_only = cache->read_only || cache->failed};
    ds_hash128(place.key, ds_buf_text(key), key->len);
    be->pack_begin(be, &place);
    cache->said = said;
}

void ds_weights_cache_target(ds_weights_cache *cache, ds_backend *be, const ds_checkpoint *target)
{
    ds_buf key = {0};
    if (!cache->dir || !be->pack_begin)
        return;
    if (!ds_checkpoint_identity(target, &key, NULL))
        begin(cache, be, target, &key, cache->target);
    ds_buf_release(&key);
}

void ds_weights_cache_drafter(ds_weights_cache *cache, ds_backend *be, const ds_checkpoint *target,
                              const ds_checkpoint *drafter, const ds_drafter_opts *opts)
{
    ds_buf key = {0};
    if (!cache->dir || !be->pack_begin)
        return;
    ds_status status = ds_checkpoint_identity(drafter, &key, NULL);
    if (!status) /* a narrow copy of the target's head belongs to the drafter's weights */
        status = ds_checkpoint_identity(target, &key, NULL);
    if (!status && ds_buf_fmt(&key, "bits %d, narrow head %d\n", opts->bits, opts->narrow_head))
        begin(cache, be, drafter, &key, cache->drafter);
    ds_buf_release(&key);
}

void ds_weights_cache_end(ds_weights_cache *cache, ds_backend *be, bool opened)
{
    static const char *const states[] = {
        [DS_PACK_OFF] = "",          [DS_PACK_USED] = "used",       [DS_PACK_WRITTEN] = "written",
        [DS_PACK_ABSENT] = "absent", [DS_PACK_IGNORED] = "ignored", [DS_PACK_FAILED] = "failed",
    };
    if (!cache->said)
        return;
    ds_pack_report report;
    be->pack_end(be, opened, &report);
    if (report.outcome != DS_PACK_OFF)
        snprintf(cache->said, DS_CACHE_TEXT, "%s: %s", states[report.outcome], report.text);
    cache->failed = report.outcome == DS_PACK_FAILED;
    cache->said = NULL;
}
