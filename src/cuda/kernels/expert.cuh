// expert.cuh: the small arithmetic of an expert block that its fused, unfused and prefill kernels share.
#pragma once

__device__ __forceinline__ float swiglu(float gate, float up)
{
    return __fdividef(gate, 1 + __expf(-gate)) * up;
}

// The weight of pair p: 1 without weights; squashed: a shared expert's gate logit.
__device__ __forceinline__ float pair_weight(const float *weights, int squash, int p)
{
    if (!weights) return 1;
    return squash ? 1 / (1 + __expf(-weights[p])) : weights[p];
}
