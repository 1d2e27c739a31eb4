/* fuzz_json.c: any bytes as config.json: an error with a message, or keys that a model can be planned from. */
#include <stdlib.h>

#include "file/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mote_hf_config config;
    struct mote_catalogue *catalogue;
    struct mote_hf_quant quant;
    mote_status status = mote_hf_config_parse((const char *)data, size, &config);
    if (status != MOTE_OK) {
        if (!*mote_error()) abort();
        return 0;
    }
    if (mote_catalogue_create("fuzz", "huggingface", NULL, &catalogue) != MOTE_OK) abort();
    status = mote_hf_config_keys(&config, "fuzz", catalogue);
    if (status == MOTE_OK && !mote_catalogue_meta(catalogue, "general.architecture")) abort();
    if (mote_hf_config_quant(&config, "model.layers.0.mlp.gate", &quant) == MOTE_OK && quant.group < 16)
        abort();
    mote_catalogue_close(catalogue);
    mote_hf_config_free(&config);
    return 0;
}
