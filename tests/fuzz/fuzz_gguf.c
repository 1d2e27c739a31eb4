/* fuzz_gguf.c: any bytes as a GGUF: an error with a message, or a catalogue whose every matrix can be read. */
#include <stdlib.h>

#include "file/gguf_read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

/* First and last byte of every plane of every expert: outside the file, a sanitizer stops here. */
static void touch(const struct mote_tensor *tensor)
{
    for (int64_t e = 0; e < tensor->dim[2]; e++) {
        struct mote_matrix w = mote_tensor_matrix(tensor, e);
        sink = (uint8_t)(sink + w.data[0] + w.data[(size_t)w.n_row * w.row_bytes - 1]);
        if (w.factor == 0) abort();
        if (tensor->part == NULL && e > 64) e += tensor->dim[2] / 64; /* many experts: some of them */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mote_catalogue *catalogue;
    struct mote_gguf_part part;
    if (mote_catalogue_create("fuzz", "gguf", NULL, &catalogue) != MOTE_OK) abort();
    mote_status status = mote_gguf_parse(catalogue, "fuzz", data, size, 1, &part);
    if (status == MOTE_OK) status = mote_gguf_apply_scales(catalogue);
    if (status == MOTE_OK) {
        for (size_t i = 0; i < catalogue->n_tensor; i++) touch(&catalogue->tensor[i]);
        uint64_t u;
        double f;
        mote_meta_u64(catalogue, "general.alignment", &u);
        mote_meta_u64_at(catalogue, "tokenizer.ggml.token_type", 3, &u);
        mote_meta_u64_at(catalogue, "t.i32s", 1, &u);
        mote_meta_f64(catalogue, "t.f32", &f);
    } else if (!*mote_error()) {
        abort();
    }
    mote_catalogue_close(catalogue);
    return 0;
}
