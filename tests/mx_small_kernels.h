/* mx_small_kernels.h: mx_small.cu in a namespace: included once for each block, with KERNELS (its name), D_MODEL, N_FF, ACTIVATION
 * and LIMIT. */
#define NAMED_AS(a, b) a##_##b
#define NAMED(a, b) NAMED_AS(a, b)
#define mx_small_gate_up NAMED(mx_small_gate_up, KERNELS)
#define mx_small_down NAMED(mx_small_down, KERNELS)

namespace KERNELS
{
#include "cuda/kernels/mx_small.cu"

struct kind {
    static constexpr struct mote_activation activation = {(enum mote_activation_kind)ACTIVATION, LIMIT};
    static constexpr int d_model = D_MODEL, n_ff = N_FF, block = BLOCK, first = GATED ? 0 : 1,
                         up_blocks = UP_BLOCKS, up_steps = STEPS_UP;
    static constexpr size_t bytes_up = Tile<W0, D_MODEL>::BYTES,
                            bytes_down = Tile<W0, N_FF>::BYTES; /* of a record */
    using up_job = MxGateUp;
    using down_job = MxDown;
    static constexpr auto gate_up = mx_small_gate_up;
    static constexpr auto down = mx_small_down;
};
} // namespace KERNELS

#undef mx_small_gate_up
#undef mx_small_down
#undef NAMED
#undef NAMED_AS
#undef KERNELS
#undef D_MODEL
#undef N_FF
#undef ACTIVATION
#undef LIMIT
