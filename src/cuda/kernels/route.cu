// route.cu: the router's choice from logits that are there, a warp a row. Constants: those of choose.cuh.
#include "choose.cuh"

extern "C" __global__ void __launch_bounds__(32)
    route(const float *logits, const float *bias, float scale, int *ids, float *weights, int layer, mote_step_fault *fault)
{
    __shared__ float prob[N_EXPERT];
    chain_launch();
    chain_wait();
    choose_row(logits + (size_t)blockIdx.x * N_EXPERT, prob, bias, scale, blockIdx.x, ids, weights, layer, fault);
}
