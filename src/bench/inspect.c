#include "bench/bench.h"

#include "formats/checkpoint.h"

#include <stdlib.h>
#include <string.h>

/* Which class a module belongs to, by a part of its name. */
static const struct {
    const char *part, *name;
} classes[] = {
    {"embed_tokens", "embedding"},
    {"lm_head", "output"},
    {".self_attn.", "attention"},
    {".mlp.", "mlp"},
};

typedef struct {
    const char *class, *path;
    char type[32];
    int matrices;
    uint64_t bytes;
} group;

enum { MAX_GROUPS = 64 };

/* "model.layers.0.mlp.up_proj.weight" -> its module, in out; false: not a weight matrix */
static bool module_of(char *out, size_t size, const ds_tensor *t)
{
    static const char suffix[] = ".weight";
    size_t len = strlen(t->name), cut = sizeof suffix - 1;
    if (t->rank != 2 || len <= cut || len - cut >= size || strcmp(t->name + len - cut, suffix) != 0)
        return false;
    memcpy(out, t->name, len - cut);
    out[len - cut] = 0;
    return true;
}

static void describe(group *g, const char *module, const ds_weight *w, bool exact)
{
    g->class = "other";
    for (size_t i = COUNT(classes); i-- > 0;)
        if (strstr(module, classes[i].part))
            g->class = classes[i].name;
    if (w->type == DS_AFFINE)
        snprintf(g->type, sizeof g->type, "affine %d-bit, group %d", w->affine_bits, w->affine_group);
    else
        snprintf(g->type, sizeof g->type, "%s", ds_dtype_get(w->type)->name);
    g->path = !strcmp(g->class, "embedding")            ? "rows"
              : !exact && w->codes.bits && w->codes_row ? "integer"
                                                        : "float";
    g->bytes = w->bytes;
    g->matrices = 1;
}

static void add(group *groups, int *n, const group *g)
{
    for (int i = 0; i < *n; i++)
        if (!strcmp(groups[i].class, g->class) && !strcmp(groups[i].type, g->type) &&
            !strcmp(groups[i].path, g->path)) {
            groups[i].matrices += g->matrices;
            groups[i].bytes += g->bytes;
            return;
        }
    if (*n < MAX_GROUPS)
        groups[(*n)++] = *g;
}

ds_status ds_bench_inspect(json_t **out, const char *model, bool exact, ds_error *err)
{
    ds_checkpoint *files;
    group groups[MAX_GROUPS];
    int n = 0;
    *out = NULL;
    ds_status status = ds_checkpoint_open(&files, model, err);
    if (status)
        return status;
    for (size_t i = 0; i < ds_checkpoint_count(files); i++) {
        char module[256];
        ds_weight w;
        group g;
        if (!module_of(module, sizeof module, ds_checkpoint_at(files, i)) ||
            ds_checkpoint_weight(files, module, 0, 0, &w, NULL))
            continue;
        describe(&g, module, &w, exact);
        add(groups, &n, &g);
    }
    *out = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(*out, json_pack("{s:s, s:s, s:i, s:I, s:s}", "class", groups[i].class, "type",
                                              groups[i].type, "matrices", groups[i].matrices, "bytes",
                                              (json_int_t)groups[i].bytes, "path", groups[i].path));
    ds_checkpoint_close(files);
    return DS_OK;
}
