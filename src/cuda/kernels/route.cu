// route.cu: the router's choice from logits that are there, a warp a row. Constants: those of struct mote_routing, by which
// texts know it: N_EXPERT, N_USED, SCORE (enum mote_route_score), N_GROUP, N_GROUP_USED, RENORMALISE.
#include "choose.cuh"

extern "C" __global__ void __launch_bounds__(32)
    route(const float *logits, const float *bias, float scale, int *ids, float *weights, int layer, mote_step_fault *fault)
{
    __shared__ Choice<N_EXPERT, N_USED, SCORE, N_GROUP, N_GROUP_USED, RENORMALISE> choice;
    chain_launch();
    chain_wait();
    choice.choose(logits + (size_t)blockIdx.x * N_EXPERT, bias, N_USED, blockIdx.x, layer, fault);
    choice.leave(scale, blockIdx.x, ids, weights);
}
