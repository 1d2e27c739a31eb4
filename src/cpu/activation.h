/* activation.h: what happens to an expert's products before down reads them: every kind, and what it needs.
 *
 * Owns: the list, names, what a kind needs. Does not own: the arithmetic (ops_*.c here, cuda/kernels/expert.cuh there).
 * One idea: everything but the arithmetic is a column of one list, so that nothing else asks which kind it is.
 */
#ifndef MOTE_CPU_ACTIVATION_H
#define MOTE_CPU_ACTIVATION_H

#include "base/error.h"

/* X(kind, name, is_gated, limit): of products g (gate) and u (up) with limit L, in the order of expert.cuh:
 *   SWIGLU          silu(g) u                                 most models
 *   SWIGLU_CLAMPED  silu(min(g, L)) clip(u, -L, L)            deepseek_v4
 *   SWIGLU_STEP     min(silu(g), L) clip(u, -L, L)            step3p5: clamps behind silu
 *   SWIGLU_OAI      c sigmoid(1.702 c) (clip(u, -L, L) + 1)   gpt-oss; c = min(g, L)
 *   RELU2           max(u, 0)^2                               nemotron_h; there is no gate
 * silu(x) = x sigmoid(x). A NaN in what a kind reads is a NaN in what it gives: limits let it through.
 * limit: what the models named have; 0: the kind has none. */
#define MOTE_ACTIVATIONS(X)                    \
    X(SWIGLU, "swiglu", 1, 0)                  \
    X(SWIGLU_CLAMPED, "swiglu_clamped", 1, 10) \
    X(SWIGLU_STEP, "swiglu_step", 1, 7)        \
    X(SWIGLU_OAI, "swiglu_oai", 1, 7)          \
    X(RELU2, "relu2", 0, 0)

enum mote_activation_kind {
#define MOTE_ACTIVATION_ENUM(kind, name, is_gated, limit) MOTE_ACTIVATION_##kind,
    MOTE_ACTIVATIONS(MOTE_ACTIVATION_ENUM)
#undef MOTE_ACTIVATION_ENUM
        MOTE_ACTIVATION_COUNT
};

/* An activation; zeros: SWIGLU. */
struct mote_activation {
    enum mote_activation_kind kind;
    float limit; /* L, where the kind has one */
};

struct mote_activation_traits {
    const char *name; /* as options spell it */
    int is_gated;
    float limit; /* as in the list */
};
const struct mote_activation_traits *mote_activation_traits(enum mote_activation_kind kind);

/* By name, with the list's limit. MOTE_ARGUMENT, which names all there are, for any other. */
mote_status mote_activation_find(const char *name, struct mote_activation *out);

/* MOTE_ARGUMENT: experts with or without a gate whose activation wants it otherwise, a limit that is none (finite and
 * above 0 is), a kind that does not exist. */
mote_status mote_activation_check(const struct mote_activation *activation, int has_gate);

#endif
