/* kernel_text.h: the device code that travels inside the library: every file of src/cuda/kernels and layout.h.
 *
 * Owns: nothing but the table's type; the table itself is written by the Makefile (tools/embed.sh).
 * One idea: a kernel is found by its file's name and includes the others by theirs, as in the source tree.
 */
#ifndef MOTE_CUDA_KERNEL_TEXT_H
#define MOTE_CUDA_KERNEL_TEXT_H

struct mote_kernel_text {
    const char *name, *text; /* "decode.cu" and all of its characters; a NULL name ends the table */
};
extern const struct mote_kernel_text mote_kernel_texts[];

#endif
