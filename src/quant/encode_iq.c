/* encode_iq.c: IQ2_XXS and IQ3_XXS: groups of 8 (4) magnitudes from a grid of 256, signs of even parity per
 * 8, a 4-bit scale per 32 and a half per 256.
 *
 * The one idea: with sum w |x| g (half of `along`) and sum w g^2 (`energy`) at hand for all 256 entries of a group,
 * the best entry for a scale s is the minimum of s * energy - along: three operations an entry, whatever
 * the weights. So the search is exhaustive: every scale is tried against the whole grid, no neighbour lists.
 * Parity: a group with an odd number of negatives must flip one sign, at a price of 4 s w |x| g for the
 * element; the cheapest element of every entry goes into `along` beforehand, so that entry and flip are
 * chosen together. IQ3_XXS has two grid entries per parity group: then the flip is priced in both and the
 * better half takes it.
 */
#include "quant/encode_block.h"
#include "quant/iq_grid.h"

#define IQ_ROUND 2 /* a third one gains 0.1 % of the error and costs a quarter of the speed */

/* Two formats, one text. */
struct lattice {
    int size;    /* elements per grid entry: 8 or 4 */
    int n_group; /* entries per block of 256 */
    float unit;  /* weight = d * (2 l + 1) * unit * grid */
    float
        lowest; /* of a sub-block's best scale, in units of its root mean square; the highest is 6 times it */
};
static const struct lattice iq2_xxs = {8, 32, 0.125f, 1.0f / 45};
static const struct lattice iq3_xxs = {4, 64, 0.25f, 1.0f / 64};

MOTE_INLINE void fill_tables(const struct lattice *lat, struct mote_iq_scratch *t)
{
    if (t->ready) return;
    for (int e = 0; e < 256; e++) {
        float norm = 0;
        for (int j = 0; j < lat->size; j++) {
            uint64_t entry = lat->size == 8 ? mote_iq2xxs_grid[e] : mote_iq3xxs_grid[e];
            float g = (float)((entry >> 8 * j) & 255);
            t->grid[j][e / 8][e % 8] = g;
            t->square[j][e / 8][e % 8] = g * g;
            norm += g * g;
        }
        t->norm[e / 8][e % 8] = norm;
    }
    t->ready = 1;
}

/* One group's table rows: x[size], w[size] -> along, flipped (if odd: of the wrong parity), energy (if
 * weighted). */
MOTE_INLINE void price_group(const struct lattice *lat, struct mote_iq_scratch *t, const float *x,
                             const float *w, int odd, int weighted, f32x8 *restrict along,
                             f32x8 *restrict flipped, f32x8 *restrict energy)
{
    float wx[8];
    for (int j = 0; j < lat->size; j++) wx[j] = w[j] * (x[j] < 0 ? -x[j] : x[j]);
    for (int k = 0; k < 32; k++) {
        f32x8 sum = t->grid[0][k] * wx[0];
        f32x8 least = sum;
        for (int j = 1; j < lat->size; j++) {
            f32x8 term = t->grid[j][k] * wx[j];
            sum += term;
            least = vec_min(term, least);
        }
        along[k] = 2 * sum;
        if (odd) flipped[k] = 2 * (sum - 2 * least);
    }
    if (!weighted) return;
    for (int k = 0; k < 32; k++) {
        f32x8 sum = t->square[0][k] * w[0];
        for (int j = 1; j < lat->size; j++) sum += t->square[j][k] * w[j];
        energy[k] = sum;
    }
}

/* The minimum over all entries of s * energy - along, for four scales. */
struct four {
    float price[4];
};

MOTE_INLINE struct four cheapest(const f32x8 *along, const f32x8 *energy, const float *scale)
{
    f32x8 s0 = vec_splat(scale[0]), s1 = vec_splat(scale[1]), s2 = vec_splat(scale[2]),
          s3 = vec_splat(scale[3]);
    f32x8 a = along[0], e = energy[0];
    f32x8 p0 = s0 * e - a, p1 = s1 * e - a, p2 = s2 * e - a, p3 = s3 * e - a;
    for (int k = 1; k < 32; k++) {
        a = along[k], e = energy[k];
        p0 = vec_min(s0 * e - a, p0);
        p1 = vec_min(s1 * e - a, p1);
        p2 = vec_min(s2 * e - a, p2);
        p3 = vec_min(s3 * e - a, p3);
    }
    return (struct four){{min8(p0), min8(p1), min8(p2), min8(p3)}};
}

/* The entry that cheapest() priced. */
MOTE_INLINE int cheapest_entry(const f32x8 *along, const f32x8 *energy, float scale, float *price)
{
    f32x8 best = scale * energy[0] - along[0];
    i32x8 where = {0};
    for (int k = 1; k < 32; k++) {
        f32x8 now = scale * energy[k] - along[k];
        i32x8 better = now < best;
        best = vec_select(better, now, best);
        where = (where & ~better) | (better & k);
    }
    int lane = 0;
    for (int j = 1; j < 8; j++)
        if (best[j] < best[lane]) lane = j;
    *price = best[lane];
    return where[lane] * 8 + lane;
}

/* What is known of a block while its scales are searched. */
struct search {
    const struct lattice *lat;
    struct mote_iq_scratch *t;
    int weighted;
    uint8_t odd[32]; /* per 8 elements: an odd number of negatives */
};

MOTE_INLINE const f32x8 *group_energy(const struct search *s, int group)
{
    return s->weighted ? s->t->energy[group] : s->t->norm;
}

/* Error of sub-block ib, less sum w x^2, for four scales. */
MOTE_INLINE struct four price_scales(const struct search *s, int ib, const float *scale)
{
    struct four sum = {{0, 0, 0, 0}};
    for (int eight = 4 * ib; eight < 4 * ib + 4; eight++) {
        if (s->lat->size == 8) {
            struct four a = cheapest(s->odd[eight] ? s->t->flipped[eight] : s->t->along[eight],
                                     group_energy(s, eight), scale);
            for (int j = 0; j < 4; j++) sum.price[j] += scale[j] * a.price[j];
            continue;
        }
        int g = 2 * eight;
        struct four a = cheapest(s->t->along[g], group_energy(s, g), scale);
        struct four b = cheapest(s->t->along[g + 1], group_energy(s, g + 1), scale);
        if (s->odd[eight]) {
            struct four fa = cheapest(s->t->flipped[g], group_energy(s, g), scale);
            struct four fb = cheapest(s->t->flipped[g + 1], group_energy(s, g + 1), scale);
            for (int j = 0; j < 4; j++) {
                float first = fa.price[j] + b.price[j], second = a.price[j] + fb.price[j];
                sum.price[j] += scale[j] * (first < second ? first : second);
            }
        } else {
            for (int j = 0; j < 4; j++) sum.price[j] += scale[j] * (a.price[j] + b.price[j]);
        }
    }
    return sum;
}

/* The entries of sub-block ib for one scale. */
struct choice {
    uint8_t entry[8];
    uint8_t flip[8];     /* this group takes the flip */
    float along, energy; /* sums over the chosen entries */
};

MOTE_INLINE void choose_entries(const struct search *s, int ib, float scale, struct choice *out)
{
    int per_eight = 8 / s->lat->size;
    *out = (struct choice){0};
    for (int i = 0; i < 4; i++) {
        int eight = 4 * ib + i, g = eight * per_eight, entry[2], flip = 0;
        float price[2], ignored;
        if (per_eight == 1) {
            flip = s->odd[eight];
            entry[0] =
                cheapest_entry(flip ? s->t->flipped[g] : s->t->along[g], group_energy(s, g), scale, &ignored);
        } else {
            for (int j = 0; j < 2; j++)
                entry[j] = cheapest_entry(s->t->along[g + j], group_energy(s, g + j), scale, &price[j]);
            if (s->odd[eight]) {
                int other[2];
                float other_price[2];
                for (int j = 0; j < 2; j++)
                    other[j] =
                        cheapest_entry(s->t->flipped[g + j], group_energy(s, g + j), scale, &other_price[j]);
                flip = other_price[0] + price[1] < price[0] + other_price[1] ? 1 : 2;
                entry[flip - 1] = other[flip - 1];
            }
        }
        for (int j = 0; j < per_eight; j++) {
            int at = i * per_eight + j, flipped = (flip >> j) & 1;
            const f32x8 *along = flipped ? s->t->flipped[g + j] : s->t->along[g + j];
            out->entry[at] = (uint8_t)entry[j];
            out->flip[at] = (uint8_t)flipped;
            out->along += 0.5f * along[entry[j] / 8][entry[j] % 8];
            out->energy += group_energy(s, g + j)[entry[j] / 8][entry[j] % 8];
        }
    }
}

/* The best scale of sub-block ib if it could be any number, to some percent: eight steps of 1.3 from the lowest one
 * that makes sense, then four finer ones around the best. */
MOTE_INLINE float free_scale(const struct search *s, int ib, float rms)
{
    float scale[4], best = 0, best_price = 0, next = rms * s->lat->lowest;
    if (rms == 0) return 0;
    for (int batch = 0; batch < 3; batch++) {
        for (int j = 0; j < 4; j++, next *= 1.3f)
            scale[j] = batch < 2 ? next : best * (0.865f + 0.09f * (float)j);
        struct four price = price_scales(s, ib, scale);
        for (int j = 0; j < 4; j++) {
            if (best > 0 && price.price[j] >= best_price) continue;
            best_price = price.price[j];
            best = scale[j];
        }
    }
    return best;
}

struct solution {
    uint16_t d_bits;
    float d;
    uint8_t scale[8];
    struct choice choice[8];
};

MOTE_INLINE void solve_block(const struct lattice *lat, struct mote_iq_scratch *t, const struct block *b,
                             int weighted, struct solution *out)
{
    struct search s = {.lat = lat, .t = t, .weighted = weighted};
    const int size = lat->size;
    for (int eight = 0; eight < 32; eight++) {
        int negative = 0;
        for (int j = 0; j < 8; j++) negative += b->x[8 * eight + j] < 0;
        s.odd[eight] = negative & 1;
    }
    for (int g = 0; g < lat->n_group; g++)
        price_group(lat, t, b->x + g * size, b->w + g * size, s.odd[g * size / 8], weighted, t->along[g],
                    t->flipped[g], t->energy[g]);
    float ideal[8], largest = 0;
    for (int ib = 0; ib < 8; ib++) {
        f32x8 power = vec_splat(0), weight = vec_splat(0);
        for (int i = 32 * ib; i < 32 * ib + 32; i += 8) {
            f32x8 x = vec_load(b->x + i), w = vec_load(b->w + i);
            power += w * x * x;
            weight += w;
        }
        ideal[ib] = free_scale(&s, ib, __builtin_sqrtf(sum8(power) / sum8(weight)));
        largest = ideal[ib] > largest ? ideal[ib] : largest;
    }
    *out = (struct solution){0};
    float next = largest / (31 * lat->unit), best_error = 0;
    for (int round = 0; round < IQ_ROUND; round++) {
        struct solution now = {0};
        now.d_bits = block_scale(b, next, &now.d);
        if (now.d == 0) break;
        float error = 0, cross = 0, square = 0;
        for (int ib = 0; ib < 8; ib++) {
            float middle = round_even(clampf((ideal[ib] / (now.d * lat->unit) - 1) * 0.5f, 0, 15));
            float first = clampf(middle - 1, 0, 12), scale[4];
            for (int j = 0; j < 4; j++) scale[j] = now.d * lat->unit * (2 * (first + (float)j) + 1);
            struct four price = price_scales(&s, ib, scale);
            int best = 0;
            for (int j = 1; j < 4; j++)
                if (price.price[j] < price.price[best]) best = j;
            struct choice *choice = &now.choice[ib];
            choose_entries(&s, ib, scale[best], choice);
            now.scale[ib] = (uint8_t)(first + (float)best);
            float factor = (2 * (first + (float)best) + 1) * lat->unit;
            error += price.price[best];
            cross += factor * choice->along;
            square += factor * factor * choice->energy;
        }
        if (out->d != 0 && error >= best_error) break;
        *out = now;
        best_error = error;
        if (!(cross > 0)) break;
        next = cross / square;
    }
}

/* Sign masks of one group of elements: a set bit is a negative; the flip goes to the element that is
 * cheapest. */
MOTE_INLINE unsigned sign_bits(const struct lattice *lat, const struct mote_iq_scratch *t, const float *x,
                               const float *w, int entry, int flip)
{
    unsigned bits = 0;
    int cheapest_at = 0;
    float least = 0;
    for (int j = 0; j < lat->size; j++) {
        float price = w[j] * (x[j] < 0 ? -x[j] : x[j]) * t->grid[j][entry / 8][entry % 8];
        if (j == 0 || price < least) {
            least = price;
            cheapest_at = j;
        }
        bits |= (unsigned)(x[j] < 0) << j;
    }
    return flip ? bits ^ 1u << cheapest_at : bits;
}

/* The 32-bit word of a sub-block: four 7-bit sign codes (the eighth sign follows from parity) and the scale.
 */
MOTE_INLINE uint32_t sign_word(const struct lattice *lat, const struct mote_iq_scratch *t,
                               const struct block *b, const struct solution *solution, int ib)
{
    uint32_t word = (uint32_t)solution->scale[ib] << 28;
    const struct choice *choice = &solution->choice[ib];
    for (int g = 0; g < 32 / lat->size; g++) {
        int at = 32 * ib + g * lat->size;
        unsigned bits = sign_bits(lat, t, b->x + at, b->w + at, choice->entry[g], choice->flip[g]);
        int eight = g * lat->size / 8, shift = g * lat->size % 8;
        word |= ((bits << shift) & 127u) << 7 * eight;
    }
    return word;
}

void MOTE_TIER(mote_encode_row_iq2_xxs)(const float *x, const float *v, int64_t n, uint8_t *out,
                                        void *scratch)
{
    struct mote_iq_scratch *t = scratch;
    fill_tables(&iq2_xxs, t);
    for (; n > 0; n -= 256, x += 256, v = v ? v + 256 : v, out += 66) {
        struct block b;
        struct solution solution;
        memset(out, 0, 66);
        block_load(&b, x, v, 256);
        if (b.unit == 0) continue;
        solve_block(&iq2_xxs, t, &b, v != NULL, &solution);
        store_u16(out, solution.d_bits);
        for (int ib = 0; ib < 8; ib++) {
            uint32_t word = sign_word(&iq2_xxs, t, &b, &solution, ib);
            memcpy(out + 2 + 8 * ib, solution.choice[ib].entry, 4);
            memcpy(out + 2 + 8 * ib + 4, &word, sizeof word);
        }
    }
}

void MOTE_TIER(mote_encode_row_iq3_xxs)(const float *x, const float *v, int64_t n, uint8_t *out,
                                        void *scratch)
{
    struct mote_iq_scratch *t = scratch;
    fill_tables(&iq3_xxs, t);
    for (; n > 0; n -= 256, x += 256, v = v ? v + 256 : v, out += 98) {
        struct block b;
        struct solution solution;
        memset(out, 0, 98);
        block_load(&b, x, v, 256);
        if (b.unit == 0) continue;
        solve_block(&iq3_xxs, t, &b, v != NULL, &solution);
        store_u16(out, solution.d_bits);
        for (int ib = 0; ib < 8; ib++) {
            uint32_t word = sign_word(&iq3_xxs, t, &b, &solution, ib);
            memcpy(out + 2 + 8 * ib, solution.choice[ib].entry, 8);
            memcpy(out + 66 + 4 * ib, &word, sizeof word);
        }
    }
}
