#include "formats/checkpoint.h"

#include "base/buf.h"
#include "formats/dequant.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "formats/settings.h"
#include "formats/weight.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CONFIG_MAX = 16 << 20, INDEX_MAX = 256 << 20, NAME_BYTES = 1024 };

struct ds_checkpoint {
    char *path;
    json_t *config;
    ds_gguf *gguf; /* NULL for folders */
    char **names;  /* of GGUF tensors, translated */
    ds_safetensors **files;
    size_t file_count;
    ds_tensor *tensors; /* sorted by name */
    size_t count;
    uint64_t bytes;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ds_tensor *)a)->name, ((const ds_tensor *)b)->name);
}

static ds_status no_memory(const ds_checkpoint *ckpt, ds_error *err)
{
    return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", ckpt->path);
}

static ds_status sort_tensors(ds_checkpoint *ckpt, ds_error *err)
{
    if (ckpt->count)
        qsort(ckpt->tensors, ckpt->count, sizeof *ckpt->tensors, by_name);
    for (size_t i = 1; i < ckpt->count; i++)
        if (strcmp(ckpt->tensors[i - 1].name, ckpt->tensors[i].name) == 0)
            return ds_fail(err, DS_BAD_FILE, "%s: has tensor %s twice", ckpt->path, ckpt->tensors[i].name);
    return DS_OK;
}

static ds_status open_gguf(ds_checkpoint *ckpt, ds_error *err)
{
    ds_status status = ds_gguf_open(&ckpt->gguf, ckpt->path, err);
    status = status ? status : ds_gguf_config(ckpt->gguf, &ckpt->config, err);
    if (status)
        return status;
    size_t count = ckpt->gguf->count;
    ckpt->bytes = ckpt->gguf->map.size;
    ckpt->names = calloc(count + 1, sizeof *ckpt->names);
    ckpt->tensors = calloc(count + 1, sizeof *ckpt->tensors);
    if (!ckpt->names || !ckpt->tensors)
        return no_memory(ckpt, err);
    ckpt->count = count;
    for (size_t i = 0; i < count; i++) {
        char name[NAME_BYTES];
        ckpt->tensors[i] = ckpt->gguf->tensors[i];
        if (!ds_gguf_hf_name(ckpt->tensors[i].name, name, sizeof name))
            return ds_fail(err, DS_BAD_FILE, "%s: a tensor's name is longer than %d bytes", ckpt->path,
                           NAME_BYTES - 1);
        ckpt->names[i] = strdup(name);
        if (!ckpt->names[i])
            return no_memory(ckpt, err);
        ckpt->tensors[i].name = ckpt->names[i];
    }
    return sort_tensors(ckpt, err);
}

/* FOLDER/NAME in buf, whose text the caller uses until the next call. */
static const char *in_folder(ds_buf *buf, const ds_checkpoint *ckpt, const char *name)
{
    ds_buf_clear(buf);
    ds_buf_fmt(buf, "%s/%s", ckpt->path, name);
    return ds_buf_text(buf);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in the folder that match, sorted. */
static ds_status list_files(const ds_checkpoint *ckpt, const char *pattern, char ***out, size_t *count,
                            ds_error *err)
{
    *out = NULL;
    *count = 0;
    DIR *dir = opendir(ckpt->path);
    if (!dir)
        return ds_fail(err, DS_BAD_FILE, "%s: cannot open: %s", ckpt->path, strerror(errno));
    ds_status status = DS_OK;
    for (struct dirent *entry; !status && (entry = readdir(dir));) {
        if (fnmatch(pattern, entry->d_name, FNM_PERIOD) != 0)
            continue;
        char **grown = realloc(*out, (*count + 1) * sizeof *grown);
        if (grown) {
            *out = grown;
            grown[*count] = strdup(entry->d_name);
        }
        if (!grown || !grown[*count])
            status = no_memory(ckpt, err);
        else
            ++*count;
    }
    closedir(dir);
    if (*count)
        qsort(*out, *count, sizeof **out, by_text);
    return status;
}

static void free_list(char **list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(list[i]);
    free(list);
}

static ds_status open_files(ds_checkpoint *ckpt, ds_buf *path, ds_error *err)
{
    char **names;
    size_t count;
    ds_status status = list_files(ckpt, "model*.safetensors", &names, &count, err);
    if (!status && !count) {
        free_list(names, count);
        status = list_files(ckpt, "*.safetensors", &names, &count, err);
    }
    if (!status && !count)
        status = ds_fail(err, DS_BAD_FILE, "%s: has no .safetensors file", ckpt->path);
    if (!status && !(ckpt->files = calloc(count, sizeof *ckpt->files)))
        status = no_memory(ckpt, err);
    for (size_t i = 0; i < count && !status; i++) {
        status = ds_safetensors_open(&ckpt->files[i], in_folder(path, ckpt, names[i]), err);
        if (status)
            break;
        ckpt->file_count++;
        ckpt->bytes += ckpt->files[i]->map.size;
        ckpt->count += ckpt->files[i]->count;
    }
    free_list(names, count);
    if (status)
        return status;
    ckpt->tensors = calloc(ckpt->count + 1, sizeof *ckpt->tensors);
    if (!ckpt->tensors)
        return no_memory(ckpt, err);
    size_t at = 0;
    for (size_t i = 0; i < ckpt->file_count; i++) {
        const ds_safetensors *st = ckpt->files[i];
        for (size_t t = 0; t < st->count; t++)
            ckpt->tensors[at++] = st->tensors[t];
    }
    return sort_tensors(ckpt, err);
}

/* A shard that was not downloaded shows as a tensor that the index names and no file has. */
static ds_status check_index(const ds_checkpoint *ckpt, ds_buf *path, ds_error *err)
{
    const char *file = in_folder(path, ckpt, "model.safetensors.index.json");
    if (!ds_file_exists(file))
        return DS_OK;
    json_t *index;
    ds_status status = ds_json_load(&index, file, INDEX_MAX, err);
    const char *name;
    json_t *shard;
    json_object_foreach(json_object_get(index, "weight_map"), name, shard)
    {
        if (status)
            break;
        if (!ds_checkpoint_find(ckpt, name))
            status =
                ds_fail(err, DS_BAD_FILE, "%s: tensor %s is missing (the index says it is in %s)", ckpt->path,
                        name, json_is_string(shard) ? json_string_value(shard) : "some file");
    }
    json_decref(index);
    return status;
}

static ds_status open_config(ds_checkpoint *ckpt, ds_buf *path, ds_error *err)
{
    json_t *generation = NULL;
    const char *file = in_folder(path, ckpt, "config.json");
    if (!ds_file_exists(file))
        return ds_fail(err, DS_BAD_FILE, "%s: has no config.json; expected a model folder or a .gguf file",
                       ckpt->path);
    ds_status status = ds_json_load(&ckpt->config, file, CONFIG_MAX, err);
    if (!status && !json_is_object(ckpt->config))
        status = ds_fail(err, DS_BAD_FILE, "%s: is not a JSON object", file);
    if (status)
        return status;
    file = in_folder(path, ckpt, "generation_config.json");
    if (ds_file_exists(file))
        status = ds_json_load(&generation, file, CONFIG_MAX, err);
    status = status ? status : ds_settings_eos(ckpt->config, generation, ckpt->path, err);
    json_decref(generation);
    return status;
}

static ds_status open_folder(ds_checkpoint *ckpt, ds_error *err)
{
    ds_buf path = {0};
    ds_status status = open_config(ckpt, &path, err);
    status = status ? status : open_files(ckpt, &path, err);
    status = status ? status : check_index(ckpt, &path, err);
    ds_buf_release(&path);
    return status;
}

ds_status ds_checkpoint_open(ds_checkpoint **out, const char *path, ds_error *err)
{
    *out = NULL;
    struct stat st;
    if (stat(path, &st) < 0)
        return ds_fail(err, DS_BAD_FILE, "%s: cannot open: %s", path, strerror(errno));
    ds_checkpoint *ckpt = calloc(1, sizeof *ckpt);
    if (!ckpt || !(ckpt->path = strdup(path))) {
        free(ckpt);
        return ds_fail(err, DS_NO_MEMORY, "%s: out of memory", path);
    }
    ds_status status = S_ISDIR(st.st_mode) ? open_folder(ckpt, err) : open_gguf(ckpt, err);
    if (status)
        ds_checkpoint_close(ckpt);
    else
        *out = ckpt;
    return status;
}

void ds_checkpoint_close(ds_checkpoint *ckpt)
{
    if (!ckpt)
        return;
    for (size_t i = 0; i < ckpt->file_count; i++)
        ds_safetensors_close(ckpt->files[i]);
    if (ckpt->gguf && ckpt->names)
        free_list(ckpt->names, ckpt->gguf->count);
    ds_gguf_close(ckpt->gguf);
    json_decref(ckpt->config);
    free(ckpt->files);
    free(ckpt->tensors);
    free(ckpt->path);
    free(ckpt);
}

const char *ds_checkpoint_path(const ds_checkpoint *ckpt)
{
    return ckpt->path;
}

const ds_gguf *ds_checkpoint_gguf(const ds_checkpoint *ckpt)
{
    return ckpt->gguf;
}

uint64_t ds_checkpoint_bytes(const ds_checkpoint *ckpt)
{
    return ckpt->bytes;
}

static void identify(ds_buf *out, const char *path, uint64_t size, int64_t mtime_ns, uint64_t inode)
{
    char *real = realpath(path, NULL); /* gone meanwhile: its name must do */
    ds_buf_fmt(out, "%s %" PRIu64 " %" PRId64 " %" PRIu64 "\n", real ? real : path, size, mtime_ns, inode);
    free(real);
}

ds_status ds_checkpoint_identity(const ds_checkpoint *ckpt, ds_buf *out, ds_error *err)
{
    if (ckpt->gguf) {
        const ds_map *map = &ckpt->gguf->map;
        identify(out, ckpt->path, map->size, map->mtime_ns, map->inode);
    }
    ds_buf config = {0};
    struct stat st;
    if (!ckpt->gguf && stat(in_folder(&config, ckpt, "config.json"), &st) == 0)
        identify(out, ds_buf_text(&config), (uint64_t)st.st_size,
                 (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec, (uint64_t)st.st_ino);
    ds_buf_release(&config);
    for (size_t i = 0; i < ckpt->file_count; i++) { /* in the order of their names */
        const ds_map *map = &ckpt->files[i]->map;
        identify(out, ckpt->path, map->size, map->mtime_ns, map->inode);
    }
    return out->failed ? no_memory(ckpt, err) : DS_OK;
}

json_t *ds_checkpoint_config(const ds_checkpoint *ckpt)
{
    return ckpt->config;
}

size_t ds_checkpoint_count(const ds_checkpoint *ckpt)
{
    return ckpt->count;
}

const ds_tensor *ds_checkpoint_at(const ds_checkpoint *ckpt, size_t i)
{
    return i < ckpt->count ? &ckpt->tensors[i] : NULL;
}

const ds_tensor *ds_checkpoint_find(const ds_checkpoint *ckpt, const char *name)
{
    ds_tensor want = {.name = name};
    return ckpt->count ? bsearch(&want, ckpt->tensors, ckpt->count, sizeof want, by_name) : NULL;
}

/* The tensor MODULE.part. */
static const ds_tensor *find_part(const ds_checkpoint *ckpt, const char *module, const char *part)
{
    ds_buf name = {.max = 1 << 16};
    const ds_tensor *found =
        ds_buf_fmt(&name, "%s.%s", module, part) ? ds_checkpoint_find(ckpt, ds_buf_text(&name)) : NULL;
    ds_buf_release(&name);
    return found;
}

bool ds_checkpoint_has(const ds_checkpoint *ckpt, const char *path)
{
    return find_part(ckpt, path, "weight") != NULL;
}

static ds_status quantised(const ds_checkpoint *ckpt, const char *path, const ds_tensor *words,
                           const ds_tensor *scales, uint32_t cols, ds_weight *out, ds_error *err)
{
    int bits, group;
    bool off;
    ds_status status = ds_settings_quant(ckpt->config, path, &bits, &group, &off, err);
    if (status)
        return status;
    if (off)
        return ds_fail(err, DS_BAD_FILE, "%s: config.json says it is not quantised, but %s.scales is there",
                       path, path);
    return ds_weight_affine(out, path, words, scales, find_part(ckpt, path, "biases"), cols, bits, group,
                            err);
}

ds_status ds_checkpoint_weight(const ds_checkpoint *ckpt, const char *path, uint32_t rows, uint32_t cols,
                               ds_weight *out, ds_error *err)
{
    const ds_tensor *tensor = find_part(ckpt, path, "weight");
    if (!tensor)
        return ds_fail(err, DS_BAD_FILE, "%s: tensor %s.weight is missing", ckpt->path, path);
    const ds_tensor *scales = ckpt->gguf ? NULL : find_part(ckpt, path, "scales");
    if (!scales && tensor->type == DS_U32)
        return ds_fail(err, DS_BAD_FILE, "%s: is quantised, but %s.scales is missing", path, path);
    ds_weight w;
    ds_status status =
        scales ? quantised(ckpt, path, tensor, scales, cols, &w, err) : ds_weight_plain(&w, tensor, err);
    if (status)
        return status;
    if ((rows && w.rows != rows) || (cols && w.cols != cols))
        return ds_fail(err, DS_BAD_FILE, "%s: is [%u, %u], expected [%u, %u]", w.name, w.rows, w.cols,
                       rows ? rows : w.rows, cols ? cols : w.cols);
    *out = w;
    return DS_OK;
}

ds_status ds_checkpoint_vector(const ds_checkpoint *ckpt, const char *name, float *out, size_t n,
                               ds_error *err)
{
    const ds_tensor *tensor = ds_checkpoint_find(ckpt, name);
    if (!tensor)
        return ds_fail(err, DS_BAD_FILE, "%s: tensor %s is missing", ckpt->path, name);
    const ds_dtype_info *info = ds_dtype_get(tensor->type);
    if (tensor->type != DS_F32 && tensor->type != DS_F16 && tensor->type != DS_BF16 && tensor->type != DS_F64)
        return ds_fail(err, DS_BAD_FILE, "%s: a vector of type %s is not supported", name, info->name);
    if (tensor->bytes / info->bytes != n)
        return ds_fail(err, DS_BAD_FILE, "%s: has %" PRIu64 " elements, expected %zu", name,
                       tensor->bytes / info->bytes, n);
    ds_dequant(tensor->type, tensor->data, n, out);
    return DS_OK;
}
