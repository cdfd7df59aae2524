#include "bench/rig.h"

#include "base/clock.h"

enum { MAX_ROWS = 64 };

static json_t *row_of(const ds_profile_row *r, double seconds, int rounds)
{
    json_t *row = json_pack("{s:s, s:s, s:f, s:f, s:f, s:f}", "part", r->part, "op", r->name, "calls",
                            (double)r->calls / rounds, "ms", r->seconds * 1e3 / rounds, "share",
                            seconds > 0 ? r->seconds / seconds : 0.0, "wait_ms", r->wait * 1e3 / rounds);
    if (r->bytes > 0 && r->seconds > 0) {
        json_object_set_new(row, "mb", json_real(r->bytes * 1e-6 / rounds));
        json_object_set_new(row, "gb_per_s", json_real(r->bytes * 1e-9 / r->seconds));
    }
    return row;
}

void ds_rig_profile_begin(ds_rig *rig)
{
    rig->be->profile(rig->be, true);
    rig->profile_begin = ds_now();
}

json_t *ds_rig_profile_end(ds_rig *rig, int rounds)
{
    ds_profile_row rows[MAX_ROWS];
    int n = rig->be->profile_rows(rig->be, rows, MAX_ROWS);
    double seconds = ds_now() - rig->profile_begin;
    rig->be->profile(rig->be, false);
    rounds = rounds > 0 ? rounds : 1;
    /* Between the lists of operations: sampling, accepting, recording. */
    ds_profile_row host = {.part = "host", .name = "between operations", .calls = rounds, .seconds = seconds};
    json_t *out = json_array();
    for (int i = 0; i < n; i++) {
        host.seconds -= rows[i].seconds;
        json_array_append_new(out, row_of(&rows[i], seconds, rounds));
    }
    json_array_append_new(out, row_of(&host, seconds, rounds));
    return out;
}
