/* decode_linear.h: linear.cu for one kind of weights, in a namespace: included once a kind, with KERNELS (its name), W0, COLS
 * and WARPS. The struct `kind` is what a test needs of it.
 */
#define NAMED_AS(a, b) a##_##b
#define NAMED(a, b) NAMED_AS(a, b)
#define linear_one NAMED(linear_one, KERNELS)
#define linear_four NAMED(linear_four, KERNELS)
#define linear_sixteen NAMED(linear_sixteen, KERNELS)
#define linear_normed NAMED(linear_normed, KERNELS)
#define embed NAMED(embed, KERNELS)

namespace KERNELS
{
#include "cuda/kernels/linear.cu"

struct kind {
    using outs = LinearOuts;
    using normed_row = NormedRow;
    static constexpr int n_col = COLS, warps = WARPS;
    static constexpr size_t bytes = Tile<W0, COLS>::BYTES;
    static constexpr auto one = linear_one, four = linear_four, sixteen = linear_sixteen;
    static constexpr auto normed = linear_normed;
    static constexpr auto rows = embed;
};
} // namespace KERNELS

#undef linear_one
#undef linear_four
#undef linear_sixteen
#undef linear_normed
#undef embed
#undef NAMED
#undef NAMED_AS
#undef KERNELS
#undef W0
#undef COLS
#undef WARPS
