#include "bench/sha.h"

#include <dirent.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static ds_status add_file(EVP_MD_CTX *hash, const char *path, ds_error *err)
{
    FILE *file = fopen(path, "rb");
    enum { CHUNK = 1 << 18 };
    unsigned char *chunk = malloc(CHUNK);
    ds_status status = DS_OK;
    if (!file)
        status = ds_fail(err, DS_BAD_FILE, "%s: %s", path, strerror(errno));
    else if (!chunk)
        status = ds_fail(err, DS_NO_MEMORY, "out of memory for a hash");
    while (!status) {
        size_t n = fread(chunk, 1, CHUNK, file);
        if (ferror(file))
            status = ds_fail(err, DS_BAD_FILE, "%s: cannot be read", path);
        else if (n && EVP_DigestUpdate(hash, chunk, n) != 1)
            status = ds_fail(err, DS_INTERNAL, "SHA-256 failed");
        if (!n)
            break;
    }
    if (file)
        fclose(file);
    free(chunk);
    return status;
}

static int is_weight_file(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');
    return dot && !strcmp(dot, ".safetensors");
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static ds_status add_folder(EVP_MD_CTX *hash, const char *path, ds_error *err)
{
    struct dirent **names;
    int n = scandir(path, &names, is_weight_file, by_name);
    if (n < 0)
        return ds_fail(err, DS_BAD_FILE, "%s: %s", path, strerror(errno));
    ds_status status = n ? DS_OK : ds_fail(err, DS_BAD_FILE, "%s: holds no safetensors file", path);
    for (int i = 0; i < n; i++) {
        char file[4096];
        if (snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name) >= (int)sizeof file && !status)
            status = ds_fail(err, DS_BAD_FILE, "%s: the path is too long", path);
        if (!status)
            status = add_file(hash, file, err);
        free(names[i]);
    }
    free(names);
    return status;
}

ds_status ds_model_sha(char out[65], const char *path, ds_error *err)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    struct stat st;
    if (stat(path, &st))
        return ds_fail(err, DS_BAD_FILE, "%s: %s", path, strerror(errno));
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    if (!hash || EVP_DigestInit_ex(hash, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(hash);
        return ds_fail(err, DS_INTERNAL, "SHA-256 cannot be started");
    }
    ds_status status = S_ISDIR(st.st_mode) ? add_folder(hash, path, err) : add_file(hash, path, err);
    if (!status && EVP_DigestFinal_ex(hash, digest, &len) != 1)
        status = ds_fail(err, DS_INTERNAL, "SHA-256 failed");
    EVP_MD_CTX_free(hash);
    for (unsigned i = 0; !status && i < len; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
    return status;
}

ds_status ds_result_sign(json_t *result, const char *path, int threads, const char *isa, ds_error *err)
{
    char sha[65];
    ds_status status = ds_model_sha(sha, path, err);
    if (status)
        return status;
    if (json_object_set_new(result, "model_sha", json_string(sha)) ||
        json_object_set_new(result, "threads", json_integer(threads)) ||
        json_object_set_new(result, "isa", json_string(isa)) ||
        json_object_set_new(result, "version", json_string(DSPARK_VERSION)))
        return ds_fail(err, DS_NO_MEMORY, "out of memory for the result");
    return DS_OK;
}
