// choose.cuh: router logits of a row to chosen experts, by one warp: struct mote_route in backend/backend.h says what is
// computed. Whoever needs a choice may make it: it is a function of the logits alone, the same bits wherever it is made.
// One idea: a lane holds experts lane, lane + 32, ..; a choice is a warp-wide integer maximum of the score's ordered bits,
// and among equals the minimum of the index, so ties go to the lower one by construction.
#pragma once
#include "common.cuh"
#include "order.cuh"
#include "step.h"

enum { SCORE_SOFTMAX, SCORE_SOFTMAX_TOPK, SCORE_SIGMOID };

// What a kernel is told that makes the choice of a step's one row for itself: struct choice_job of cuda_moe.c.
struct ChoiceJob {
    const float *logits; // null: ids and weights are there
    const float *bias;
    int *ids;            // [N_USED], for whoever looks at them later
    float *weights;      // likewise
    float scale;
    int layer;
};

__device__ __forceinline__ double warp_sum64(double v)
{
#pragma unroll
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

// Of the warp's (key, index) pairs, is this lane's the one with the largest key, of equal keys with the lowest index?
__device__ __forceinline__ bool is_best(u32 key, int index)
{
    bool is_top = key == __reduce_max_sync(~0u, key);
    u32 who = __ballot_sync(~0u, is_top);
    if (who & (who - 1)) is_top = (u32)index == __reduce_min_sync(~0u, is_top ? (u32)index : ~0u);
    return is_top;
}

// A row's choice, in shared memory. Template arguments: struct mote_routing's n_expert, n_used, score, n_group,
// n_group_used, renormalise.
template <int EXPERTS, int USED, int SCORED, int GROUPS, int GROUPS_USED, int RENORMALISED> struct Choice {
    static constexpr int EACH = (EXPERTS + 31) / 32, SLOTS = (USED + 31) / 32;
    float prob[EXPERTS]; // what weights are made of
    int ids[USED];
    bool is_late; // prob are logits, of which the chosen ones alone need exponentials

    // The first n ids. One warp, whose lanes see them. `from`: the row's logits, which other blocks may have written in
    // this kernel (read past L1).
    __device__ __forceinline__ void choose(const float *from, const float *bias, int n, int row, int layer, mote_step_fault *fault)
    {
        int lane = threadIdx.x % 32;
        u32 key[EACH];
        float top = -INFINITY;
        bool bad = false;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int e = lane + 32 * j;
            float logit = e < EXPERTS ? __ldcg(from + e) : -INFINITY;
            bad |= logit != logit || (bias && e < EXPERTS && bias[e] != bias[e]);
            top = fmaxf(top, logit);
            key[j] = __float_as_uint(logit);
        }
        if (__any_sync(~0u, bad) && lane == 0 && atomicCAS(&fault->code, 0, MOTE_STEP_NAN) == 0)
            fault->row = row, fault->layer = layer;
        // Scores rise with logits, which tell more of them apart. prob lies in shared memory from here on: kernels that
        // choose on their way have no registers to spare.
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            float logit = __uint_as_float(key[j]);
            if (lane + 32 * j < EXPERTS) prob[lane + 32 * j] = logit;
            key[j] = lane + 32 * j < EXPERTS ? ordered(bad ? 0.f : logit) : 0;
        }

        // An infinite top logit takes all of the probability.
        // Renormalised weights need no sum over all, and where scores are logits no exponential of what is not chosen.
        constexpr bool LATE = SCORED == SCORE_SOFTMAX && RENORMALISED && GROUPS == 1;
        bool late = LATE && !bias && !__any_sync(~0u, top == INFINITY) && __any_sync(~0u, top != -INFINITY);
        if (SCORED == SCORE_SOFTMAX && !late) {
#pragma unroll
            for (int d = 16; d; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
            double sum = 0;
#pragma unroll
            for (int e = lane; e < EXPERTS; e += 32) {
                float p = prob[e];
                prob[e] = p = top == INFINITY ? (p == INFINITY ? 1.f : 0.f) : (top == -INFINITY ? 1.f : expf(p - top));
                sum += p;
            }
            sum = warp_sum64(sum);
#pragma unroll
            for (int e = lane; e < EXPERTS; e += 32) prob[e] = (float)(prob[e] / sum);
        } else if (SCORED == SCORE_SIGMOID) {
#pragma unroll
            for (int e = lane; e < EXPERTS; e += 32) prob[e] = 1 / (1 + expf(-prob[e]));
        }
        // By score, not by logit: with a bias; and beside an infinite logit all others are 0.
        if (bias || (SCORED == SCORE_SOFTMAX && !late && top == INFINITY)) {
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                int e = lane + 32 * j;
                if (e < EXPERTS) key[j] = ordered(bad ? 0.f : prob[e] + (bias ? bias[e] : 0));
            }
        }
        if (lane == 0) is_late = late;
        __syncwarp();
        if (GROUPS > 1) close_groups(bias, key);

#pragma unroll 1 // short code: it is fetched once and run once
        for (int s = 0; s < n; s++) {
            u32 mine = 0;
            int at = 0;
#pragma unroll
            for (int j = 0; j < EACH; j++)
                if (key[j] > mine) mine = key[j], at = j;
            if (!is_best(mine, lane + 32 * at)) continue;
            ids[s] = lane + 32 * at;
#pragma unroll
            for (int j = 0; j < EACH; j++)
                if (j == at) key[j] = 0;
        }
        __syncwarp();
    }

    // Experts of groups that do not take part: nobody's choice. Lane g judges group g: GROUPS <= 32.
    __device__ __forceinline__ void close_groups(const float *bias, u32 (&key)[EACH]) const
    {
        constexpr int SIZE = EXPERTS / GROUPS;
        int lane = threadIdx.x % 32;
        float first = -INFINITY, second = -INFINITY;
        if (lane < GROUPS)
            for (int i = 0; i < SIZE; i++) {
                int e = lane * SIZE + i;
                float s = prob[e] + (bias ? bias[e] : 0);
                if (s > first) second = first, first = s;
                else if (s > second) second = s;
            }
        u32 group_key = lane < GROUPS ? ordered(SIZE > 1 ? first + second : first) : 0;
        bool is_open = false;
        for (int i = 0; i < GROUPS_USED; i++)
            if (is_best(group_key, lane)) is_open = true, group_key = 0;
        u32 open = __ballot_sync(~0u, is_open);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int e = lane + 32 * j;
            if (e < EXPERTS && !(open >> e / SIZE & 1)) key[j] = 0;
        }
    }

    // Weights of all ids, to `to` [USED]. One warp; slot s is lane s % 32's.
    __device__ __forceinline__ void weigh(float scale, float *to) const
    {
        int lane = threadIdx.x % 32;
        float w[SLOTS];
#pragma unroll
        for (int i = 0; i < SLOTS; i++) w[i] = lane + 32 * i < USED ? prob[ids[lane + 32 * i]] : 0;
        if (SCORED == SCORE_SOFTMAX_TOPK || is_late) {
            float best = __shfl_sync(~0u, w[0], 0);
#pragma unroll
            for (int i = 0; i < SLOTS; i++)
                w[i] = best == INFINITY ? (w[i] == INFINITY ? 1.f : 0.f) : (best == -INFINITY ? 1.f : expf(w[i] - best));
        }
        float divide = 1;
        if (SCORED == SCORE_SOFTMAX_TOPK || RENORMALISED) { // float64, in order of choice
            double sum = 0;
#pragma unroll
            for (int s = 0; s < USED; s++) sum += __shfl_sync(~0u, w[s / 32], s % 32);
            divide = (float)(SCORED == SCORE_SOFTMAX_TOPK ? sum : fmax(sum, 1e-20));
        }
#pragma unroll
        for (int i = 0; i < SLOTS; i++)
            if (lane + 32 * i < USED) to[lane + 32 * i] = w[i] / divide * scale;
    }

    // All of the choice to memory: of row `row`. One warp.
    __device__ __forceinline__ void leave(float scale, int row, int *to_ids, float *to_weights) const
    {
        for (int s = threadIdx.x % 32; s < USED; s += 32) to_ids[(size_t)row * USED + s] = ids[s];
        weigh(scale, to_weights + (size_t)row * USED);
    }
};
