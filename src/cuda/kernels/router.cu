// router.cu: everything between the residual stream and the experts, for few rows: norm, the router's product (and the
// shared expert's gate), the choice of experts, and the normed row as experts read it. One launch.
//
// One idea: a block makes the logits of a few experts for one row, norming the row for itself while the weights are on
// their way; the last block of a row to finish (an atomic ticket) chooses. A row alone may be left without a choice: the
// kernels behind make it for themselves (moe_decode.cu), which is sooner than logits can be read back here.
// Constants: those of route.cu; ITEM (0 f16, 1 bf16, 2 f32: the router's weights), D_MODEL, WARPS.
#include "choose.cuh"
#include "act.cuh"
#include "plain.cuh"

constexpr int BLOCK_EXPERTS = WARPS / 2; // two warps share an expert's columns
constexpr int THREADS = WARPS * 32, UNITS = (D_MODEL + 127) / 128, EACH_COL = (UNITS * 128 + THREADS - 1) / THREADS;
constexpr int PIECES = (D_MODEL + 64 * PLAIN_EACH - 1) / (64 * PLAIN_EACH), AHEAD = PIECES < 8 ? PIECES : 8;

struct Router {
    const float *x, *norm; // [rows][D_MODEL]; norm [D_MODEL] or null: x is normed already
    float *out;            // [rows][D_MODEL] or null
    const u8 *weights;     // [N_EXPERT][row_bytes]
    const u8 *gate;        // one row, or null
    const float *bias;     // of the router's product, or null
    const float *choice_bias;
    float *logits;         // [rows][N_EXPERT]
    float *gate_logit;     // [rows]
    int *ids;              // [rows][N_USED]
    float *mix;            // [rows][N_USED]
    int *ticket;           // [rows], zero; null: nobody chooses here
    mote_step_fault *fault;
    mote_step_act act;     // q null: not wanted
    size_t row_bytes;
    float eps, scale;
    int layer, n_block; // blocks of a row that make logits; one more leaves the normed row
};

extern "C" __global__ void __launch_bounds__(THREADS) router(const __grid_constant__ Router job)
{
    __shared__ __align__(16) float x[UNITS * 128];
    __shared__ float square[WARPS], part[WARPS];
    __shared__ Choice<N_EXPERT, N_USED, SCORE, N_GROUP, N_GROUP_USED, RENORMALISE> choice;
    __shared__ int is_last;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y;
    int expert = blockIdx.x * BLOCK_EXPERTS + warp / 2, first = (warp & 1) * 32 + lane;
    bool is_gate = expert == N_EXPERT && job.gate, there = expert < N_EXPERT || is_gate;
    const u8 *from = is_gate ? job.gate : job.weights + (size_t)(expert < N_EXPERT ? expert : 0) * job.row_bytes;
    uint4 ahead[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (there && (first + i * 64) * PLAIN_EACH < D_MODEL) ahead[i] = ldg16(from + (size_t)(first + i * 64) * 16);
    float w[EACH_COL], v[EACH_COL], sum = 0;
#pragma unroll
    for (int i = 0; i < EACH_COL; i++) {
        int c = threadIdx.x + i * THREADS;
        w[i] = job.norm && c < D_MODEL ? job.norm[c] : 1;
    }
    chain_wait();
    chain_launch();
#pragma unroll
    for (int i = 0; i < EACH_COL; i++) {
        int c = threadIdx.x + i * THREADS;
        v[i] = c < D_MODEL ? job.x[(size_t)row * D_MODEL + c] : 0;
        sum += v[i] * v[i];
    }
    float factor = 1;
    if (job.norm) { // the order of sums is that of input_rows and linear_normed
        sum = warp_sum(sum);
        if (lane == 0) square[warp] = sum;
        __syncthreads();
        float all = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++) all += square[i];
        factor = rsqrtf(all / (float)D_MODEL + job.eps);
    }
#pragma unroll
    for (int i = 0; i < EACH_COL; i++) {
        int c = threadIdx.x + i * THREADS;
        if (c >= UNITS * 128) break; // whole warps
        float h = job.norm ? v[i] * factor * w[i] : v[i];
        x[c] = h;
        if ((int)blockIdx.x == job.n_block) { // the block that leaves the row for the experts
            if (job.out && c < D_MODEL) job.out[(size_t)row * D_MODEL + c] = h;
            if (job.act.q) quantise32(h, job.act, UNITS, row, c / 32);
        }
    }
    if ((int)blockIdx.x == job.n_block) return;
    __syncthreads();

    float acc = 0;
#pragma unroll 1
    for (int base = 0; base < PIECES; base += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int piece = first + (base + i) * 64, c = piece * PLAIN_EACH;
            if (!there || c >= D_MODEL) break;
            float u[PLAIN_EACH];
            plain_unpack(ahead[i], u);
            if (base + i + AHEAD < PIECES && c + 64 * AHEAD * PLAIN_EACH < D_MODEL)
                ahead[i] = ldg16(from + (size_t)(piece + 64 * AHEAD) * 16);
#pragma unroll
            for (int k = 0; k < PLAIN_EACH; k++) acc += u[k] * x[c + k]; // columns past the end are zero in x
        }
    }
    acc = warp_sum(acc);
    if (lane == 0) part[warp] = acc;
    __syncthreads();
    if (lane == 0 && !(warp & 1) && there) {
        float logit = part[warp] + part[warp + 1];
        if (is_gate) job.gate_logit[row] = logit;
        else job.logits[(size_t)row * N_EXPERT + expert] = logit + (job.bias ? job.bias[expert] : 0);
    }
    if (!job.ticket) return;
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = count_up(job.ticket + row) == job.n_block - 1;
        if (is_last) job.ticket[row] = 0; // for the next launch
    }
    __syncthreads();
    if (!is_last || warp) return;
    choice.choose(job.logits + (size_t)row * N_EXPERT, job.choice_bias, N_USED, row, job.layer, job.fault);
    choice.leave(job.scale, row, job.ids, job.mix);
}
