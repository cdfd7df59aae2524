/* What a kind of drafter gives to drafter.c. Internal to draft/. */
#ifndef DS_DRAFT_KIND_H
#define DS_DRAFT_KIND_H

#include "draft/draft.h"

/* A kind's own structs begin with these. */
typedef struct ds_draft_kind ds_draft_kind;
struct ds_drafter {
    const ds_draft_kind *kind;
    ds_drafter_info info;
    const int32_t *map; /* host, [vocab_out]; NULL: the identity */
};
struct ds_draft_state {
    ds_drafter *drafter;
    int length, capacity;
};

struct ds_draft_kind {
    const char *name;
    /* Is this config.json of the kind? Asked in the table's order, after the refusals of packaging.c. */
    bool (*recognise)(const json_t *config);
    ds_status (*open)(ds_drafter **out, const ds_checkpoint *ckpt, ds_model *target,
                      const ds_drafter_opts *opts, ds_error *err);
    void (*close)(ds_drafter *d);
    ds_status (*state_open)(ds_draft_state **out, ds_drafter *d, int capacity, ds_error *err);
    void (*state_close)(ds_draft_state *s);
    /* n >= 1 rows that fit; length is advanced by the caller. */
    ds_status (*append)(ds_draft_state *s, const float *taps, int n, ds_error *err);
    /* cap is in 1..max_draft, pending inside the target's vocabulary. */
    ds_status (*propose)(ds_draft_state *s, int32_t pending, int cap, ds_draft_pick pick, void *user,
                         ds_draft *out, ds_error *err);
    size_t (*inspect)(ds_draft_state *s, const char *which, float *out, size_t max);
};

extern const ds_draft_kind ds_dspark_kind;

/* Refuses, by name, packagings and kinds that are known but cannot be run. */
ds_status ds_draft_refuse(const ds_checkpoint *ckpt, ds_error *err);
/* Is key's text in obj's string or list of strings `key`, as a part, whatever the case? */
bool ds_config_mentions(const json_t *obj, const char *key, const char *part);
bool ds_config_true(const json_t *obj, const char *key); /* present, and true or a number not 0 */
bool ds_config_set(const json_t *obj, const char *key);  /* present and not null */

#endif
