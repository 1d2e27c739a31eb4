/* test_matmul.c: every filled product slot of every tier this machine has, held to the scalar tier.
 *
 * Weights are random bytes with sane scales (and bytes chosen to overflow what can overflow), laid at the very end
 * of a mapping whose next page faults; outputs are poisoned, activations guarded. MOTE_SEED repeats a run.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "cpu/kernel.h"
#include "random_matrix.h"

static struct mote_rng rng;
static uint64_t seed;

/* ---- memory that ends at a page that faults ---- */

struct fenced {
    uint8_t *map, *data;
    size_t map_size;
};

static struct fenced fence(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (size + page - 1) / page * page + page;
    struct fenced f = {.map_size = body + page};
    f.map = mmap(NULL, f.map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.map != MAP_FAILED);
    assert_int_equal(mprotect(f.map + body, page, PROT_NONE), 0);
    f.data = f.map + body - size;
    return f;
}

static void unfence(struct fenced *f)
{
    if (f->map) munmap(f->map, f->map_size);
    f->map = NULL;
}

/* ---- random weights ---- */

struct weights {
    struct mote_matrix m;
    struct fenced data, scale, bias;
};

static struct weights make_weights(enum mote_format format, int64_t n_row, int64_t n_col, int group,
                                   enum pattern pattern)
{
    static const enum mote_format plane[3] = {MOTE_FORMAT_F32, MOTE_FORMAT_F16, MOTE_FORMAT_BF16};
    struct weights w = {.m = mote_matrix_view(format, NULL, n_row, n_col)};
    w.m.group = group;
    w.m.scale_format = plane[mote_rng_below(&rng, 3)];
    if (mote_rng_below(&rng, 2)) w.m.factor = (float)random_uniform(&rng, 0.5, 2);
    size_t scale_bytes = random_scale_bytes(&w.m);
    w.data = fence(w.m.row_bytes * (size_t)n_row);
    w.m.data = w.data.data;
    if (scale_bytes) {
        w.scale = fence(scale_bytes);
        w.m.scale = w.scale.data;
    }
    if (random_is_affine(format)) {
        w.bias = fence(scale_bytes);
        w.m.bias = w.bias.data;
    }
    random_fill(&rng, &w.m, pattern, w.data.data, w.scale.data, w.bias.data);
    return w;
}

static void free_weights(struct weights *w)
{
    unfence(&w->data);
    unfence(&w->scale);
    unfence(&w->bias);
}

/* ---- activations ---- */

struct acts {
    struct mote_act act;
    struct fenced x, memory;
};

static struct acts make_acts(enum mote_act_type type, int64_t n_row, int64_t n_col, int constant)
{
    struct acts a = {.x = fence((size_t)(n_row * n_col) * sizeof(float))};
    float *x = (float *)(void *)a.x.data;
    for (int64_t i = 0; i < n_row * n_col; i += 2) {
        double z[2];
        mote_rng_normal2(&rng, z);
        x[i] = constant ? (float)constant : (float)z[0];
        if (i + 1 < n_row * n_col) x[i + 1] = constant ? (float)constant : (float)z[1];
    }
    size_t size = mote_act_bytes(type, n_row, n_col);
    a.memory = fence(size ? size : 1);
    memset(a.memory.data, 0x5A, size);
    a.act = mote_act_place(type, n_row, n_col, x, a.memory.data);
    mote_cpu_kernels(MOTE_CPU_SCALAR)->quantise(x, 0, n_row, &a.act);
    return a;
}

static void free_acts(struct acts *a)
{
    unfence(&a->x);
    unfence(&a->memory);
}

/* ---- the check ---- */

struct job {
    const char *tier, *kind;
    enum mote_act_type type;
    struct mote_matrix *m;
    const struct mote_act *act;
    const int32_t *x_row;
    int64_t n_x;
    double least; /* magnitude of a code's offset: where every code means 0 nothing else tells it */
};

#define FAIL_JOB(j, ...)                                                                     \
    do {                                                                                     \
        print_error("%s %s %s %s: %lld x %lld, n_x %lld, seed %llu\n", (j)->tier, (j)->kind, \
                    mote_format_traits((j)->m->format)->name, mote_act_type_name((j)->type), \
                    (long long)(j)->m->n_row, (long long)(j)->m->n_col, (long long)(j)->n_x, \
                    (unsigned long long)seed);                                               \
        fail_msg(__VA_ARGS__);                                                               \
    } while (0)

static const uint32_t POISON = 0x7FABCDEFu;
enum { GAP = 3 }; /* y_stride is n_row + GAP */

static float *poisoned(int64_t n)
{
    float *y = malloc((size_t)n * sizeof(float));
    assert_non_null(y);
    for (int64_t i = 0; i < n; i++) memcpy(y + i, &POISON, 4);
    return y;
}

static void check_poison(const struct job *j, const float *y, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++)
        if (mote_f32_bits(y[i]) != POISON) FAIL_JOB(j, "wrote outside its rows, at %lld", (long long)i);
}

/* Sum over columns of (largest |w| of the 256-column tile) * |x|: rounding of scale * code and of bias happens at
 * the tile's magnitude, whatever cancels in w itself. */
static double magnitude(const struct job *j, const float *w, int64_t i)
{
    const struct mote_act *a = j->act;
    int64_t n = j->m->n_col, group = mote_act_group(a->type), at = i * a->stride;
    double sum = 0;
    for (int64_t col = 0; col < n; col += 256) {
        double most = j->least, total = 0;
        for (int64_t c = col; c < n && c < col + 256; c++) {
            most = fmax(most, fabs((double)w[c]));
            total += fabs(a->type == MOTE_ACT_F32 ? (double)a->x[i * n + c]
                                                  : (double)a->scale[(at + c) / group] * a->q[at + c]);
        }
        sum += most * total;
    }
    return sum;
}

static void check_values(const struct job *j, const float *want, const float *got)
{
    int64_t n_row = j->m->n_row, n_col = j->m->n_col, stride = n_row + GAP;
    float *w = malloc((size_t)n_col * sizeof(float));
    assert_non_null(w);
    double adds = (double)n_col / (j->type == MOTE_ACT_F32 ? 16 : 32) + 16;
    for (int64_t r = 0; r < n_row; r++) {
        mote_decode(j->m, r, 0, n_col, w);
        for (int64_t i = 0; i < j->n_x; i++) {
            double size = magnitude(j, w, j->x_row ? j->x_row[i] : i), a = want[i * stride + r],
                   b = got[i * stride + r];
            if (!(fabs(a - b) <= adds * 0x1p-23 * size + 1e-30))
                FAIL_JOB(j, "row %lld, x %lld: %.9g, expected %.9g within %.3g", (long long)r, (long long)i,
                         b, a, adds * 0x1p-23 * size);
        }
    }
    free(w);
}

/* Rows in odd pieces give the same bits. */
static void check_split(const struct job *j, mote_matmul_fn *fn, const float *whole)
{
    int64_t n_row = j->m->n_row, stride = n_row + GAP;
    float *y = poisoned(j->n_x * stride);
    for (int64_t r = 0; r < n_row;) {
        int64_t n = 1 + (int64_t)mote_rng_below(&rng, 5);
        if (n > n_row - r) n = n_row - r;
        fn(j->m, r, n, j->act, j->x_row, j->n_x, y + r, stride);
        r += n;
    }
    if (memcmp(y, whole, (size_t)(j->n_x * stride) * sizeof(float)))
        FAIL_JOB(j, "depends on how rows are split");
    free(y);
}

/* One activation row at a time gives the same bits. */
static void check_alone(const struct job *j, mote_matmul_fn *fn, const float *whole)
{
    int64_t n_row = j->m->n_row, stride = n_row + GAP;
    float *y = poisoned(stride);
    for (int64_t i = 0; i < j->n_x; i++) {
        int32_t at = j->x_row ? j->x_row[i] : (int32_t)i;
        fn(j->m, 0, n_row, j->act, &at, 1, y, stride);
        if (memcmp(y, whole + i * stride, (size_t)n_row * sizeof(float)))
            FAIL_JOB(j, "x %lld alone differs from x in a batch", (long long)i);
    }
    free(y);
}

static void check_slot(struct job *j, mote_matmul_fn *fn, mote_matmul_fn *oracle, int is_dot)
{
    int64_t n_row = j->m->n_row, stride = n_row + GAP, n = j->n_x * stride;
    float *want = poisoned(n), *got = poisoned(n + 2 * GAP);
    float *y = got + GAP;
    oracle(j->m, 0, n_row, j->act, j->x_row, j->n_x, want, stride);
    fn(j->m, 0, n_row, j->act, j->x_row, j->n_x, y, stride);
    check_poison(j, got, 0, GAP);
    for (int64_t i = 0; i < j->n_x; i++) check_poison(j, y, i * stride + n_row, (i + 1) * stride);
    check_poison(j, y, n, n + GAP);
    check_values(j, want, y);
    check_split(j, fn, y);
    if (is_dot) check_alone(j, fn, y);
    free(want);
    free(got);
}

/* One matrix, one set of activation rows, both kinds. */
static void check_case(enum mote_cpu_tier tier, enum mote_act_type type, enum mote_format format,
                       int64_t n_row, int64_t n_col, int64_t n_x, enum pattern pattern, int constant)
{
    const struct mote_cpu_kernels *table = mote_cpu_kernels(tier),
                                  *scalar = mote_cpu_kernels(MOTE_CPU_SCALAR);
    int group = random_group(format, 32 << mote_rng_below(&rng, 3));
    if (group > 32) n_col = (n_col + group - 1) / group * group;
    int64_t n_act = n_x + (int64_t)mote_rng_below(&rng, 3);
    struct weights w = make_weights(format, n_row, n_col, group, pattern);
    struct acts a = make_acts(type, n_act, n_col, constant);
    int32_t *x_row = NULL;
    if (mote_rng_below(&rng, 3)) { /* any order, repeats */
        x_row = malloc((size_t)n_x * sizeof(int32_t));
        assert_non_null(x_row);
        for (int64_t i = 0; i < n_x; i++) x_row[i] = (int32_t)mote_rng_below(&rng, (uint64_t)n_act);
    }
    struct job j = {
        .tier = mote_cpu_tier_name(tier), .type = type, .m = &w.m, .act = &a.act, .x_row = x_row, .n_x = n_x};
    if (pattern != RANDOM) /* largest scale of random_fill times largest offset */
        j.least = format == MOTE_FORMAT_MXFP4 || format == MOTE_FORMAT_MLX_MXFP4 ? 2 * 12 : 0x1p-3 * 8;
    if (n_x <= MOTE_DOT_ROWS) {
        j.kind = "dot";
        check_slot(&j, table->dot[type][format], scalar->dot[type][format], 1);
    }
    j.kind = "gemm";
    check_slot(&j, table->gemm[type][format], scalar->gemm[type][format], 0);
    free(x_row);
    free_weights(&w);
    free_acts(&a);
}

static int64_t columns(enum mote_format format, int i)
{
    static const int64_t blocks_32[] = {1, 3, 5, 8, 17, 90, 64, 256},
                         plain[] = {1, 7, 8, 15, 33, 257, 2880, 513};
    int64_t unit = mote_format_traits(format)->block_elems;
    if (unit == 1) return plain[i];
    int64_t n = blocks_32[i] * 32;
    return (n + unit - 1) / unit * unit;
}

static void check_format(enum mote_cpu_tier tier, enum mote_act_type type, enum mote_format format)
{
    static const int64_t rows[] = {1, 2, 3, 7, 8, 9, 13, 17}, batch[] = {9, 16, 17, 32, 129};
    for (int i = 0; i < 8; i++) {
        int64_t n_col = columns(format, i);
        for (int64_t n_x = 1; n_x <= 8; n_x++)
            if (n_col <= 1024 || n_x == 1 || n_x == 3 || n_x == 8)
                check_case(tier, type, format, rows[mote_rng_below(&rng, n_col > 1024 ? 4 : 8)], n_col, n_x,
                           RANDOM, 0);
    }
    for (int i = 0; i < 5; i++)
        check_case(tier, type, format, rows[3 + mote_rng_below(&rng, 5)], columns(format, 2 + i % 3),
                   batch[i], RANDOM, 0);
    check_case(tier, type, format, 3, columns(format, 5), 5, RANDOM, 0);
    check_case(tier, type, format, 37, columns(format, 2), 2, RANDOM, 0); /* rows in two streams */
    check_case(tier, type, format, 64, columns(format, 1), 7, RANDOM, 0);
    check_case(tier, type, format, 5, columns(format, 5), 33, RANDOM, 0);
    for (int p = 1; p < PATTERN_COUNT; p++) {
        check_case(tier, type, format, 9, columns(format, 3), 5, (enum pattern)p, 1);
        check_case(tier, type, format, 9, columns(format, 4), 4, (enum pattern)p, -1);
    }
}

static void test_products(void **state)
{
    (void)state;
    int n_slot = 0;
    for (int tier = MOTE_CPU_AVX2; tier <= (int)mote_cpu_tier_detect(); tier++) {
        const struct mote_cpu_kernels *table = mote_cpu_kernels((enum mote_cpu_tier)tier),
                                      *below = mote_cpu_kernels((enum mote_cpu_tier)(tier - 1));
        for (int type = 0; type < MOTE_ACT_TYPE_COUNT; type++) {
            for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
                assert_true(!table->dot[type][f] == !table->gemm[type][f]);
                if (!table->dot[type][f]) continue;
                if (table->dot[type][f] == below->dot[type][f] &&
                    table->gemm[type][f] == below->gemm[type][f])
                    continue;
                check_format((enum mote_cpu_tier)tier, (enum mote_act_type)type, (enum mote_format)f);
                n_slot++;
            }
        }
    }
    print_message("%d slots of the tiers above scalar, seed %llu\n", n_slot, (unsigned long long)seed);
}

/* Some blocks of zeros (of either sign) under the largest scale there is, or any: they add nothing. */
static void strike_blocks(struct weights *w)
{
    int is_planar = w->m.format == MOTE_FORMAT_MLX_MXFP4;
    int64_t n = w->m.n_row * (w->m.n_col / 32);
    for (int64_t b = 0; b < n; b++) {
        if (mote_rng_below(&rng, 3)) continue;
        uint8_t *codes = w->data.data + (is_planar ? b * 16 : b * 17 + 1);
        uint8_t *scale = is_planar ? w->scale.data + b : codes - 1;
        *scale = (uint8_t)(mote_rng_below(&rng, 2) ? 254 : mote_rng_below(&rng, 255));
        for (int i = 0; i < 16; i++) codes[i] = (uint8_t)(mote_rng_u64(&rng) & 0x88);
    }
}

static void test_zero_blocks(void **state)
{
    (void)state;
    static const enum mote_format formats[] = {MOTE_FORMAT_MXFP4, MOTE_FORMAT_MLX_MXFP4};
    static const int64_t batch[] = {1, 2, 3, 4, 7, 9, 33}, n_cols[] = {32, 96, 256, 800, 4352};
    enum { ROWS = 21 };
    const struct mote_cpu_kernels *scalar = mote_cpu_kernels(MOTE_CPU_SCALAR);
    for (int k = 0; k < 2 * MOTE_ACT_TYPE_COUNT * 7 * 5; k++) {
        enum mote_format format = formats[k % 2];
        enum mote_act_type type = (enum mote_act_type)(k / 2 % MOTE_ACT_TYPE_COUNT);
        int64_t n_x = batch[k / 2 / MOTE_ACT_TYPE_COUNT % 7], n_col = n_cols[k / 2 / MOTE_ACT_TYPE_COUNT / 7];
        if (!scalar->dot[type][format]) continue;
        struct weights w = make_weights(format, ROWS, n_col, random_group(format, 32), RANDOM);
        strike_blocks(&w);
        struct acts a =
            make_acts(type, n_x, n_col, k % 3 ? 0 : 30000); /* its scale times the largest: infinity */
        struct job j = {.type = type, .m = &w.m, .act = &a.act, .n_x = n_x};
        for (int tier = MOTE_CPU_SCALAR; tier <= (int)mote_cpu_tier_detect(); tier++) {
            const struct mote_cpu_kernels *table = mote_cpu_kernels((enum mote_cpu_tier)tier);
            j.tier = mote_cpu_tier_name((enum mote_cpu_tier)tier), j.kind = "dot";
            if (n_x <= MOTE_DOT_ROWS) check_slot(&j, table->dot[type][format], scalar->dot[type][format], 1);
            j.kind = "gemm";
            check_slot(&j, table->gemm[type][format], scalar->gemm[type][format], 0);
        }
        free_weights(&w);
        free_acts(&a);
    }
}

/* The oracle itself: the float product is a plain sum over decoded weights, and the 8-bit products stay near it. */
static void test_scalar(void **state)
{
    (void)state;
    const struct mote_cpu_kernels *table = mote_cpu_kernels(MOTE_CPU_SCALAR);
    enum { ROWS = 5, COLS = 512, ACTS = 3 };
    for (int f = 0; f < MOTE_FORMAT_COUNT; f++) {
        const struct mote_format_traits *traits = mote_format_traits((enum mote_format)f);
        if (traits->family == MOTE_FAMILY_OTHER) {
            for (int type = 0; type < MOTE_ACT_TYPE_COUNT; type++) assert_null(table->dot[type][f]);
            continue;
        }
        assert_non_null(table->dot[MOTE_ACT_F32][f]);
        enum mote_act_type type = mote_act_default((enum mote_format)f);
        assert_non_null(table->dot[type][f]);
        struct weights w =
            make_weights((enum mote_format)f, ROWS, COLS, random_group((enum mote_format)f, 32), RANDOM);
        struct acts exact = make_acts(MOTE_ACT_F32, ACTS, COLS, 0);
        size_t size = mote_act_bytes(type, ACTS, COLS);
        struct fenced memory = fence(size ? size : 1);
        struct mote_act rounded = mote_act_place(type, ACTS, COLS, exact.act.x, memory.data);
        table->quantise(exact.act.x, 0, ACTS, &rounded);
        float row[COLS], y[ACTS][ROWS], z[ACTS][ROWS];
        table->gemm[MOTE_ACT_F32][f](&w.m, 0, ROWS, &exact.act, NULL, ACTS, y[0], ROWS);
        table->gemm[type][f](&w.m, 0, ROWS, &rounded, NULL, ACTS, z[0], ROWS);
        double error = 0, power = 0;
        for (int r = 0; r < ROWS; r++) {
            mote_decode(&w.m, r, 0, COLS, row);
            for (int i = 0; i < ACTS; i++) {
                double sum = 0, size_of_terms = 0;
                for (int c = 0; c < COLS; c++) {
                    sum += (double)row[c] * (double)exact.act.x[i * COLS + c];
                    size_of_terms += pow((double)row[c] * (double)exact.act.x[i * COLS + c], 2);
                }
                assert_true(mote_f32_bits(y[i][r]) == mote_f32_bits((float)sum));
                error += pow((double)z[i][r] - sum, 2);
                power += size_of_terms;
            }
        }
        /* a step of amax / 127, amax about 3 sigma: relative square error (3 / 127)^2 / 12 */
        if (!(error <= 2e-4 * power))
            fail_msg("%s %s: error %g", traits->name, mote_act_type_name(type), error / power);
        unfence(&memory);
        free_weights(&w);
        free_acts(&exact);
    }
}

/* quantise: its definition, and bit-equality of the tiers. */
static void test_quantise(void **state)
{
    (void)state;
    static const int64_t columns_of[] = {1, 31, 32, 33, 96, 255, 256, 257, 512, 800, 2880};
    const float special[] = {NAN, INFINITY, -INFINITY, 0x1p-120f, 0x1p-149f, 3e38f, -0.0f, 0x1p-100f};
    for (int type = MOTE_ACT_I8_32; type < MOTE_ACT_TYPE_COUNT; type++) {
        for (int k = 0; k < 11 * 4; k++) {
            int64_t n_col = columns_of[k / 4], n_row = 4, group = mote_act_group((enum mote_act_type)type);
            double step =
                type == MOTE_ACT_MXFP4 ? 2.0001 : 0.5001; /* half of the widest: 4 to 6 is 8 to 12 codes */
            struct acts a = make_acts((enum mote_act_type)type, n_row, n_col, 0);
            float *x = (float *)(void *)a.x.data;
            if (k % 4 == 1) memset(x, 0, (size_t)n_col * sizeof(float));
            if (k % 4 == 2)
                for (int i = 0; i < 8; i++) x[mote_rng_below(&rng, (uint64_t)(n_row * n_col))] = special[i];
            if (k % 4 == 3)
                for (int64_t i = 0; i < n_row * n_col; i++) x[i] *= 0x1p-101f;
            size_t size = mote_act_bytes((enum mote_act_type)type, n_row, n_col);
            mote_cpu_kernels(MOTE_CPU_SCALAR)->quantise(x, 0, n_row, &a.act);
            for (int64_t i = 0; i < n_row * a.act.stride; i++) {
                int64_t r = i / a.act.stride, c = i % a.act.stride;
                float scale = a.act.scale[i / group], v = c < n_col ? x[r * n_col + c] : 0;
                if (isnan(scale) || scale == 0) assert_int_equal(a.act.q[i], 0);
                else assert_true(fabs((double)v - (double)scale * a.act.q[i]) <= step * (double)scale);
                if (isnan(v) || isinf(v)) assert_true(isnan(scale));
            }
            for (int tier = MOTE_CPU_AVX2; tier <= (int)mote_cpu_tier_detect(); tier++) {
                struct fenced memory = fence(size);
                memset(memory.data, 0x5A, size);
                struct mote_act act = mote_act_place((enum mote_act_type)type, n_row, n_col, x, memory.data);
                const struct mote_cpu_kernels *table = mote_cpu_kernels((enum mote_cpu_tier)tier);
                table->quantise(x, 2, 2, &act); /* rows in pieces, any order */
                table->quantise(x, 0, 1, &act);
                table->quantise(x, 1, 1, &act);
                if (memcmp(memory.data, a.memory.data, size))
                    fail_msg("%s quantise %s differs from scalar: %lld columns, seed %llu",
                             mote_cpu_tier_name((enum mote_cpu_tier)tier),
                             mote_act_type_name((enum mote_act_type)type), (long long)n_col,
                             (unsigned long long)seed);
                unfence(&memory);
            }
            free_acts(&a);
        }
    }
}

static void test_act_bytes(void **state)
{
    (void)state;
    assert_int_equal(mote_act_bytes(MOTE_ACT_F32, 10, 1000), 0);
    assert_int_equal(mote_act_bytes(MOTE_ACT_I8_256, 1, 256), 256 + 64 + 64);
    assert_int_equal(mote_act_bytes(MOTE_ACT_I8_32, 2, 257), 1024 + 128 + 128 + 128);
    assert_true(mote_act_bytes(MOTE_ACT_I8_32, INT64_MAX, 4096) == SIZE_MAX);
    assert_true(mote_act_bytes(MOTE_ACT_I8_32, 1, INT64_MAX) == SIZE_MAX);
    assert_true(mote_act_bytes(MOTE_ACT_I8_32, -1, 32) == SIZE_MAX);
}

int main(void)
{
    const char *given = getenv("MOTE_SEED");
    seed = given ? strtoull(given, NULL, 10) : 20260821;
    mote_rng_seed(&rng, seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_act_bytes), cmocka_unit_test(test_scalar),      cmocka_unit_test(test_quantise),
        cmocka_unit_test(test_products),  cmocka_unit_test(test_zero_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
