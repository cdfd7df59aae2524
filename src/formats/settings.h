/* What a model folder's config.json says about the bytes beside it. Internal to formats/. */
#ifndef DS_FORMATS_SETTINGS_H
#define DS_FORMATS_SETTINGS_H

#include "base/json.h"

/* config's eos_token_id becomes the list of its own ids (those of text_config where it has none) and
 * generation's, each once; generation may be NULL. Without any id it is left as it is. */
ds_status ds_settings_eos(json_t *config, const json_t *generation, const char *where, ds_error *err);

/* What config.json's MLX quantization block says of the module `path`: its own entry, else the
 * block's. *bits and *group stay 0 where it says nothing; *off: the module is listed as not quantised. */
ds_status ds_settings_quant(const json_t *config, const char *path, int *bits, int *group, bool *off,
                            ds_error *err);

#endif
