// choose.cuh: router logits of a row to chosen experts, by one warp: struct mote_route in backend/backend.h says what is
// computed.
// One idea: a lane holds experts lane, lane + 32, ..; a choice is two warp-wide integer maxima (of the score's ordered
// bits, then of the inverted index among the equal), so ties go to the lower index by construction.
// Constants: N_EXPERT, N_USED, SCORE (enum mote_route_score), N_GROUP, N_GROUP_USED, RENORMALISE.
#pragma once
#include "common.cuh"
#include "order.cuh"
#include "step.h"

constexpr int EACH = (N_EXPERT + 31) / 32;
enum { SCORE_SOFTMAX, SCORE_SOFTMAX_TOPK, SCORE_SIGMOID };

__device__ __forceinline__ double warp_sum64(double v)
{
#pragma unroll
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

// Of the warp's (key, index) pairs the largest key, ties to the lowest index; every lane gets the index.
__device__ __forceinline__ int best_of(u32 key, int index)
{
    u32 top = __reduce_max_sync(~0u, key);
    return (int)__reduce_min_sync(~0u, key == top ? (u32)index : ~0u);
}

// One warp. `from`: the row's logits, which other blocks may have written in this kernel (read past L1). prob: shared.
__device__ __forceinline__ void choose_row(const float *from, float *prob, const float *bias, float scale, int row, int *ids,
                                           float *weights, int layer, mote_step_fault *fault)
{
    int lane = threadIdx.x % 32;
    float p[EACH], logit[EACH];
    u32 key[EACH];
    float top = -INFINITY;
    bool bad = false;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int e = lane + 32 * j;
        p[j] = e < N_EXPERT ? __ldcg(from + e) : -INFINITY;
        logit[j] = p[j];
        bad |= p[j] != p[j] || (bias && e < N_EXPERT && bias[e] != bias[e]);
        top = fmaxf(top, p[j]);
    }
    if (__any_sync(~0u, bad) && lane == 0 && atomicCAS(&fault->code, 0, MOTE_STEP_NAN) == 0)
        fault->row = row, fault->layer = layer;
#pragma unroll
    for (int d = 16; d; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));

    // p: what weights are made of. An infinite top logit takes all of the probability.
    // Renormalised weights need no sum over all, and where scores are logits no exponential of what is not chosen.
    constexpr bool LATE = SCORE == SCORE_SOFTMAX && RENORMALISE && N_GROUP == 1;
    bool late = LATE && !bias && top != INFINITY && top != -INFINITY;
    if (SCORE == SCORE_SOFTMAX && !late) {
        double sum = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            p[j] = top == INFINITY ? (p[j] == INFINITY ? 1.f : 0.f) : (top == -INFINITY ? 1.f : expf(p[j] - top));
            if (lane + 32 * j < N_EXPERT) sum += p[j];
        }
        sum = warp_sum64(sum);
#pragma unroll
        for (int j = 0; j < EACH; j++) p[j] = (float)(p[j] / sum);
    } else if (SCORE == SCORE_SIGMOID) {
#pragma unroll
        for (int j = 0; j < EACH; j++) p[j] = 1 / (1 + expf(-p[j]));
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int e = lane + 32 * j;
        if (e < N_EXPERT) {
            prob[e] = p[j];
            // Scores rise with logits, which tell more of them apart; but beside an infinite one all others are 0.
            bool by_score = bias || (SCORE == SCORE_SOFTMAX && top == INFINITY);
            key[j] = ordered(bad ? 0.f : by_score ? p[j] + (bias ? bias[e] : 0) : logit[j]);
        } else key[j] = 0;
    }
    __syncwarp();

    if (N_GROUP > 1) { // lane g judges group g: N_GROUP <= 32
        constexpr int SIZE = N_EXPERT / N_GROUP;
        float first = -INFINITY, second = -INFINITY;
        if (lane < N_GROUP)
            for (int i = 0; i < SIZE; i++) {
                int e = lane * SIZE + i;
                float s = prob[e] + (bias ? bias[e] : 0);
                if (s > first) second = first, first = s;
                else if (s > second) second = s;
            }
        u32 group_key = lane < N_GROUP ? ordered(SIZE > 1 ? first + second : first) : 0, open = 0;
        for (int i = 0; i < N_GROUP_USED; i++) {
            int g = best_of(group_key, lane);
            open |= 1u << g;
            if (lane == g) group_key = 0;
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int e = lane + 32 * j;
            if (e < N_EXPERT && !(open >> e / SIZE & 1)) key[j] = 0;
        }
    }

    // Slot s is kept by lane s % 32: all weights are made at once, after the choice.
    constexpr int SLOTS = (N_USED + 31) / 32;
    int chosen[SLOTS];
#pragma unroll 1 // short code: it is fetched once and run once
    for (int s = 0; s < N_USED; s++) {
        u32 mine = 0;
        int at = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (key[j] > mine) mine = key[j], at = j;
        int e = best_of(mine, lane + 32 * at);
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (e == lane + 32 * j) key[j] = 0;
#pragma unroll
        for (int i = 0; i < SLOTS; i++)
            if (s == lane + 32 * i) chosen[i] = e;
    }
    float w[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; i++) w[i] = lane + 32 * i < N_USED ? prob[chosen[i]] : 0;
    if (SCORE == SCORE_SOFTMAX_TOPK || late) {
        float best = late ? top : __shfl_sync(~0u, w[0], 0);
#pragma unroll
        for (int i = 0; i < SLOTS; i++)
            w[i] = best == INFINITY ? (w[i] == INFINITY ? 1.f : 0.f) : (best == -INFINITY ? 1.f : expf(w[i] - best));
    }
    float divide = 1;
    if (SCORE == SCORE_SOFTMAX_TOPK || RENORMALISE) { // float64, in order of choice
        double sum = 0;
#pragma unroll
        for (int s = 0; s < N_USED; s++) sum += __shfl_sync(~0u, w[s / 32], s % 32);
        divide = (float)(SCORE == SCORE_SOFTMAX_TOPK ? sum : fmax(sum, 1e-20));
    }
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
        if (lane + 32 * i < N_USED) {
            ids[(size_t)row * N_USED + lane + 32 * i] = chosen[i];
            weights[(size_t)row * N_USED + lane + 32 * i] = w[i] / divide * scale;
        }
}
