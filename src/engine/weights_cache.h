/* Which file of repacked weights belongs to a target, and which to a drafter of it: two, so that a target's
 * serves every drafter, and plain decoding. */
#ifndef DS_ENGINE_WEIGHTS_CACHE_H
#define DS_ENGINE_WEIGHTS_CACHE_H

#include "draft/draft.h"

enum { DS_CACHE_TEXT = 1100 };

typedef struct {
    const char *dir; /* NULL: off; only used until both are loaded */
    bool read_only;
    bool failed;                                        /* to write: then nothing more is written */
    char *said;                                         /* of what is being loaded; NULL: nothing is kept */
    char target[DS_CACHE_TEXT], drafter[DS_CACHE_TEXT]; /* what happened: "used: ..."; "": nothing */
} ds_weights_cache;

/* Before and after opening a model or drafter; end also where that failed. They never fail. */
void ds_weights_cache_target(ds_weights_cache *cache, ds_backend *be, const ds_checkpoint *target);
void ds_weights_cache_drafter(ds_weights_cache *cache, ds_backend *be, const ds_checkpoint *target,
                              const ds_checkpoint *drafter, const ds_drafter_opts *opts);
void ds_weights_cache_end(ds_weights_cache *cache, ds_backend *be, bool opened);

#endif
