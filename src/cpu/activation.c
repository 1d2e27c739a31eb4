/* activation.c: the list of activations as a table. See activation.h. */
#include "cpu/activation.h"

#include <math.h>
#include <string.h>

static const struct mote_activation_traits traits[MOTE_ACTIVATION_COUNT] = {
#define TRAITS(kind, name, is_gated, limit) {name, is_gated, limit},
    MOTE_ACTIVATIONS(TRAITS)
#undef TRAITS
};

const struct mote_activation_traits *mote_activation_traits(enum mote_activation_kind kind)
{
    return &traits[kind];
}

mote_status mote_activation_find(const char *name, struct mote_activation *out)
{
#define NAME(kind, name, is_gated, limit) " " name
    static const char names[] = MOTE_ACTIVATIONS(NAME);
#undef NAME
    for (int k = 0; k < MOTE_ACTIVATION_COUNT; k++)
        if (!strcmp(traits[k].name, name)) {
            *out = (struct mote_activation){(enum mote_activation_kind)k, traits[k].limit};
            return MOTE_OK;
        }
    return mote_fail(MOTE_ARGUMENT, "activation '%s' is not known; there are:%s", name, names);
}

mote_status mote_activation_check(const struct mote_activation *a, int has_gate)
{
    FAIL_IF((unsigned)a->kind >= MOTE_ACTIVATION_COUNT, MOTE_ARGUMENT, "activation %d, expected 0..%d",
            (int)a->kind, MOTE_ACTIVATION_COUNT - 1);
    const struct mote_activation_traits *t = &traits[a->kind];
    FAIL_IF(t->is_gated != (has_gate != 0), MOTE_ARGUMENT, "activation %s, experts %s a gate", t->name,
            has_gate ? "with" : "without");
    FAIL_IF(t->limit > 0 && !(a->limit > 0 && isfinite(a->limit)), MOTE_ARGUMENT,
            "activation %s: limit %g, expected a number above 0", t->name, (double)a->limit);
    return MOTE_OK;
}
