/* host_shortlist.h: for tests: the shortlist of a row by its definition (cuda/step.h), by sorting everything. */
#ifndef MOTE_TESTS_HOST_SHORTLIST_H
#define MOTE_TESTS_HOST_SHORTLIST_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/step.h"

struct host_logit {
    float logit;
    int id;
};
static inline int host_logit_order(const void *a, const void *b)
{
    const struct host_logit *x = (const struct host_logit *)a, *y = (const struct host_logit *)b;
    return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : x->id - y->id;
}

/* error: -1..1, how far the sum is off of what it may be off. */
static inline void host_shortlist(const float *logits, int n, double error, struct mote_shortlist *list)
{
    struct host_logit *all = (struct host_logit *)malloc((size_t)n * sizeof *all);
    double sum = 0;
    int finite = 0, is_bad = 0;
    for (int i = 0; i < n; i++) {
        if (isfinite(logits[i])) {
            all[finite].logit = logits[i];
            all[finite++].id = i;
        } else if (!(logits[i] < 0)) {
            is_bad = 1;
        }
    }
    qsort(all, (size_t)finite, sizeof *all, host_logit_order);
    for (int i = 0; i < finite; i++) sum += exp((double)all[i].logit - (double)all[0].logit);
    memset(list, 0, sizeof *list);
    if (!is_bad) list->n = finite < MOTE_SHORTLIST ? finite : MOTE_SHORTLIST;
    list->sum = (float)(sum * (1 + error * 0.95 * MOTE_SHORTLIST_ERROR));
    for (int i = 0; i < list->n; i++) {
        list->logit[i] = all[i].logit;
        list->id[i] = all[i].id;
    }
    free(all);
}

#endif
