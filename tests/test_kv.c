/* test_kv.c: the cache's size, layout, limits; what attention stores and reads through the backend, against
 * float64. */
#include "run_model.h"

#include <math.h>
#include <stdlib.h>

#include "base/float_bits.h"
#include "base/rng.h"

static const struct mote_hyper small = {.n_layer = 3, .n_head = 4, .n_head_kv = 2, .head_dim = 32};

static struct mote_backend *backend_for(const struct mote_hyper *h, int64_t max_row, int n_thread,
                                        struct mote_budget *budget)
{
    struct mote_backend_options options = {.n_thread = n_thread};
    struct mote_backend_limits limits = {
        .max_row = max_row,
        .n_head = (int64_t)h->n_head,
        .n_head_kv = (int64_t)h->n_head_kv,
        .head_dim = (int64_t)h->head_dim,
        .n_rot = (int64_t)h->head_dim,
    };
    struct mote_backend *backend;
    must(mote_backend_cpu.create(&options, &limits, budget, &backend));
    return backend;
}

static void test_bytes(void **state)
{
    (void)state;
    struct mote_budget *budget;
    must(mote_budget_create(0, &budget));
    struct mote_backend *backend = backend_for(&small, 8, 1, budget);
    static const size_t row[] = {32 * 4, 32 * 2, 34};
    for (int type = 0; type < MOTE_KV_TYPE_COUNT; type++) {
        size_t bytes;
        struct mote_kv kv;
        must(mote_kv_bytes(&small, (enum mote_kv_type)type, 100, &bytes));
        assert_true(bytes >= 2 * 3 * 2 * 100 * row[type] && bytes < 2 * 3 * 2 * 100 * row[type] + 256);
        must(mote_kv_create(&small, (enum mote_kv_type)type, 100, backend, &kv));
        assert_int_equal(mote_budget_used(budget, MOTE_MEM_KV), bytes);
        assert_true(kv.view.v >= kv.view.k + 3 * 2 * 100 * row[type]);
        kv.n_past = 60;
        must_fail(mote_kv_truncate(&kv, 61), MOTE_ARGUMENT, "61");
        must_fail(mote_kv_truncate(&kv, -1), MOTE_ARGUMENT, "-1");
        must(mote_kv_truncate(&kv, 5));
        assert_int_equal(kv.n_past, 5);
        mote_kv_destroy(&kv);
        mote_kv_destroy(&kv);
        assert_int_equal(mote_budget_used(budget, MOTE_MEM_KV), 0);
    }
    backend->ops->destroy(backend);
    mote_budget_destroy(budget);
}

static void test_refusals(void **state)
{
    (void)state;
    size_t bytes;
    struct mote_hyper odd = small, huge = small;
    odd.head_dim = 40;
    huge.n_layer = 4096;
    huge.n_head_kv = 65536;
    huge.head_dim = 65536;
    must_fail(mote_kv_bytes(&small, MOTE_KV_F16, 0, &bytes), MOTE_ARGUMENT, "context");
    must_fail(mote_kv_bytes(&small, MOTE_KV_F16, (int64_t)1 << 40, &bytes), MOTE_ARGUMENT, "context");
    must_fail(mote_kv_bytes(&small, (enum mote_kv_type)7, 10, &bytes), MOTE_ARGUMENT, "type");
    must_fail(mote_kv_bytes(&odd, MOTE_KV_Q8_0, 10, &bytes), MOTE_ARGUMENT, "40");
    must_fail(mote_kv_bytes(&huge, MOTE_KV_F32, INT32_MAX, &bytes), MOTE_ARGUMENT, "address space");
    struct mote_budget *budget;
    must(mote_budget_create(1 << 20, &budget));
    struct mote_backend *backend = backend_for(&small, 8, 1, budget);
    struct mote_kv kv;
    must_fail(mote_kv_create(&small, MOTE_KV_F32, 100000, backend, &kv), MOTE_BUDGET, "1048576");
    mote_kv_destroy(&kv);
    backend->ops->destroy(backend);
    mote_budget_destroy(budget);
}

/* ---- attention through the backend ---- */

enum { HEADS = 4, KV_HEADS = 2, DIM = 32, CONTEXT = 90, SEQUENCES = 3 };

static double rounded(float x, const float *block, enum mote_kv_type type)
{
    if (type == MOTE_KV_F32) return x;
    if (type == MOTE_KV_F16) return (double)mote_f16_f32(mote_f32_f16(x));
    double amax = 0;
    for (int i = 0; i < 32; i++) amax = fmax(amax, fabs(block[i]));
    return amax > 0 ? nearbyint(x / (amax / 127)) * (double)mote_f16_f32(mote_f32_f16((float)(amax / 127)))
                    : 0;
}

/* norm, then rotation of halves */
static void prepare(const float *x, const float *weight, const float *inv_freq, int64_t position, double *out)
{
    double sum = 0, turned[DIM];
    for (int d = 0; d < DIM; d++) sum += (double)x[d] * x[d];
    for (int d = 0; d < DIM; d++) turned[d] = x[d] / sqrt(sum / DIM + 1e-6) * weight[d];
    for (int d = 0; d < DIM / 2; d++) {
        double angle = (double)position * inv_freq[d], a = turned[d], b = turned[d + DIM / 2];
        out[d] = a * cos(angle) - b * sin(angle);
        out[d + DIM / 2] = a * sin(angle) + b * cos(angle);
    }
}

struct sequence {
    float q[CONTEXT][HEADS][DIM], k[CONTEXT][KV_HEADS][DIM], v[CONTEXT][KV_HEADS][DIM];
    double out[CONTEXT][HEADS][DIM];
};

static void reference(struct sequence *s, const float *q_norm, const float *k_norm, const float *inv_freq,
                      enum mote_kv_type type)
{
    static double key[CONTEXT][KV_HEADS][DIM];
    for (int i = 0; i < CONTEXT; i++) {
        for (int h = 0; h < KV_HEADS; h++) {
            float single[DIM];
            prepare(s->k[i][h], k_norm, inv_freq, i, key[i][h]);
            for (int d = 0; d < DIM; d++) single[d] = (float)key[i][h][d];
            for (int d = 0; d < DIM; d++) key[i][h][d] = rounded(single[d], single, type);
        }
        for (int h = 0; h < HEADS; h++) {
            double q[DIM], p[CONTEXT], top = -INFINITY, sum = 0;
            int kv = h / (HEADS / KV_HEADS);
            prepare(s->q[i][h], q_norm, inv_freq, i, q);
            for (int j = 0; j <= i; j++) {
                p[j] = 0;
                for (int d = 0; d < DIM; d++) p[j] += q[d] * key[j][kv][d];
                p[j] /= sqrt(DIM);
                top = fmax(top, p[j]);
            }
            for (int j = 0; j <= i; j++) sum += p[j] = exp(p[j] - top);
            for (int d = 0; d < DIM; d++) {
                s->out[i][h][d] = 0;
                for (int j = 0; j <= i; j++)
                    s->out[i][h][d] += p[j] / sum * rounded(s->v[j][kv][d], s->v[j][kv], type);
            }
        }
    }
}

/* Three sequences advance by different amounts in common steps, in two layers, until each holds its 90
 * tokens. */
static void test_attention(void **state)
{
    (void)state;
    static const double budget[] = {1e-11, 1e-8, 1e-4};
    static struct sequence sequence[SEQUENCES];
    float q_norm[DIM], k_norm[DIM], inv_freq[DIM / 2];
    struct mote_rng rng;
    mote_rng_seed(&rng, 41);
    for (int s = 0; s < SEQUENCES; s++) {
        float *all = &sequence[s].q[0][0][0];
        for (int i = 0; i < CONTEXT * (HEADS + 2 * KV_HEADS) * DIM; i++)
            all[i] = (float)(mote_rng_unit(&rng) * 4 - 2);
    }
    for (int d = 0; d < DIM; d++) {
        q_norm[d] = (float)(0.5 + mote_rng_unit(&rng));
        k_norm[d] = (float)(0.5 + mote_rng_unit(&rng));
    }
    for (int d = 0; d < DIM / 2; d++) inv_freq[d] = (float)pow(10000, -2.0 * d / DIM);
    for (int type = 0; type < MOTE_KV_TYPE_COUNT; type++)
        for (int n_thread = 1; n_thread <= 2; n_thread++) {
            struct mote_backend *backend = backend_for(&small, 64, n_thread, NULL);
            struct mote_kv kv[SEQUENCES];
            struct mote_rope rope = {.n_rot = DIM, .inv_freq = inv_freq, .magnitude = 1};
            static float q[64][HEADS][DIM], k[64][KV_HEADS][DIM], v[64][KV_HEADS][DIM], out[64][HEADS][DIM];
            for (int s = 0; s < SEQUENCES; s++) {
                must(mote_kv_create(&small, (enum mote_kv_type)type, CONTEXT, backend, &kv[s]));
                reference(&sequence[s], q_norm, k_norm, inv_freq, (enum mote_kv_type)type);
            }
            double worst = 0;
            for (int step = 0;; step++) {
                struct mote_span span[SEQUENCES];
                int32_t token[64] = {0}, n_row = 0, n_span = 0;
                for (int s = 0; s < SEQUENCES; s++) {
                    int64_t left = CONTEXT - kv[s].n_past, n = step % 2 ? 1 : 3 + 17 * s;
                    if (n > left) n = left;
                    if (n == 0) continue;
                    span[n_span++] = (struct mote_span){
                        .kv = kv[s].view, .row = n_row, .n_row = (int32_t)n, .n_past = kv[s].n_past};
                    n_row += (int32_t)n;
                }
                if (n_row == 0) break;
                struct mote_batch batch = {.n_row = n_row, .token = token, .n_span = n_span, .span = span};
                must(backend->ops->begin(backend, &batch));
                for (int32_t layer = 0; layer < 3; layer += 2) {
                    for (int a = 0, s = 0; a < n_span; a++) {
                        while (kv[s].view.k != span[a].kv.k) s++;
                        for (int i = 0; i < span[a].n_row; i++) {
                            int64_t at = span[a].n_past + i, row = span[a].row + i;
                            memcpy(q[row], sequence[s].q[at], sizeof q[0]);
                            memcpy(k[row], sequence[s].k[at], sizeof k[0]);
                            memcpy(v[row], sequence[s].v[at], sizeof v[0]);
                        }
                    }
                    struct mote_attention job = {.layer = layer,
                                                 .n_head = HEADS,
                                                 .n_head_kv = KV_HEADS,
                                                 .head_dim = DIM,
                                                 .q = &q[0][0][0],
                                                 .k = &k[0][0][0],
                                                 .v = &v[0][0][0],
                                                 .q_norm = q_norm,
                                                 .k_norm = k_norm,
                                                 .eps = 1e-6f,
                                                 .scale = (float)(1 / sqrt(DIM)),
                                                 .rope = &rope,
                                                 .out = &out[0][0][0]};
                    memset(out, 0xff, sizeof out);
                    must(backend->ops->attend(backend, &job));
                    for (int a = 0, s = 0; a < n_span; a++) {
                        while (kv[s].view.k != span[a].kv.k) s++;
                        double difference = 0, norm = 0;
                        for (int i = 0; i < span[a].n_row; i++)
                            for (int h = 0; h < HEADS; h++)
                                for (int d = 0; d < DIM; d++) {
                                    double expected = sequence[s].out[span[a].n_past + i][h][d];
                                    double error = (double)out[span[a].row + i][h][d] - expected;
                                    difference += error * error;
                                    norm += expected * expected;
                                }
                        if (!(difference <= budget[type] * norm))
                            fail_msg("%s, step %d, layer %d, sequence %d: error %g",
                                     mote_kv_type_name((enum mote_kv_type)type), step, layer, s,
                                     difference / norm);
                        if (difference / norm > worst) worst = difference / norm;
                    }
                }
                for (int a = 0, s = 0; a < n_span; a++) {
                    while (kv[s].view.k != span[a].kv.k) s++;
                    kv[s].n_past += span[a].n_row;
                }
            }
            print_message("%s, %d threads: error %.1e\n", mote_kv_type_name((enum mote_kv_type)type),
                          n_thread, worst);
            for (int s = 0; s < SEQUENCES; s++) mote_kv_destroy(&kv[s]);
            backend->ops->destroy(backend);
        }
}

static void test_batches(void **state)
{
    (void)state;
    struct mote_backend *backend = backend_for(&small, 8, 1, NULL);
    struct mote_kv kv;
    must(mote_kv_create(&small, MOTE_KV_F16, 10, backend, &kv));
    int32_t token[9] = {0};
    struct mote_span span[2] = {{.kv = kv.view, .row = 0, .n_row = 4, .n_past = 6}};
    struct mote_batch batch = {.n_row = 4, .token = token, .n_span = 1, .span = span};
    must(backend->ops->begin(backend, &batch));
    span[0].n_past = 7;
    must_fail(backend->ops->begin(backend, &batch), MOTE_CONTEXT, "10");
    span[0].n_past = 0;
    span[0].n_row = 3;
    must_fail(backend->ops->begin(backend, &batch), MOTE_ARGUMENT, "cover 3 rows of 4");
    span[0].row = 1;
    must_fail(backend->ops->begin(backend, &batch), MOTE_ARGUMENT, "begin at 0");
    batch.n_row = 9;
    must_fail(backend->ops->begin(backend, &batch), MOTE_ARGUMENT, "9 rows");
    mote_kv_destroy(&kv);
    backend->ops->destroy(backend);
    assert_int_equal(mote_mem_global_total(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
