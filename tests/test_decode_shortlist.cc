/* test_decode_shortlist.cc: shortlist.cu whole on the host: rows of every kind against the definition, and the tokens that
 * the chain picks from its lists against those it picks from the rows.
 */
#include "device_step.h"

#include "cuda/kernels/order.cuh"

extern "C" {
#include "engine/sampler.h"
#include "host_shortlist.h"
}

/* Fewer than are listed; more than the room for keys in too few groups to choose among; groups enough; a model's. */
#define VOCAB 7
#define shortlist shortlist_7
namespace vocab_7
{
#include "cuda/kernels/shortlist.cu"
}
#undef VOCAB
#undef shortlist
#define VOCAB 4099
#define shortlist shortlist_4099
namespace vocab_4099
{
#include "cuda/kernels/shortlist.cu"
}
#undef VOCAB
#undef shortlist
#define VOCAB 32003
#define shortlist shortlist_32003
namespace vocab_32003
{
#include "cuda/kernels/shortlist.cu"
}
#undef VOCAB
#undef shortlist
#define VOCAB 151936
#define shortlist shortlist_151936
namespace vocab_151936
{
#include "cuda/kernels/shortlist.cu"
}
#undef VOCAB
#undef shortlist

typedef void kernel(const float *logits, mote_step_group *group, int *ticket, mote_shortlist *to);
static const struct vocab {
    int n;
    kernel *run;
} vocabs[] = {{7, vocab_7::shortlist_7},
              {4099, vocab_4099::shortlist_4099},
              {32003, vocab_32003::shortlist_32003},
              {151936, vocab_151936::shortlist_151936}};

static array<mote_shortlist> lists_of(const vocab &of, const array<float> &logits)
{
    unsigned rows = (unsigned)((int)logits.n / of.n), spans = (unsigned)(of.n + MOTE_SPAN_LOGITS - 1) / MOTE_SPAN_LOGITS;
    array<mote_step_group> group(rows * spans * MOTE_SPAN_GROUPS, mote_step_group{~0ull, NAN, 0});
    array<int> ticket(rows);
    mote_shortlist nothing;
    memset(&nothing, 0x55, sizeof nothing);
    array<mote_shortlist> to(rows, nothing);
    launch(spans, rows, MOTE_SPAN_THREADS, [&] { of.run(logits.at, group.at, ticket.at, to.at); });
    for (int t : ticket) assert_int_equal(t, 0);
    for (const mote_step_group &g : group) assert_true(g.key != ~0ull); /* every row has its own */
    return to;
}

static void check_list(const float *logits, int n, const mote_shortlist &got)
{
    mote_shortlist want;
    host_shortlist(logits, n, 0, &want);
    if (got.n != want.n) fail_msg("vocabulary of %d: %d listed, expected %d", n, got.n, want.n);
    if (!want.n) return;
    for (int i = 0; i < want.n; i++)
        if (got.id[i] != want.id[i] || got.logit[i] != want.logit[i])
            fail_msg("vocabulary of %d, place %d: token %d at %g, expected %d at %g", n, i, got.id[i],
                     (double)got.logit[i], want.id[i], (double)want.logit[i]);
    if (!(fabsf(got.sum - want.sum) <= (float)MOTE_SHORTLIST_ERROR / 2 * want.sum))
        fail_msg("vocabulary of %d: sum %.9g, expected %.9g", n, (double)got.sum, (double)want.sum);
}

enum kind { NORMAL, TIES, EQUAL, SPARSE, FEW, NONE, WITH_NAN, WITH_INF, RISING, FALLING, CROWDED, BOTH_ZEROS, HUGE_ONES, FLAT, KINDS };

static void fill(kind k, float *v, int n)
{
    for (int i = 0; i < n; i++) {
        v[i] = normal() * 3 - 2;
        switch (k) {
        case TIES: v[i] = rintf(v[i]); break;
        case EQUAL: v[i] = -3.5f; break;
        case SPARSE: /* the rest of a vocabulary is never chosen */
            if (i >= n / 3) v[i] = -INFINITY;
            break;
        case FEW:
            if (i % (n / 3)) v[i] = -INFINITY;
            break;
        case NONE: v[i] = -INFINITY; break;
        case RISING: v[i] = (float)i / 64; break;
        case FALLING: v[i] = -(float)i / 64; break;
        case CROWDED: /* all of the best in few groups */
            if (i < 6000 && i / 8 % 64 < 6) v[i] += 40;
            break;
        case BOTH_ZEROS: v[i] = i % 5 ? (i % 2 ? 0.f : -0.f) : -1; break;
        case HUGE_ONES: v[i] *= 1e37f; break;
        case FLAT: v[i] *= 1e-6f; break;
        default: break;
        }
    }
    if (k == WITH_NAN) v[n - 2] = NAN;
    if (k == WITH_INF) v[n / 2] = INFINITY;
}

static void test_rows(void **state)
{
    (void)state;
    for (const vocab &of : vocabs) {
        bool is_large = of.n > 100000;
        array<float> logits((size_t)(KINDS * of.n));
        for (int k = 0; k < KINDS; k++) fill((kind)k, logits.at + k * of.n, of.n);
        if (is_large) { /* one by one: the alike ones tell nothing that a smaller one does not */
            static const kind some[] = {NORMAL, TIES, CROWDED};
            for (kind k : some) {
                array<float> row(logits.at + k * of.n, (size_t)of.n);
                check_list(row.at, of.n, lists_of(of, row)[0]);
            }
            continue;
        }
        array<mote_shortlist> got = lists_of(of, logits);
        for (int k = 0; k < KINDS; k++) check_list(logits.at + k * of.n, of.n, got[k]);
        array<mote_shortlist> again = lists_of(of, logits);
        for (int k = 0; k < KINDS; k++) /* the same bits, where they have a meaning */
            assert_true(got[k].n == again[k].n && (!got[k].n || same_bytes(&got[k].sum, &again[k].sum, 4)));
    }
}

static void test_tokens(void **state)
{
    (void)state;
    static const struct mote_chain_options options[] = {
        {0, 0, 1, 0, 1, 0, 3},           {0, 0, 1, 0, 1.4f, 64, 3},       {0.8f, 40, 0.95f, 0.05f, 1, 0, 3},
        {0.7f, 20, 1, 0, 1.1f, 64, 3},   {1, 0, 0.9f, 0, 1, 0, 3},        {1, 0, 1, 0.02f, 1, 0, 3},
        {1, 0, 1, 0, 1, 0, 3},           {1.3f, 1000, 0.99f, 0, 1, 0, 3},
    };
    const vocab &of = vocabs[2];
    array<float> logits((size_t)(3 * of.n));
    fill(NORMAL, logits.at, of.n);
    fill(TIES, logits.at + of.n, of.n);
    fill(SPARSE, logits.at + 2 * of.n, of.n);
    array<mote_shortlist> list = lists_of(of, logits);
    int32_t recent[64];
    for (int i = 0; i < 64; i++) recent[i] = list[0].id[i * 3];
    for (const mote_chain_options &o : options) {
        struct mote_chain *by_row, *by_list;
        assert_int_equal(mote_chain_create(&o, of.n, NULL, &by_row), MOTE_OK);
        assert_int_equal(mote_chain_create(&o, of.n, NULL, &by_list), MOTE_OK);
        for (int d = 0; d < 18; d++) {
            const float *row = logits.at + d % 3 * of.n;
            int32_t want, got = -1;
            assert_int_equal(mote_chain_pick(by_row, row, recent, 64, &want, NULL), MOTE_OK);
            if (!mote_chain_pick_best(by_list, &list[d % 3], recent, 64, &got, NULL))
                assert_int_equal(mote_chain_pick(by_list, row, recent, 64, &got, NULL), MOTE_OK);
            assert_int_equal(got, want);
        }
        mote_chain_destroy(by_row);
        mote_chain_destroy(by_list);
    }
}

static int end(void **state)
{
    (void)state;
    device_end();
    return 0;
}

int main(void)
{
    mote_rng_seed(&rng, 21);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_tokens)};
    return cmocka_run_group_tests(tests, NULL, end);
}
