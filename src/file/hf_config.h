/* hf_config.h: config.json, as GGUF keys and as "how is this module quantised". Internal to file/. */
#ifndef MOTE_FILE_HF_CONFIG_H
#define MOTE_FILE_HF_CONFIG_H

#include "file/catalogue_build.h"
#include "file/hf_names.h"
#include "file/json.h"

struct mote_hf_quant { /* of one module, as MLX spells it */
    const char *mode;
    int bits, group;
    enum mote_format format;
};

struct mote_hf_config {
    json_t *root;
    const struct mote_hf_family *family;
    const json_t *quantization; /* MLX's dictionary, NULL when the model is not quantised */
    int tied;                   /* the embedding is also the output matrix */
};

/* Parse, find the family, and check everything that would make the model one that is not built. */
mote_status mote_hf_config_parse(const char *text, size_t length, struct mote_hf_config *out);
void mote_hf_config_free(struct mote_hf_config *config);
/* Add the keys. `name` is general.name. */
mote_status mote_hf_config_keys(const struct mote_hf_config *config, const char *name,
                                struct mote_catalogue *catalogue);
/* How a module that has scales is quantised: its own entry, or the default. */
mote_status mote_hf_config_quant(const struct mote_hf_config *config, const char *module,
                                 struct mote_hf_quant *out);

#endif
