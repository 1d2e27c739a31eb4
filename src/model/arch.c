/* arch.c: the list of architectures. */
#include "model/arch.h"

#include <string.h>

#define ARCHS(X) X(qwen3moe) X(qwen2moe)

static const struct mote_arch *const archs[] = {
#define X(name) &mote_arch_##name,
    ARCHS(X)
#undef X
};

const struct mote_arch *mote_arch_find(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strlen(archs[i]->name) == length && !memcmp(archs[i]->name, name, length)) return archs[i];
    return NULL;
}

const char *mote_arch_names(void)
{
    static const char names[] =
#define X(name) ", " #name
        ARCHS(X)
#undef X
        ;
    return names + 2;
}
