/* decode_moe.h: moe_decode.cu and moe_reference.cu for one set of kinds, in a namespace: included once a set, with KERNELS
 * (its name), GATE, UP, DOWN, D_MODEL, N_FF, ACTIVATION and LIMIT. The struct `kind` is what a test needs of it.
 */
#define NAMED_AS(a, b) a##_##b
#define NAMED(a, b) NAMED_AS(a, b)
#define gate_up_one NAMED(gate_up_one, KERNELS)
#define gate_up_many NAMED(gate_up_many, KERNELS)
#define down_one NAMED(down_one, KERNELS)
#define down_many NAMED(down_many, KERNELS)

namespace KERNELS
{
static thread_local float part[MOST_PARTS]; /* the dynamic part of shared memory, as the text calls it */

#include "cuda/kernels/moe_decode.cu"

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
    static constexpr int d_model = D_MODEL, n_ff = N_FF, ff_pad = FF_PAD, up_split = SPLIT,
                         down_split = DOWN_SPLIT;
    static constexpr unsigned up_threads = UP_THREADS, one_threads = DOWN_WARPS * 32,
                              many_threads = DOWN_WARPS_MANY * 32;
    static constexpr size_t bytes[3] = {Gate::BYTES, Up::BYTES, Down::BYTES};
    static constexpr auto up_one = gate_up_one;
    static constexpr auto up_many = gate_up_many;
    static constexpr auto down_one_row = down_one;
    static constexpr auto down_rows_many = down_many;
    static constexpr auto gate = of_gate::kernel, up = of_up::kernel, down = of_down::kernel;
    static float *parts() { return part; }
};
} // namespace KERNELS

#undef gate_up_one
#undef gate_up_many
#undef down_one
#undef down_many
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
