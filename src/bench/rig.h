/* A model on the CPU, as measurements need it: no engine, no queue. */
#ifndef DS_BENCH_RIG_H
#define DS_BENCH_RIG_H

#include "bench/bench.h"
#include "decode/decode.h"

typedef struct {
    ds_checkpoint *target_files, *drafter_files;
    ds_backend *be;
    ds_model *model;
    ds_drafter *drafter;
    double profile_begin;
} ds_rig;

ds_status ds_rig_open(ds_rig *rig, const ds_bench_setup *setup, ds_error *err);
void ds_rig_release(ds_rig *rig); /* zeroed or half-open is fine */
void ds_rig_ran(const ds_rig *rig, ds_bench_ran *ran);

/* n pseudo-random ids of the model's vocabulary, the same in every run; malloc'd, NULL: no memory */
int32_t *ds_rig_ids(const ds_rig *rig, int n);
/* Feeds n ids in pieces, without logits, and waits. */
ds_status ds_rig_feed(ds_rig *rig, ds_state *state, const int32_t *ids, int n, bool last_logits,
                      ds_error *err);

/* Times every operation from begin to end, which gives averages a round:
 * [{part, op, calls, ms, share, wait_ms}], and {mb, gb_per_s} where weights are read. */
void ds_rig_profile_begin(ds_rig *rig);
json_t *ds_rig_profile_end(ds_rig *rig, int rounds);

double ds_median(double *values, int n); /* sorts them; n >= 1 */

#endif
