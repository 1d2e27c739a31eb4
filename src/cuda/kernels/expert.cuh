// expert.cuh: the small arithmetic of an expert block that its fused, unfused and prefill kernels share.
#pragma once

// enum mote_activation_kind of cpu/activation.h, which says what they are (tests/test_decode_moe.cc holds the two together).
enum { SWIGLU, SWIGLU_CLAMPED, SWIGLU_STEP, SWIGLU_OAI, RELU2 };
constexpr bool is_gated(int kind) { return kind != RELU2; }

// Comparisons that are false for a NaN let it through.
__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }
__device__ __forceinline__ float within(float x, float limit) { return at_most(x < -limit ? -limit : x, limit); }
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1 + __expf(-x)); }

// `kind` is a constant wherever it is called once per weight row; without a gate `gate` is not looked at.
__device__ __forceinline__ float activation(int kind, float limit, float gate, float up)
{
    if (kind == SWIGLU) return silu(gate) * up;
    if (kind == RELU2) {
        float u = up < 0 ? 0 : up;
        return u * u;
    }
    float g = at_most(gate, limit), u = within(up, limit);
    if (kind == SWIGLU_CLAMPED) return silu(g) * u;
    if (kind == SWIGLU_STEP) return at_most(silu(gate), limit) * u;
    return __fdividef(g, 1 + __expf(-1.702f * g)) * (u + 1);
}

// The weight of pair p: 1 without weights; squashed: a shared expert's gate logit.
__device__ __forceinline__ float pair_weight(const float *weights, int squash, int p)
{
    if (!weights) return 1;
    return squash ? 1 / (1 + __expf(-weights[p])) : weights[p];
}
