/* hf_read.h: reads a Hugging Face or MLX folder into a catalogue. Internal to file/. */
#ifndef MOTE_FILE_HF_READ_H
#define MOTE_FILE_HF_READ_H

#include "file/catalogue_build.h"
#include "file/hf_config.h"
#include "file/safetensors.h"

mote_status mote_hf_open(const char *folder, struct mote_budget *budget, struct mote_catalogue **out);

/* Turn the tensors of all shards into the catalogue's; the keys must be there already. */
mote_status mote_hf_assemble(struct mote_catalogue *catalogue, const struct mote_hf_config *config,
                             struct mote_safetensors *set);

#endif
