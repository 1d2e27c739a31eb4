// shortlist.cu: the best MOTE_SHORTLIST of a row of logits, sorted, and the sum of exponentials of all: struct
// mote_shortlist in step.h says what is computed. One launch for all wanted rows.
//
// One idea: a logit and its id are one number (a key), different for all ids, so every threshold that is wanted exists:
// the count of keys above it can be any. A block leaves the best key of each group of 64 logits; the last block of a row
// (an atomic ticket) bisects these for a threshold that somewhat more than MOTE_SHORTLIST groups reach. What is wanted
// lies in those groups alone, whatever the logits are; their logits above the threshold are few and are sorted.
// A group is 8 lanes x 8 logits a lane, in eight places of its span, so that neighbouring ids do not crowd into a group.
//
// Expected for a row of 151936 on an H200, us: start 1; 608 KB by 38 blocks, 8 loads a thread in flight, 1.2; groups to
// memory, ticket 1; 2432 groups back (39 KB) 0.7; 10 to 16 bisections of 5 compares and a barrier 1.5; about 290 groups'
// logits (74 KB of L2), 5 turns of 8 loads, 2.2; sorting 512: 45 steps, 9 of them with a barrier, 1.5. Sum 9.
// Constants: VOCAB.
#include "order.cuh"
#include "step.h"

constexpr int SPAN_WARPS = MOTE_SPAN_THREADS / 32;
constexpr int EACH_LOGIT = MOTE_SPAN_LOGITS / MOTE_SPAN_THREADS, GROUP_LANES = MOTE_SPAN_THREADS / MOTE_SPAN_GROUPS;
constexpr int GROUP_LOGITS = MOTE_SPAN_LOGITS / MOTE_SPAN_GROUPS;
constexpr int N_SPAN = (VOCAB + MOTE_SPAN_LOGITS - 1) / MOTE_SPAN_LOGITS, N_GROUPS = N_SPAN * MOTE_SPAN_GROUPS;
constexpr int EACH_GROUP = (N_GROUPS + MOTE_SPAN_THREADS - 1) / MOTE_SPAN_THREADS;
// The most groups, and the most keys, that a threshold may let through: wide enough to be found soon.
constexpr int MOST_GROUPS = MOTE_SHORTLIST + 64, MOST_KEYS = 1024, AT_ONCE = 8;

// 0: not finite.
__device__ __forceinline__ u64 key_of(float logit, int id)
{
    return logit > -INFINITY && logit < INFINITY ? (u64)ordered(logit) << 32 | (u32)~id : 0;
}
__device__ __forceinline__ float logit_of(u64 key)
{
    return of_order((u32)(key >> 32));
}
__device__ __forceinline__ u64 larger(u64 a, u64 b)
{
    return a > b ? a : b;
}

// Everybody gets it. part: one a warp, shared; not the one of the call before, which some may still be reading.
__device__ __forceinline__ int sum_of_block(int v, int *part)
{
    v = __reduce_add_sync(~0u, v);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    return __reduce_add_sync(~0u, threadIdx.x % 32 < SPAN_WARPS ? part[threadIdx.x % 32] : 0);
}

// A threshold that at most `most` keys reach, but at least MOTE_SHORTLIST; `at` itself when at most `most` reach it. top:
// the largest key. count(t), by the whole block: how many reach t. Ends because keys differ and most > MOTE_SHORTLIST.
template <class Count> __device__ __forceinline__ u64 threshold(u64 at, u64 top, int most, Count count)
{
    u64 low = at, high = top + 1, first = at;
#pragma unroll 1
    for (;;) {
        int n = count(at);
        if (n > most) low = at;
        else if (n >= MOTE_SHORTLIST || at == first) return at;
        else high = at;
        at = low + (high - low) / 2;
    }
}

// key[size] falling, size a power of two, 64 <= size <= 2 * MOTE_SPAN_THREADS. What a warp's lanes exchange at strides of
// at most 32 lies in its own 64 places, so only longer ones wait for the block.
__device__ __forceinline__ void sort_keys(u64 *key, int size)
{
    int before = size;
#pragma unroll 1
    for (int run = 2; run <= size; run *= 2)
#pragma unroll 1
        for (int stride = run / 2; stride; stride /= 2) {
            if (stride > 32 || before > 32) __syncthreads();
            else __syncwarp();
            before = stride;
            int i = threadIdx.x, a = i / stride * 2 * stride + i % stride, b = a + stride;
            if (i >= size / 2) continue;
            u64 x = key[a], y = key[b];
            if ((a & run) == 0 ? x < y : x > y) key[a] = y, key[b] = x;
        }
    __syncthreads();
}

// logits [gridDim.y][VOCAB]; group [gridDim.y][N_GROUPS]; ticket [gridDim.y], zero; to [gridDim.y].
extern "C" __global__ void __launch_bounds__(MOTE_SPAN_THREADS, 1)
    shortlist(const float *logits, mote_step_group *group, int *ticket, mote_shortlist *to)
{
    __shared__ u64 key[MOST_KEYS], top_part[SPAN_WARPS];
    __shared__ int chosen[MOST_GROUPS], part[2][SPAN_WARPS], n_chosen, n_key, is_last;
    __shared__ float sum_part[SPAN_WARPS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.y;
    const float *from = logits + (size_t)row * VOCAB;
    group += (size_t)row * N_GROUPS;
    to += row;
    chain_launch();
    chain_wait();
    {
        float v[EACH_LOGIT], sum = 0;
        u64 best = 0;
        int first = blockIdx.x * MOTE_SPAN_LOGITS + threadIdx.x;
#pragma unroll
        for (int j = 0; j < EACH_LOGIT; j++) {
            int id = first + j * MOTE_SPAN_THREADS;
            v[j] = id < VOCAB ? from[id] : -INFINITY;
        }
#pragma unroll
        for (int j = 0; j < EACH_LOGIT; j++) best = larger(best, key_of(v[j], first + j * MOTE_SPAN_THREADS));
#pragma unroll
        for (int d = 1; d < GROUP_LANES; d *= 2) best = larger(best, __shfl_xor_sync(~0u, best, d));
        float top = best ? logit_of(best) : 0; // what is not finite leaves a sum that is not
#pragma unroll
        for (int j = 0; j < EACH_LOGIT; j++) sum += expf(v[j] - top);
#pragma unroll
        for (int d = 1; d < GROUP_LANES; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
        if (threadIdx.x % GROUP_LANES == 0) {
            mote_step_group *of = group + blockIdx.x * MOTE_SPAN_GROUPS + threadIdx.x / GROUP_LANES;
            of->key = best;
            of->sum = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = count_up(ticket + row) == N_SPAN - 1;
        if (is_last) ticket[row] = 0; // for the next launch
        n_chosen = 0;
    }
    __syncthreads();
    if (!is_last) return;

    u64 best[EACH_GROUP], top = 0;
    float each[EACH_GROUP], sum = 0;
#pragma unroll
    for (int i = 0; i < EACH_GROUP; i++) {
        int g = threadIdx.x + i * MOTE_SPAN_THREADS;
        best[i] = g < N_GROUPS ? __ldcg(&group[g].key) : 0;
        each[i] = g < N_GROUPS ? __ldcg(&group[g].sum) : 0;
        top = larger(top, best[i]);
    }
#pragma unroll
    for (int d = 16; d; d /= 2) top = larger(top, __shfl_xor_sync(~0u, top, d));
    if (lane == 0) top_part[warp] = top;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SPAN_WARPS; i++) top = larger(top, top_part[i]);
#pragma unroll
    for (int i = 0; i < EACH_GROUP; i++)
        sum += best[i] ? each[i] * expf(logit_of(best[i]) - logit_of(top)) : each[i];
    sum = warp_sum(sum);
    if (lane == 0) sum_part[warp] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int i = 0; i < SPAN_WARPS; i++) sum += sum_part[i];
    if (!top || !(sum < INFINITY)) {
        if (threadIdx.x == 0) to->n = 0;
        return;
    }

    int turn = 0;
    u64 least = threshold(1, top, MOST_GROUPS, [&](u64 at) {
        int n = 0;
#pragma unroll
        for (int i = 0; i < EACH_GROUP; i++) n += best[i] >= at;
        return sum_of_block(n, part[turn ^= 1]);
    });
#pragma unroll
    for (int i = 0; i < EACH_GROUP; i++)
        if (best[i] >= least) chosen[atomicAdd(&n_chosen, 1)] = threadIdx.x + i * MOTE_SPAN_THREADS;
    __syncthreads();
    int n_logit = n_chosen * GROUP_LOGITS; // to look at
    // Keys that reach `at`, in any order; counted beyond the room for them too.
    threshold(least, top, MOST_KEYS, [&](u64 at) {
        if (threadIdx.x == 0) n_key = 0;
        __syncthreads();
#pragma unroll 1
        for (int base = 0; base < n_logit; base += MOTE_SPAN_THREADS * AT_ONCE) {
            float v[AT_ONCE];
            int id[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                int e = base + j * MOTE_SPAN_THREADS + threadIdx.x;
                int g = e < n_logit ? chosen[e / GROUP_LOGITS] : 0, in = e % GROUP_LOGITS;
                id[j] = g / MOTE_SPAN_GROUPS * MOTE_SPAN_LOGITS + in / GROUP_LANES * MOTE_SPAN_THREADS +
                        g % MOTE_SPAN_GROUPS * GROUP_LANES + in % GROUP_LANES;
                v[j] = e < n_logit && id[j] < VOCAB ? from[id[j]] : -INFINITY;
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                u64 k = key_of(v[j], id[j]);
                u32 hits = __ballot_sync(~0u, k >= at);
                if (!hits) continue;
                int slot = 0;
                if (lane == 0) slot = atomicAdd(&n_key, __popc(hits));
                slot = __shfl_sync(~0u, slot, 0) + __popc(hits & ((1u << lane) - 1));
                if (k >= at && slot < MOST_KEYS) key[slot] = k;
            }
        }
        __syncthreads();
        int n = n_key;
        __syncthreads();
        return n;
    });
    int n = n_key, size = 64;
    while (size < n) size *= 2;
    for (int i = n + threadIdx.x; i < size; i += MOTE_SPAN_THREADS) key[i] = 0;
    sort_keys(key, size); // begins with a barrier
    n = min(n, (int)MOTE_SHORTLIST);
    if (threadIdx.x == 0) to->n = n, to->sum = sum;
    if ((int)threadIdx.x < n) {
        to->logit[threadIdx.x] = logit_of(key[threadIdx.x]);
        to->id[threadIdx.x] = (int)~(u32)key[threadIdx.x];
    }
}
