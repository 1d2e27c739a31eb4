/* mx_small_kernels.h: mx_small.cu in a namespace: included once for each block, with KERNELS (its name), PLANES, D_MODEL, N_FF,
 * ACTIVATION and LIMIT. */
#define NAMED_AS(a, b) a##_##b
#define NAMED(a, b) NAMED_AS(a, b)
#define mx_small NAMED(mx_small, KERNELS)

namespace KERNELS
{
#include "cuda/kernels/mx_small.cu"

struct kind {
    static constexpr struct mote_activation activation = {(enum mote_activation_kind)ACTIVATION, LIMIT};
    static constexpr int d_model = D_MODEL, n_ff = N_FF, block = BLOCK, planes = PLANES,
                         first = GATED ? 0 : 1, width = MOST;
    static constexpr size_t bytes_up = Tile<W0, D_MODEL>::BYTES,
                            bytes_down = Tile<W0, N_FF>::BYTES; /* of a record */
    using job = MxSmall;
    static constexpr auto kernel = mx_small;
};
} // namespace KERNELS

#undef mx_small
#undef NAMED
#undef NAMED_AS
#undef KERNELS
#undef PLANES
#undef D_MODEL
#undef N_FF
#undef ACTIVATION
#undef LIMIT
