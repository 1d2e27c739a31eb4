/* decode_moe.h: moe_decode.cu and moe_reference.cu for one set of kinds, in a namespace: included once a set, with KERNELS
 * (its name), GATE, UP, DOWN, D_MODEL, N_FF, ACTIVATION and LIMIT; ROUNDING of x and h, I16 without; with a routing (N_EXPERT, ..)
 * route.cu too. The struct
 * `kind` is what a test needs of it.
 */
#ifndef N_EXPERT
#define N_EXPERT 0
#define N_USED 0
#define SCORE 0
#define N_GROUP 1
#define N_GROUP_USED 1
#define RENORMALISE 0
#endif
#ifndef ROUNDING
#define ROUNDING MOTE_ROUND_I16
#endif
#define NAMED_AS(a, b) a##_##b
#define NAMED(a, b) NAMED_AS(a, b)
#define gate_up_one NAMED(gate_up_one, KERNELS)
#define gate_up_many NAMED(gate_up_many, KERNELS)
#define down_one NAMED(down_one, KERNELS)
#define down_many NAMED(down_many, KERNELS)
#define route NAMED(route, KERNELS)

namespace KERNELS
{
static thread_local float part[MOST_PARTS]; /* the dynamic part of shared memory, as the text calls it */

#include "cuda/kernels/moe_decode.cu"

#if N_EXPERT
#include "cuda/kernels/route.cu"
#endif

namespace of_gate
{
#define project NAMED(project_gate, KERNELS)
#define W0 GATE
#define COLS D_MODEL
#include "cuda/kernels/moe_reference.cu"
constexpr auto kernel = project;
#undef project
#undef W0
} // namespace of_gate
namespace of_up
{
#define project NAMED(project_up, KERNELS)
#define W0 UP
#include "cuda/kernels/moe_reference.cu"
constexpr auto kernel = project;
#undef project
#undef W0
#undef COLS
} // namespace of_up
namespace of_down
{
constexpr int SPLIT = DOWN_SPLIT;
#define project NAMED(project_down, KERNELS)
#define W0 DOWN
#define COLS N_FF
#include "cuda/kernels/moe_reference.cu"
constexpr auto kernel = project;
#undef project
#undef W0
#undef COLS
} // namespace of_down

struct kind {
    static constexpr struct mote_activation activation = {(enum mote_activation_kind)ACTIVATION, LIMIT};
    static constexpr int rounding = ROUNDING;
    static constexpr int d_model = D_MODEL, n_ff = N_FF, ff_pad = FF_PAD, up_split = SPLIT,
                         down_split = DOWN_SPLIT;
    static constexpr unsigned up_threads = UP_THREADS, one_threads = DOWN_WARPS * 32,
                              many_threads = DOWN_WARPS_MANY * 32;
    static constexpr size_t bytes[3] = {Gate::BYTES, Up::BYTES, Down::BYTES};
    static constexpr auto up_many = gate_up_many;
    static constexpr auto down_rows_many = down_many;
    static constexpr auto gate = of_gate::kernel, up = of_up::kernel, down = of_down::kernel;
    static void forget_parts()
    {
        for (float &v : part) v = NAN;
    }

    /* Both stages of one row. */
    static void one(const u64 *slot, int experts, const int *ids, const float *mix, int squash,
                    const ChoiceJob &choice, const mote_step_act &x, int used, const mote_step_act &h,
                    int base, const float *residual, float *y, mote_step_fault *fault)
    {
        launch(ff_pad / 32, (unsigned)used, up_threads,
               [&] { gate_up_one(slot, experts, ids, x, used, used, h, base, fault, choice); });
        forget_parts();
        launch((d_model + 15) / 16, 1, one_threads, [&] {
            down_one(slot, experts, ids, mix, squash, h, 1, used, base, residual, y, d_model, fault, choice);
        });
    }
#if N_EXPERT
    static constexpr int n_expert = N_EXPERT, n_used = N_USED;
    static void routed(const float *logits, const float *bias, float scale, int *ids, float *weights,
                       int layer, mote_step_fault *fault)
    {
        launch(1, 1, 32, [&] { route(logits, bias, scale, ids, weights, layer, fault); });
    }
#endif
};
} // namespace KERNELS

#undef gate_up_one
#undef gate_up_many
#undef down_one
#undef down_many
#undef route
#undef NAMED
#undef NAMED_AS
#undef KERNELS
#undef GATE
#undef UP
#undef DOWN
#undef D_MODEL
#undef N_FF
#undef ACTIVATION
#undef LIMIT
#undef ROUNDING
#undef N_EXPERT
#undef N_USED
#undef SCORE
#undef N_GROUP
#undef N_GROUP_USED
#undef RENORMALISE
