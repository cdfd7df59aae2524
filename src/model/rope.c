/* Frequencies of rotary embedding: f_i = theta^(-2i/d), and the ways configs stretch them. */
#include "model/config.h"

#include <math.h>
#include <string.h>

typedef struct {
    ds_config *c;
    const json_t *obj; /* rope_scaling or rope_parameters; NULL: none */
    const char *where; /* the file */
    double theta, factor;
    double original; /* context the model was trained with before stretching */
    ds_error *err;
} rope;

static const double turn = 6.283185307179586476925286766559; /* 2 pi */

static ds_status number(rope *r, const char *key, double min, double max, double *out)
{
    return ds_json_num(r->obj, key, min, max, out, r->where, r->err);
}

static ds_status need_factor(rope *r)
{
    r->factor = 0;
    ds_status status = number(r, "factor", 1e-3, 1e6, &r->factor);
    if (!status && r->factor == 0)
        status = ds_fail(r->err, DS_BAD_FILE, "%s: rope_scaling has no factor", r->where);
    return status;
}

static ds_status stretch_none(rope *r)
{
    (void)r;
    return DS_OK;
}

static ds_status stretch_linear(rope *r)
{
    ds_status status = need_factor(r);
    for (int i = 0; !status && i < r->c->head_dim / 2; i++)
        r->c->freq[i] /= r->factor;
    return status;
}

/* Long wavelengths are stretched, short ones kept, those between blended. */
static ds_status stretch_llama3(rope *r)
{
    double low = 1, high = 4;
    r->original = 8192;
    ds_status status;
    if ((status = need_factor(r)) || (status = number(r, "low_freq_factor", 1e-3, 1e6, &low)) ||
        (status = number(r, "high_freq_factor", 1e-3, 1e6, &high)) ||
        (status = number(r, "original_max_position_embeddings", 1, DS_MAX_CONTEXT, &r->original)))
        return status;
    if (!(high > low))
        return ds_fail(r->err, DS_BAD_FILE, "%s: high_freq_factor (%g) must be above low_freq_factor (%g)",
                       r->where, high, low);
    for (int i = 0; i < r->c->head_dim / 2; i++) {
        double f = r->c->freq[i], turns = r->original * f / turn; /* within the original context */
        if (turns < low)
            f /= r->factor;
        else if (turns <= high) {
            double keep = (turns - low) / (high - low);
            f *= (1 - keep) / r->factor + keep;
        }
        r->c->freq[i] = f;
    }
    return DS_OK;
}

static double yarn_scale(double factor, double weight)
{
    return factor <= 1 ? 1 : 0.1 * weight * log(factor) + 1;
}

/* The (fractional) pair that turns `turns` times within the original context. */
static double yarn_pair(const rope *r, double turns)
{
    return r->c->head_dim * log(r->original / (turn * turns)) / (2 * log(r->theta));
}

static ds_status stretch_yarn(rope *r)
{
    double fast = 32, slow = 1, mscale = 1, mscale_all = 0;
    r->original = 4096;
    ds_status status;
    if ((status = need_factor(r)) ||
        (status = number(r, "original_max_position_embeddings", 1, DS_MAX_CONTEXT, &r->original)) ||
        (status = number(r, "beta_fast", 1e-3, 1e6, &fast)) ||
        (status = number(r, "beta_slow", 1e-3, 1e6, &slow)) ||
        (status = number(r, "mscale", 0, 1e3, &mscale)) ||
        (status = number(r, "mscale_all_dim", 0, 1e3, &mscale_all)))
        return status;
    double first = fmax(floor(yarn_pair(r, fast)), 0);
    double last = fmin(ceil(yarn_pair(r, slow)), r->c->head_dim - 1);
    if (first == last)
        last += 0.001;
    for (int i = 0; i < r->c->head_dim / 2; i++) {
        double t = fmin(fmax((i - first) / (last - first), 0), 1);
        r->c->freq[i] *= (1 - t) + t / r->factor;
    }
    r->c->rope_scale = yarn_scale(r->factor, mscale) / yarn_scale(r->factor, mscale_all);
    return DS_OK;
}

/* Every pair has its own divisor. The factors for long contexts are used at every length, so that a row
 * does not depend on how many follow. */
static ds_status stretch_longrope(rope *r)
{
    int pairs = r->c->head_dim / 2;
    double scale = 0;
    ds_status status = number(r, "original_max_position_embeddings", 2, DS_MAX_CONTEXT, &r->original);
    if (!status)
        status = number(r, "long_mscale", 1e-3, 1e3, &scale);
    if (status)
        return status;
    if (r->original == 0)
        return ds_fail(r->err, DS_BAD_FILE,
                       "%s: original_max_position_embeddings is missing, which longrope needs", r->where);
    const json_t *list = json_object_get(r->obj, "long_factor");
    if (!json_is_array(list) || json_array_size(list) != (size_t)pairs)
        return ds_fail(r->err, DS_BAD_FILE, "%s: long_factor must be a list of %d numbers", r->where, pairs);
    for (int i = 0; i < pairs; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        double divisor = json_number_value(item);
        if (!json_is_number(item) || !(divisor >= 1e-3 && divisor <= 1e6))
            return ds_fail(r->err, DS_BAD_FILE, "%s: long_factor[%d] must be a number from 0.001 to 1e6",
                           r->where, i);
        r->c->freq[i] /= divisor;
    }
    if (scale == 0) {
        double stretch = r->c->context / r->original;
        scale = stretch <= 1 ? 1 : sqrt(1 + log(stretch) / log(r->original));
    }
    r->c->rope_scale = scale;
    return DS_OK;
}

static const struct {
    const char *type;
    ds_status (*stretch)(rope *r);
} kinds[] = {
    {"default", stretch_none},  {"mrope", stretch_none}, /* of text alone: all three positions are one */
    {"linear", stretch_linear}, {"llama3", stretch_llama3},
    {"yarn", stretch_yarn},     {"longrope", stretch_longrope},
};

ds_status ds_rope_parse(ds_config *c, const json_t *config, const char *where, ds_error *err)
{
    rope r = {.c = c, .where = where, .theta = 10000, .err = err};
    static const char *const objects[] = {"rope_parameters", "rope_scaling"}; /* the later one wins */
    ds_status status = ds_json_num(config, "rope_theta", 1.5, 1e15, &r.theta, where, err);
    for (size_t i = 0; !status && i < COUNT(objects); i++) {
        const json_t *obj = json_object_get(config, objects[i]);
        if (!obj || json_is_null(obj))
            continue;
        if (!json_is_object(obj))
            return ds_fail(err, DS_BAD_FILE, "%s: %s must be an object", where, objects[i]);
        r.obj = obj;
        status = ds_json_num(obj, "rope_theta", 1.5, 1e15, &r.theta, where, err);
    }
    const char *type = NULL;
    if (!status)
        status = ds_json_text(r.obj, "type", &type, where, err);
    if (!status)
        status = ds_json_text(r.obj, "rope_type", &type, where, err);
    if (!status) /* some files keep it outside */
        status = ds_json_num(config, "original_max_position_embeddings", 1, DS_MAX_CONTEXT, &r.original,
                             where, err);
    if (status)
        return status;

    c->rope_scale = 1;
    for (int i = 0; i < c->head_dim / 2; i++)
        c->freq[i] = pow(r.theta, -2.0 * i / c->head_dim);
    for (size_t i = 0; i < COUNT(kinds); i++)
        if (!type || strcmp(kinds[i].type, type) == 0)
            return kinds[i].stretch(&r);
    return ds_fail(
        err, DS_BAD_FILE,
        "%s: rope type \"%.40s\" is not supported; default, linear, llama3, yarn, longrope and mrope are",
        where, type);
}
