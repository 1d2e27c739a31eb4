/* attend.h: what the attention files of the tiers share: entry points and the layout of the scratch.
 *
 * Same contract for all: see struct mote_attend in kernel.h. Beyond it:
 *   - a key whose logit is -infinity weighs nothing; when a query sees no other key its output is NaN (0 /
 * 0);
 *   - NaN in a query, or in a key or value that the query sees, gives NaN; what a query does not see is never
 *     mixed in, not even times zero.
 */
#ifndef MOTE_CPU_ATTEND_H
#define MOTE_CPU_ATTEND_H

#include "cpu/kernel.h"

enum {
    MOTE_ATTEND_KEYS = 64,  /* a tile's keys; tiles start at multiples of it, whatever the query */
    MOTE_ATTEND_ROWS = 64,  /* a tile's query rows times heads, about */
    MOTE_ATTEND_PANEL = 16, /* columns of values that lie together */
};

/* Scratch of the vector tiers, all f32, offsets in bytes from its start:
 *   q      [rows][width]      queries, scaled, zeros past head_dim
 *   out    [rows][width]      sums of weighted values so far
 *   score  [rows][KEYS]       logits, then weights
 *   max    [rows], total [rows], shrink [rows]
 *   k      [KEYS][width]
 *   v      [width / PANEL][KEYS][PANEL] */
struct mote_attend_plan {
    int64_t tile_query; /* query rows taken together */
    int64_t rows;       /* tile_query * n_group */
    int64_t width;      /* head_dim rounded up to PANEL */
    size_t q, out, score, max, total, shrink, k, v;
    size_t bytes;
};

struct mote_attend_plan mote_attend_plan(int64_t n_query, int64_t n_group, int64_t head_dim);

void mote_attend_scalar(const struct mote_attend *a);
void mote_attend_avx2(const struct mote_attend *a);

/* The first key that query row i sees. */
static inline int64_t mote_attend_first(const struct mote_attend *a, int64_t i)
{
    int64_t end = a->n_past + i + 1;
    return a->window > 0 && end > a->window ? end - a->window : 0;
}

#endif
