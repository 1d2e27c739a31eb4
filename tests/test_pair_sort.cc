/* test_pair_sort.cc: kernels/pair_sort.cuh, run on the host by device_emulation.h: places, rows, pieces of few and of many
 * pairs, held to a sort that a reader can see is right; ids that are no expert's; and that it keeps to the shared memory
 * that the backend gives it.
 */
#include <limits.h>

#include <initializer_list>

#include "device_step.h"

#include "cuda/kernels/pair_sort.cuh"

enum { BLOCK = 1024 }; /* as backend/cuda_prefill.c and cuda_mx.c launch it */
static int sort_warps(int n_expert) /* as cuda_sort_job */
{
    int n = (47 * 1024 / 4 - 98) / n_expert - 3;
    return n > 32 ? 32 : n;
}
static size_t sort_shared(const Sort &job) /* as cuda_sort_shared */
{
    size_t counts = ((size_t)(job.n_warp + 3) * (size_t)job.n_expert + 98) * 4;
    return counts > 1536 ? counts : 1536;
}

/* How experts are drawn. */
enum draw { EVEN, SKEWED, SOME, ONE, LAST, BAD, DRAWS };

static int draw_expert(enum draw how, int n_expert)
{
    static const int bad[] = {-1, INT_MIN, INT_MAX, -7};
    int e = (int)(mote_rng_u64(&rng) % (u64)n_expert);
    switch (how) {
    case SKEWED: return mote_rng_u64(&rng) % 4 ? n_expert / 2 : e; /* most are one expert's */
    case SOME: return e - e % 3; /* two of three have none */
    case ONE: return n_expert / 3;
    case LAST: return n_expert - 1;
    case BAD: return mote_rng_u64(&rng) % 8 ? e : e % 5 == 4 ? n_expert : bad[e % 5];
    default: return e;
    }
}

struct sizes {
    int n_pair, n_used, n_expert, width, n_warp, n_part;
};

/* Of a step's pairs. */
struct sorted {
    array<int> row_of, place;
    array<float> weight_of;
    array<int4> piece;
    array<int> rest;
    int n_piece, n_rest;
    mote_step_fault fault;
    bool operator==(const sorted &other) const
    {
        return same_bytes(weight_of.at, other.weight_of.at, weight_of.n * sizeof(float)) && n_piece == other.n_piece && n_rest == other.n_rest && same_bytes(rest.at, other.rest.at, rest.n * sizeof(int)) &&
               same_bytes(row_of.at, other.row_of.at, row_of.n * sizeof(int)) &&
               same_bytes(place.at, other.place.at, place.n * sizeof(int)) &&
               same_bytes(piece.at, other.piece.at, piece.n * sizeof(int4));
    }
};

/* Each its own; without `wide` nobody asks for them in the order of experts. */
static array<float> pair_weights(int n_pair)
{
    array<float> weights((size_t)n_pair);
    for (int p = 0; p < n_pair; p++) weights[p] = (float)p + 0.5f;
    return weights;
}

static sorted sort(const array<int> &ids, const sizes &s, const int *wide, mote_step_fault fault)
{
    array<int> none((size_t)s.n_pair, -1);
    array<int4> unset((size_t)(s.n_pair / s.width + s.n_expert), int4{-1, -1, -1, -1});
    sorted to = {none, none, array<float>(none.n, -1), unset, array<int>(unset.n, -1), -1, -1, fault};
    array<float> weights = pair_weights(s.n_pair);
    Sort job = {ids.at, to.row_of.at, to.place.at, to.piece.at, &to.n_piece, wide, wide ? to.rest.at : NULL, &to.n_rest, weights.at,
                wide ? to.weight_of.at : NULL, &to.fault, s.n_pair, s.n_used,
                s.n_expert, s.width, s.n_warp, s.n_part};
    launch((unsigned)s.n_part, 1, BLOCK, [&] { sort_pairs(job, (int)blockIdx.x); });
    for (size_t i = sort_shared(job); i < sizeof shared; i++)
        if (shared[i] != 0xFF) fail_msg("byte %zu of shared memory is not the sort's", i);
    return to;
}

/* Experts rising, pairs of one in their order, in as few pieces as hold up to `width`, none more than one pair ahead of the average. */
static sorted wanted(const array<int> &ids, const sizes &s, const int *wide)
{
    array<int> none((size_t)s.n_pair, -1);
    array<int4> unset((size_t)(s.n_pair / s.width + s.n_expert), int4{-1, -1, -1, -1});
    sorted to = {none, none, array<float>(none.n, -1), unset, array<int>(unset.n, -1), 0, wide ? 0 : -1, {}};
    array<float> weights = pair_weights(s.n_pair);
    int next = 0;
    for (int e = 0; e < s.n_expert; e++) {
        int first = next;
        for (int p = 0; p < s.n_pair; p++) {
            int is_bad = ids[p] < 0 || ids[p] >= s.n_expert; /* stands with the last expert's */
            if ((is_bad ? s.n_expert - 1 : ids[p]) != e) continue;
            to.place[p] = next;
            if (wide) to.weight_of[next] = weights[p];
            to.row_of[next++] = p / s.n_used;
        }
        int n = next - first, each = 1;
        while ((n + each - 1) / each > (n + s.width - 1) / s.width) each++;
        for (; first < next; first += each) {
            if (wide && wide[e]) to.rest[to.n_rest++] = to.n_piece;
            to.piece[to.n_piece++] = int4{e, first, next - first < each ? next - first : each, wide ? wide[e] : 0};
        }
    }
    return to;
}

static void check(const sizes &s, enum draw how)
{
    array<int> ids((size_t)s.n_pair), wide((size_t)s.n_expert);
    int n_bad = 0;
    for (int &id : ids) {
        id = draw_expert(how, s.n_expert);
        n_bad += id < 0 || id >= s.n_expert;
    }
    for (int &w : wide) w = (int)(mote_rng_u64(&rng) % 3);
    const int *kinds = how == EVEN ? NULL : wide.at;
    sorted got = sort(ids, s, kinds, mote_step_fault{});
    if (!(got == wanted(ids, s, kinds)))
        fail_msg("%d pairs, %d a row, %d experts, %d a piece, %d warps, %d parts, draw %d", s.n_pair, s.n_used, s.n_expert,
                 s.width, s.n_warp, s.n_part, how);
    assert_int_equal(got.fault.code, n_bad ? MOTE_STEP_EXPERT : MOTE_STEP_FINE);
    if (!n_bad) return;
    assert_in_range(got.fault.row, 0, s.n_pair - 1);
    assert_int_equal(got.fault.value, ids[got.fault.row]);
    assert_true(got.fault.value < 0 || got.fault.value >= s.n_expert);
}

/* Up to FEW_PAIRS: places by comparison, as many lanes a pair as there are. */
static void test_few(void **)
{
    for (int n_pair : {1, 2, 9, 31, 33, 64, 77, FEW_PAIRS - 1, FEW_PAIRS})
        for (int width : {8, 16, 64, 128})
            for (int how = 0; how < DRAWS; how++)
                check({n_pair, 1 + n_pair % 9, how % 2 ? 384 : 7, width, sort_warps(384), 1}, (enum draw)how);
    check({5, 2, 1, 8, 32, 1}, EVEN); /* the only expert */
}

/* More: counted by warps, in parts. */
static void test_many(void **)
{
    for (int n_pair : {FEW_PAIRS + 1, 1536, 4099}) {
        if (n_pair > FEW_PAIRS + 1 && getenv("MOTE_TEST_SHORT")) break;
        for (int width : {8, 16, 64, 128, 256})
            for (int how = 0; how < DRAWS; how++) {
                int n_expert = how % 2 ? 385 : 33, n_part = width == 16 ? 1 : width == 64 ? 4 : 3;
                check({n_pair, 3, n_expert, width, width == 8 ? 5 : sort_warps(n_expert), n_part},
                      (enum draw)how);
            }
    }
    check({FEW_PAIRS + 1, 8, 1, 64, 32, 2}, EVEN);
    if (!getenv("MOTE_TEST_SHORT")) check({2000, 8, 1024, 4, sort_warps(1024), 2}, EVEN); /* an expert for every thread */
}

/* An earlier fault of the step stays. */
static void test_first_fault(void **)
{
    const mote_step_fault nan = {MOTE_STEP_NAN, 3, 2, 0};
    for (int n_pair : {4, FEW_PAIRS + 4}) {
        array<int> ids((size_t)n_pair, -1);
        sorted got = sort(ids, {n_pair, 2, 8, 16, 32, 1}, NULL, nan);
        assert_memory_equal(&got.fault, &nan, sizeof nan);
    }
}

static int end(void **)
{
    device_end();
    return 0;
}

int main(void)
{
    mote_rng_seed(&rng, 47);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_few), cmocka_unit_test(test_many),
                                       cmocka_unit_test(test_first_fault)};
    return cmocka_run_group_tests(tests, NULL, end);
}
