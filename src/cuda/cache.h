/* cache.h: compiled kernels on disk, so that a model starts without compiling.
 *
 * Owns: where the cache lies, what an entry looks like, and the proof that one is whole.
 * Does not own: what makes an entry's key (compile.c).
 * One idea: an entry is a file named by its key, written under another name and renamed, and believed only when its
 * key, its length and the hash of its contents are right. Nothing is locked: two writers write the same bytes.
 */
#ifndef MOTE_CUDA_CACHE_H
#define MOTE_CUDA_CACHE_H

#include "cuda/cuda.h"

struct mote_digest { /* 128 bits, for telling apart and for damage, not against attackers */
    uint64_t a, b;
};
struct mote_digest mote_digest_start(void);
void mote_digest_add(struct mote_digest *digest, const void *data, size_t size);
void mote_digest_text(struct mote_digest *digest, const char *text); /* with its terminator */

/* A compiled unit: one block, the same in memory and on disk. */
struct mote_cubin {
    void *memory; /* of everything below; mote_mem_free */
    size_t memory_size;
    const struct mote_cuda_usage *usage; /* [n_usage] */
    size_t n_usage;
    const void *image; /* [image_size] the ELF file that the driver loads, 16-byte aligned */
    size_t image_size;
    int nvrtc; /* number of the NVRTC that made it */
    int cached;
};
void mote_cubin_free(struct mote_cubin *cubin);
mote_status mote_cubin_create(const struct mote_digest *key, int nvrtc, const struct mote_cuda_usage *usage,
                              size_t n_usage, size_t image_size, struct mote_cubin *out, void **image);
/* To be called once the image is filled in. */
void mote_cubin_seal(struct mote_cubin *cubin);

/* $MOTE_CACHE, else $XDG_CACHE_HOME/mote, else ~/.cache/mote, and /kernels. MOTE_NOT_FOUND when none is set. */
enum { MOTE_CACHE_PATH = 1024 };
mote_status mote_cache_folder(char out[MOTE_CACHE_PATH]);
/* Bytes and number of the entries there are; 0 where the folder is missing. */
mote_status mote_cache_size(uint64_t *bytes, uint64_t *n);

/* name: "sm_90a-decode-KEY.cubin" without folder. MOTE_NOT_FOUND for a missing entry, MOTE_FORMAT for a damaged one. */
mote_status mote_cache_read(const char *name, const struct mote_digest *key, struct mote_cubin *out);
mote_status mote_cache_write(const char *name, const struct mote_cubin *cubin);

#endif
