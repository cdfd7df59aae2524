/* Sequences: how many rows of keys and values count, and copies of them in host memory. */
#include "model/internal.h"

#include <stdlib.h>

struct ds_snapshot {
    const ds_model *model;
    int length;
    size_t bytes;
    char data[];
};

ds_status ds_state_open(ds_state **out, ds_model *model, int capacity, ds_error *err)
{
    *out = NULL;
    if (capacity < 1 || capacity > DS_MAX_CONTEXT)
        return ds_fail(err, DS_INVALID, "a sequence can hold 1 to %d rows, not %d", DS_MAX_CONTEXT, capacity);
    ds_state *state = calloc(1, sizeof *state);
    if (!state)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for a sequence");
    const ds_config *c = &model->config;
    ds_kv_shape shape = {
        .layers = c->layers, .kv_heads = c->kv_heads, .dim = c->head_dim, .capacity = capacity};
    ds_status status = model->be->kv_open(model->be, &state->kv, &shape, err);
    if (status) {
        free(state);
        return status;
    }
    state->model = model;
    state->capacity = capacity;
    *out = state;
    return DS_OK;
}

void ds_state_close(ds_state *state)
{
    if (!state)
        return;
    state->model->be->kv_close(state->model->be, state->kv);
    free(state);
}

int ds_state_length(const ds_state *state)
{
    return state->length;
}

/* Rows behind the length are never visible to a later row before it has overwritten them. */
void ds_state_rollback(ds_state *state, int length)
{
    if (length >= 0 && length < state->length)
        state->length = length;
}

ds_status ds_state_snapshot(ds_snapshot **out, const ds_state *state, int length, ds_error *err)
{
    *out = NULL;
    if (length < 0 || length > state->length)
        return ds_fail(err, DS_INVALID, "a snapshot of %d rows of a sequence that has %d", length,
                       state->length);
    ds_backend *be = state->model->be;
    size_t bytes = length ? be->kv_bytes(state->kv, length) : 0;
    ds_snapshot *snap = malloc(sizeof *snap + bytes);
    if (!snap)
        return ds_fail(err, DS_NO_MEMORY, "out of memory for a snapshot of %zu bytes", bytes);
    *snap = (ds_snapshot){.model = state->model, .length = length, .bytes = bytes};
    ds_status status = length ? be->kv_save(be, state->kv, 0, length, snap->data, err) : DS_OK;
    if (status) {
        free(snap);
        return status;
    }
    *out = snap;
    return DS_OK;
}

ds_status ds_state_restore(ds_state *state, const ds_snapshot *snap, ds_error *err)
{
    if (snap->model != state->model)
        return ds_fail(err, DS_INVALID, "the snapshot is of another model");
    if (snap->length > state->capacity)
        return ds_fail(err, DS_INVALID, "a snapshot of %d rows does not fit a sequence of at most %d",
                       snap->length, state->capacity);
    ds_backend *be = state->model->be;
    state->length = 0; /* a failed load leaves no rows that could be trusted */
    ds_status status = snap->length ? be->kv_load(be, state->kv, 0, snap->length, snap->data, err) : DS_OK;
    if (!status)
        state->length = snap->length;
    return status;
}

int ds_snapshot_length(const ds_snapshot *snap)
{
    return snap->length;
}

size_t ds_snapshot_bytes(const ds_snapshot *snap)
{
    return snap->bytes;
}

void ds_snapshot_close(ds_snapshot *snap)
{
    free(snap);
}
