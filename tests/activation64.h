/* activation64.h: for tests: activations (cpu/activation.h) in float64, and one of every kind with a limit that many
 * numbers around 1 pass. */
#ifndef MOTE_TESTS_ACTIVATION64_H
#define MOTE_TESTS_ACTIVATION64_H

#include <math.h>

#include "cpu/activation.h"

static inline double sigmoid64(double x)
{
    return 1 / (1 + exp(-x));
}

static inline double activation64(const struct mote_activation *a, double g, double u)
{
    double limit = (double)a->limit, least_g = fmin(g, limit), clipped_u = fmax(fmin(u, limit), -limit);
    switch (a->kind) {
    case MOTE_ACTIVATION_SWIGLU: return g * sigmoid64(g) * u;
    case MOTE_ACTIVATION_SWIGLU_CLAMPED: return least_g * sigmoid64(least_g) * clipped_u;
    case MOTE_ACTIVATION_SWIGLU_STEP: return fmin(g * sigmoid64(g), limit) * clipped_u;
    case MOTE_ACTIVATION_SWIGLU_OAI: return least_g * sigmoid64(1.702 * least_g) * (clipped_u + 1);
    case MOTE_ACTIVATION_RELU2: return fmax(u, 0) * fmax(u, 0);
    default: return NAN;
    }
}

/* Of each kind, in the order of the list. */
static const struct mote_activation each_activation[MOTE_ACTIVATION_COUNT] = {
    {MOTE_ACTIVATION_SWIGLU, 0},         {MOTE_ACTIVATION_SWIGLU_CLAMPED, 0.75f},
    {MOTE_ACTIVATION_SWIGLU_STEP, 0.5f}, {MOTE_ACTIVATION_SWIGLU_OAI, 0.625f},
    {MOTE_ACTIVATION_RELU2, 0},
};

static inline int is_gated64(const struct mote_activation *a)
{
    return a->kind != MOTE_ACTIVATION_RELU2;
}

#endif
