/* attend_avx2.c: attention with AVX2 and FMA.
 *
 * Owns: mote_attend_avx2. Layout of the scratch: attend.h.
 * One idea: keys are taken in tiles of 64 that start at multiples of 64, with a running maximum and sum for
 * every row (a row is a head of a query). Each logit is one chain of fused multiply-adds over the columns,
 * each output one chain over the keys, so that blocking over rows changes no bit: a row alone equals the row
 * in a batch.
 *
 * Few rows (decode): keys and values are converted in registers and stream from memory once. Many rows
 * (prefill): a tile of keys and values is converted to floats once and serves every row of a tile of queries.
 */
#include "cpu/attend.h"

#if defined(__x86_64__) && defined(__AVX2__)

#include <math.h>
#include <string.h>

#include "cpu/exp_avx2.h"
#include "cpu/simd_x86.h"

enum {
    KEYS = MOTE_ATTEND_KEYS,
    PANEL = MOTE_ATTEND_PANEL,
    QUAD = 4,        /* keys of a block of logits */
    HALF = KEYS / 2, /* keys that stay in the L1 cache while the rows pass by */
    SCORE_ROWS = 3,  /* 3 rows x 4 keys: 12 accumulators, 3 queries, 1 key */
    VALUE_ROWS = 6,  /* 6 rows x 16 columns: 12 accumulators, 2 values, 1 weight */
};

/* Rows of keys or values that are read next. */
struct ahead {
    const uint8_t *rows;
    size_t stride, bytes;
    int64_t n_row;
};

/* Up to so many rows converting in registers, once for every block of rows, is cheaper than through memory. */
static const int8_t direct_rows[MOTE_KV_TYPE_COUNT] = {
    [MOTE_KV_F32] = 16, [MOTE_KV_F16] = 12, [MOTE_KV_Q8_0] = 4};

struct tile {
    const struct mote_attend *a;
    struct mote_attend_plan plan;
    float *q, *out, *score, *max, *total, *shrink, *k, *v; /* see attend.h */
    int64_t query, n_query;                                /* the queries of this tile */
    int direct;                                            /* keys and values are read where they lie */
    struct ahead values, next_keys; /* values: of the tile in work if direct, else of the next */
};

/* Columns [d, d + 8) of a key or value as floats; exact for every type. */
MOTE_INLINE __m256 load8(enum mote_kv_type type, const uint8_t *row, int64_t d)
{
    if (type == MOTE_KV_F32) return _mm256_loadu_ps((const float *)(const void *)(row + 4 * d));
    if (type == MOTE_KV_F16) return _mm256_cvtph_ps(_mm_loadu_si128((const void *)(row + 2 * d)));
    const uint8_t *block = row + d / 32 * 34;
    uint16_t scale;
    memcpy(&scale, block, sizeof scale);
    __m256i code = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(block + 2 + d % 32)));
    return _mm256_mul_ps(_mm256_set1_ps(_cvtsh_ss(scale)), _mm256_cvtepi32_ps(code));
}

/* The sums of the lanes of four vectors. */
MOTE_INLINE __m128 sum4(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    __m256 abcd = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
    return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
}

/* score[r * KEYS + j] = q[r] . k[j] for 4 keys. */
MOTE_INLINE void score_block(int n_row, enum mote_kv_type type, const float *q, int64_t width,
                             const uint8_t *const k[QUAD], float *score)
{
    __m256 sum[SCORE_ROWS][QUAD], query[SCORE_ROWS];
    MOTE_UNROLL for (int r = 0; r < n_row; r++) MOTE_UNROLL for (int j = 0; j < QUAD; j++) sum[r][j] =
        _mm256_setzero_ps();
    for (int64_t d = 0; d < width; d += 8) {
        MOTE_UNROLL for (int r = 0; r < n_row; r++) query[r] = _mm256_load_ps(q + r * width + d);
        MOTE_UNROLL for (int j = 0; j < QUAD; j++)
        {
            __m256 key = load8(type, k[j], d);
            MOTE_UNROLL for (int r = 0; r < n_row; r++) sum[r][j] = _mm256_fmadd_ps(query[r], key, sum[r][j]);
        }
    }
    MOTE_UNROLL for (int r = 0; r < n_row; r++)
        _mm_store_ps(score + r * KEYS, sum4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]));
}

/* Ask for rows [from, to), so that memory works while others are multiplied. */
MOTE_INLINE void fetch(const struct ahead *a, int64_t from, int64_t to)
{
    for (int64_t row = from; row < to && row < a->n_row; row++)
        for (size_t at = 0; at < a->bytes; at += 64)
            _mm_prefetch((const char *)a->rows + (size_t)row * a->stride + at, _MM_HINT_T1);
}

/* Logits of all rows against keys [begin, end) of the tile whose rows start at `keys`. */
MOTE_INLINE void score_keys(const struct tile *t, enum mote_kv_type type, const uint8_t *keys, size_t stride,
                            int begin, int end)
{
    int64_t rows = t->n_query * t->a->n_group, width = t->plan.width;
    for (int half = 0; half < KEYS; half += HALF) {
        int from = begin > half ? begin & ~(QUAD - 1) : half, to = end < half + HALF ? end : half + HALF;
        for (int64_t row = 0; row < rows; row += SCORE_ROWS) {
            const float *q = t->q + row * width;
            float *score = t->score + row * KEYS;
            for (int key = from; key < to; key += QUAD) {
                /* A block past the last key repeats it; nobody looks at those logits. */
                const uint8_t *k[QUAD];
                for (int j = 0; j < QUAD; j++)
                    k[j] = keys + (size_t)(key + j < begin ? begin
                                           : key + j < end ? key + j
                                                           : end - 1) *
                                      stride;
                if (row == 0) fetch(&t->values, key, key + QUAD);
                switch (rows - row) {
                case 1: score_block(1, type, q, width, k, score + key); break;
                case 2: score_block(2, type, q, width, k, score + key); break;
                default: score_block(3, type, q, width, k, score + key);
                }
            }
        }
    }
}

/* Logits [begin, end) of a row become weights; returns the factor for what was summed before. */
static float weigh(float *score, int begin, int end, float *max, float *total)
{
    __m256 logit[KEYS / 8], top = _mm256_set1_ps(-INFINITY), lane = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
    int from = begin / 8, to = (end + 7) / 8;
    for (int j = from; j < to; j++) {
        logit[j] = _mm256_load_ps(score + 8 * j);
        if (8 * j < begin || 8 * j + 8 > end) {
            __m256 key = _mm256_add_ps(lane, _mm256_set1_ps((float)(8 * j)));
            __m256 seen = _mm256_and_ps(_mm256_cmp_ps(key, _mm256_set1_ps((float)begin), _CMP_GE_OQ),
                                        _mm256_cmp_ps(key, _mm256_set1_ps((float)end), _CMP_LT_OQ));
            logit[j] = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), logit[j], seen);
        }
        top = _mm256_max_ps(top, logit[j]);
    }
    __m128 top4 = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    top4 = _mm_max_ps(top4, _mm_movehl_ps(top4, top4));
    top4 = _mm_max_ss(top4, _mm_movehdup_ps(top4));
    float before = *max, now = _mm_cvtss_f32(top4) > before ? _mm_cvtss_f32(top4) : before;
    /* While every logit was -infinity nothing weighs anything, and -infinity - -infinity must not be asked.
     */
    __m256 base = _mm256_set1_ps(now == -INFINITY ? 0 : now), sum = _mm256_setzero_ps();
    for (int j = from; j < to; j++) {
        __m256 weight = exp2_nonpositive(_mm256_sub_ps(logit[j], base));
        _mm256_store_ps(score + 8 * j, weight);
        sum = _mm256_add_ps(sum, weight);
    }
    float shrink = _mm256_cvtss_f32(exp2_nonpositive(_mm256_sub_ps(_mm256_set1_ps(before), base)));
    __m128 sum4 = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
    sum4 = _mm_add_ps(sum4, _mm_movehl_ps(sum4, sum4));
    *total = *total * shrink + _mm_cvtss_f32(_mm_add_ss(sum4, _mm_movehdup_ps(sum4)));
    *max = now;
    return shrink;
}

/* out[r][c] = out[r][c] * shrink[r] + sum over keys of weight[r * KEYS + key] * v[key][c], n_panel * 16
 * columns c. Panel p of key j lies at v + p * panel_stride + j * key_stride, from column d on. */
MOTE_INLINE void value_block(int n_row, int n_panel, enum mote_kv_type type, const float *weight, int n_key,
                             const uint8_t *v, size_t key_stride, size_t panel_stride, int64_t d,
                             const float *shrink, float *out, int64_t width)
{
    __m256 sum[VALUE_ROWS][8];
    MOTE_UNROLL for (int r = 0; r < n_row; r++) MOTE_UNROLL for (int c = 0; c < 2 * n_panel; c++) sum[r][c] =
        _mm256_mul_ps(_mm256_load_ps(out + r * width + 8 * c), _mm256_set1_ps(shrink[r]));
    for (int key = 0; key < n_key; key++, v += key_stride) {
        MOTE_UNROLL for (int p = 0; p < n_panel; p++)
        {
            const uint8_t *panel = v + (size_t)p * panel_stride;
            int64_t column = panel_stride ? d : d + p * PANEL;
            __m256 low = load8(type, panel, column), high = load8(type, panel, column + 8);
            MOTE_UNROLL for (int r = 0; r < n_row; r++)
            {
                __m256 w = _mm256_broadcast_ss(weight + r * KEYS + key);
                sum[r][2 * p] = _mm256_fmadd_ps(w, low, sum[r][2 * p]);
                sum[r][2 * p + 1] = _mm256_fmadd_ps(w, high, sum[r][2 * p + 1]);
            }
        }
    }
    MOTE_UNROLL for (int r = 0; r < n_row; r++) MOTE_UNROLL for (int c = 0; c < 2 * n_panel; c++)
        _mm256_store_ps(out + r * width + 8 * c, sum[r][c]);
}

/* Rows [row, row + n_row), all of which see keys [begin, end) of the tile whose values start at `values`. */
MOTE_INLINE void value_rows(const struct tile *t, enum mote_kv_type type, const uint8_t *values,
                            size_t key_stride, size_t panel_stride, int64_t row, int64_t n_row, int begin,
                            int end)
{
    int64_t width = t->plan.width, n_panel = width / PANEL, step;
    const uint8_t *v = values + (size_t)begin * key_stride;
    for (int64_t p = 0; p < n_panel; p += step) {
        const uint8_t *panel = v + (size_t)p * panel_stride;
        int64_t d = panel_stride ? 0 : p * PANEL, left = n_panel - p,
                blocks = (n_row + VALUE_ROWS - 1) / VALUE_ROWS;
        /* Few rows: more columns at once keep as many sums in flight. */
        step = n_row == 1 && left >= 4 ? 4 : n_row <= 3 && left >= 2 ? 2 : 1;
        if (row == 0) fetch(&t->next_keys, KEYS * p / n_panel, KEYS * (p + step) / n_panel);
        for (int64_t block = 0, r = 0; block < blocks; block++) {
            int64_t count = (n_row - r) / (blocks - block); /* blocks of nearly the same size */
            const float *weight = t->score + (row + r) * KEYS + begin, *s = t->shrink + row + r;
            float *out = t->out + (row + r) * width + p * PANEL;
#define BLOCK(rows, panels) \
    value_block(rows, panels, type, weight, end - begin, panel, key_stride, panel_stride, d, s, out, width)
            switch (count * 8 + step) {
            case 1 * 8 + 4: BLOCK(1, 4); break;
            case 1 * 8 + 2: BLOCK(1, 2); break;
            case 1 * 8 + 1: BLOCK(1, 1); break;
            case 2 * 8 + 2: BLOCK(2, 2); break;
            case 2 * 8 + 1: BLOCK(2, 1); break;
            case 3 * 8 + 2: BLOCK(3, 2); break;
            case 3 * 8 + 1: BLOCK(3, 1); break;
            case 4 * 8 + 1: BLOCK(4, 1); break;
            case 5 * 8 + 1: BLOCK(5, 1); break;
            default: BLOCK(6, 1);
            }
#undef BLOCK
            r += count;
        }
    }
}

/* Keys [begin, end) of the tile that starts at key `base`, for every row. `type`, pointers and strides say
 * where they are read: the caller's memory or the converted tile. */
MOTE_INLINE void attend_keys(const struct tile *t, enum mote_kv_type type, const uint8_t *keys,
                             size_t k_stride, const uint8_t *values, size_t v_stride, size_t panel_stride,
                             int64_t base, int begin, int end)
{
    const struct mote_attend *a = t->a;
    score_keys(t, type, keys, k_stride, begin, end);
    int64_t run = 0; /* first query of a run that sees the same keys */
    int run_from = 0, run_to = 0;
    for (int64_t i = 0; i <= t->n_query; i++) {
        int from = 0, to = 0; /* past the last query: nothing, which ends the run */
        if (i < t->n_query) {
            int64_t first = mote_attend_first(a, t->query + i) - base,
                    last = a->n_past + t->query + i + 1 - base;
            from = first > begin ? first < end ? (int)first : end : begin;
            to = last < end ? last > from ? (int)last : from : end;
            for (int64_t row = i * a->n_group; from < to && row < (i + 1) * a->n_group; row++)
                t->shrink[row] = weigh(t->score + row * KEYS, from, to, t->max + row, t->total + row);
            if (from == run_from && to == run_to) continue;
        }
        if (run_from < run_to)
            value_rows(t, type, values, v_stride, panel_stride, run * a->n_group, (i - run) * a->n_group,
                       run_from, run_to);
        run = i, run_from = from, run_to = to;
    }
}

static void convert(const struct tile *t, enum mote_kv_type type, const uint8_t *keys, const uint8_t *values,
                    int begin, int end)
{
    const struct mote_attend *a = t->a;
    int64_t width = t->plan.width, dim = a->head_dim;
    for (int key = begin; key < end; key++) {
        const uint8_t *k = keys + (size_t)key * a->k_stride, *v = values + (size_t)key * a->v_stride;
        float *k_out = t->k + key * width, *v_out = t->v + key * PANEL;
        for (int64_t d = 0; d < width; d += 8) {
            __m256 k8, v8;
            if (d + 8 <= dim) {
                k8 = load8(type, k, d);
                v8 = load8(type, v, d);
            } else { /* the ragged end of a row: no read past it */
                float ragged[16] = {0};
                size_t size = type == MOTE_KV_F32 ? 4 : 2, left = d < dim ? (size_t)(dim - d) * size : 0;
                memcpy(ragged, k + (size_t)d * size, left);
                k8 = load8(type, (const uint8_t *)ragged, 0);
                memcpy(ragged, v + (size_t)d * size, left);
                v8 = load8(type, (const uint8_t *)ragged, 0);
            }
            _mm256_store_ps(k_out + d, k8);
            _mm256_store_ps(v_out + d / PANEL * KEYS * PANEL + d % PANEL, v8);
        }
    }
}

MOTE_INLINE void attend_tile(struct tile *t, enum mote_kv_type type)
{
    const struct mote_attend *a = t->a;
    int64_t first = mote_attend_first(a, t->query), last = a->n_past + t->query + t->n_query;
    for (int64_t base = first & ~(int64_t)(KEYS - 1); base < last; base += KEYS) {
        const uint8_t *keys = (const uint8_t *)a->k + (size_t)base * a->k_stride;
        const uint8_t *values = (const uint8_t *)a->v + (size_t)base * a->v_stride;
        int begin = first > base ? (int)(first - base) : 0,
            end = last - base < KEYS ? (int)(last - base) : KEYS;
        size_t bytes = mote_kv_row_bytes(type, a->head_dim), next = t->direct ? 0 : KEYS * a->v_stride;
        int64_t rest = last - base - KEYS;
        t->next_keys = (struct ahead){keys + KEYS * a->k_stride, a->k_stride, bytes, rest};
        t->values = (struct ahead){values + next, a->v_stride, bytes, t->direct ? end : rest};
        if (t->direct) {
            attend_keys(t, type, keys, a->k_stride, values, a->v_stride, 0, base, begin, end);
        } else {
            convert(t, type, keys, values, begin, end);
            attend_keys(t, MOTE_KV_F32, (const uint8_t *)t->k, (size_t)t->plan.width * sizeof(float),
                        (const uint8_t *)t->v, PANEL * sizeof(float), KEYS * PANEL * sizeof(float), base,
                        begin, end);
        }
    }
}

static void start(const struct tile *t)
{
    const struct mote_attend *a = t->a;
    int64_t width = t->plan.width;
    float scale = a->scale * 0x1.715476p+0f; /* log2 e: weights are powers of two from here on */
    memset(t->out, 0, (size_t)(t->n_query * a->n_group * width) * sizeof(float));
    for (int64_t row = 0; row < t->n_query * a->n_group; row++) {
        const float *in = a->q + (t->query + row / a->n_group) * a->q_stride + row % a->n_group * a->head_dim;
        float *q = t->q + row * width; // [width]
        for (int64_t d = 0; d < width; d++) q[d] = d < a->head_dim ? in[d] * scale : 0;
        t->max[row] = -INFINITY;
        t->total[row] = 0;
    }
}

static void finish(const struct tile *t)
{
    const struct mote_attend *a = t->a;
    for (int64_t row = 0; row < t->n_query * a->n_group; row++) {
        float *out = a->out + (t->query + row / a->n_group) * a->out_stride +
                     row % a->n_group * a->head_dim; // [head_dim]
        const float *sum = t->out + row * t->plan.width;
        for (int64_t d = 0; d < a->head_dim; d++) out[d] = sum[d] / t->total[row];
    }
}

void mote_attend_avx2(const struct mote_attend *a)
{
    struct tile t = {.a = a, .plan = mote_attend_plan(a->n_query, a->n_group, a->head_dim)};
    uint8_t *base = a->scratch;
    t.q = (float *)(void *)(base + t.plan.q);
    t.out = (float *)(void *)(base + t.plan.out);
    t.score = (float *)(void *)(base + t.plan.score);
    t.max = (float *)(void *)(base + t.plan.max);
    t.total = (float *)(void *)(base + t.plan.total);
    t.shrink = (float *)(void *)(base + t.plan.shrink);
    t.k = (float *)(void *)(base + t.plan.k);
    t.v = (float *)(void *)(base + t.plan.v);
    for (t.query = 0; t.query < a->n_query; t.query += t.plan.tile_query) {
        t.n_query = a->n_query - t.query < t.plan.tile_query ? a->n_query - t.query : t.plan.tile_query;
        t.direct = t.n_query * a->n_group <= direct_rows[a->type] && t.plan.width == a->head_dim;
        start(&t);
        switch (a->type) {
        case MOTE_KV_F32: attend_tile(&t, MOTE_KV_F32); break;
        case MOTE_KV_F16: attend_tile(&t, MOTE_KV_F16); break;
        default: attend_tile(&t, MOTE_KV_Q8_0);
        }
        finish(&t);
    }
}

#endif
