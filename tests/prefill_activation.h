/* prefill_activation.h: prefill_gate_up.cu with another activation, in a namespace: included once for each, with KERNELS (its
 * name), ACTIVATION and LIMIT. Without a gate both kinds of weights are up's, W1.
 */
#define NAMED_AS(a, b) a##_##b
#define NAMED(a, b) NAMED_AS(a, b)
#define prefill_gate_up_64 NAMED(prefill_gate_up_64, KERNELS)
#define prefill_gate_up_128 NAMED(prefill_gate_up_128, KERNELS)
#pragma push_macro("W0")
#ifdef WITHOUT_GATE
#undef W0
#define W0 W1
#endif

namespace KERNELS
{
#include "cuda/kernels/prefill_gate_up.cu"

struct kind {
    static constexpr struct mote_activation activation = {(enum mote_activation_kind)ACTIVATION, LIMIT};
    using job = GateUp;
#if PREFILL_WGMMA
    static constexpr auto kernel = prefill_gate_up_128;
#else
    static constexpr auto kernel = prefill_gate_up_64;
#endif
};
} // namespace KERNELS

#pragma pop_macro("W0")
#undef prefill_gate_up_64
#undef prefill_gate_up_128
#undef NAMED
#undef NAMED_AS
#undef KERNELS
#undef ACTIVATION
#undef LIMIT
#undef WITHOUT_GATE
