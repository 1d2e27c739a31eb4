// mx_ring.cuh: what the MXFP4 kernels of sm_90 are made of: a ring of stages in shared memory that four warps fill from
// device memory while the others multiply, piece after piece of the work list without a pause between them.
//
// Owns: barriers of stages, the count that says which stage is next, the work list. Does not own: what lies in a stage, who takes what.
// One idea: whoever fills runs ahead over the ends of pieces, so that memory is never idle while results are written.
#ifndef MX_RING_CUH
#define MX_RING_CUH
#include "common.cuh"
#include "prefill_expert.cuh"
#include "wgmma.cuh"

extern __shared__ __align__(1024) u8 shared[];

#ifdef __CUDACC__
// ---- barriers in shared memory ----

MOTE_FN void barrier_init(u32 at, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory"); }
MOTE_FN void barrier_init_seen() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
MOTE_FN void barrier_arrive(u32 at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
MOTE_FN void barrier_arrive(u32 at, int times) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(times) : "memory"); }
// An arrival, and so many bytes that bulk copies are to bring.
MOTE_FN void barrier_expect(u32 at, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory"); }
MOTE_FN void bulk_copy(u32 to, const void *from, u32 bytes, u32 barrier) // multiples of 16
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
// Until the phase of this parity is over.
MOTE_FN void barrier_wait(u32 at, u32 parity)
{
    asm volatile("{ .reg .pred p; WAIT_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE_%=; bra WAIT_%=; DONE_%=: }"
                 ::"r"(at), "r"(parity)
                 : "memory");
}
// `n` threads (whole warps) of the block meet; name: 1..15.
MOTE_FN void meet(int name, int n) { asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(n) : "memory"); }

MOTE_FN uint4 shared16(u32 at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}
MOTE_FN uint2 shared8(u32 at)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}
MOTE_FN u32 shared4(u32 at)
{
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}
MOTE_FN u32 shared2(u32 at)
{
    u16 v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}
MOTE_FN u32 shared1(u32 at)
{
    u32 v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}
MOTE_FN void put_shared16(u32 at, int x, int y, int z, int w)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
// Until other blocks have counted to n; what they wrote before is seen then.
MOTE_FN void wait_for(const int *count, int n)
{
    int v;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(count) : "memory");
    while (v < n);
}
// Added in memory, in whatever order blocks come; sums that are subnormal become zeros.
MOTE_FN void add_to(float *at, float4 v)
{
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
// Four matrices of 8 x 8 halves, transposed; lane 8 m + i has the address of row i of what becomes of matrix m.
MOTE_FN void store_transposed(u32 at, const u32 v[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}
// As stage_copy, of 4 bytes.
MOTE_FN void stage_copy4(u32 to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
// Of each thread of a warpgroup, from here on.
template <int N> MOTE_FN void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> MOTE_FN void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
#endif

// ---- the ring ----

// STAGES stages of BYTES from `base` on, their barriers at `barriers`: [STAGES] full, [STAGES] empty.
template <int STAGES, int BYTES> struct Stages {
    u32 base, barriers;
    u32 slot, parity; // of the next stage

    MOTE_FN void start(u32 stages_at, u32 barriers_at) { base = stages_at, barriers = barriers_at, slot = 0, parity = 0; }
    // By one thread, before a barrier of the block.
    MOTE_FN void init(int fillers, int readers) const
    {
        for (int i = 0; i < STAGES; i++) barrier_init(barriers + 8 * i, fillers), barrier_init(barriers + 8 * (STAGES + i), readers);
        barrier_init_seen();
    }
    MOTE_FN u32 stage() const { return base + slot * BYTES; }
    MOTE_FN u32 full() const { return barriers + 8 * slot; }
    MOTE_FN u32 empty() const { return barriers + 8 * (STAGES + slot); }
    MOTE_FN void wait_empty() const { barrier_wait(empty(), parity ^ 1); } // the first round finds them so
    MOTE_FN void wait_full() const { barrier_wait(full(), parity); }
    MOTE_FN void next(int n = 1) // n <= STAGES
    {
        slot += n;
        if (slot >= STAGES) slot -= STAGES, parity ^= 1;
    }
};

// A filler's stages whose copies (stage_copy) are under way: each is handed over when it is there, AHEAD stages later. (An arrival
// that the copies themselves make, cp.async.mbarrier.arrive, lets no later copy of the warp start before: one stage at a time.)
template <int STAGES, int AHEAD> struct Sent {
    static_assert(AHEAD < STAGES, "the stage that is waited for would have no place");
    u32 full, slot; // barrier of slot 0; of the oldest
    int n;

    MOTE_FN void start(u32 full_barriers) { full = full_barriers, slot = 0, n = 0; }
    MOTE_FN void hand_over()
    {
        stage_written();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(full + 8 * slot);
        if (++slot == STAGES) slot = 0;
    }
    // All copies of a stage have been asked for.
    MOTE_FN void add()
    {
        copy_commit();
        if (n < AHEAD) n++;
        else {
            copy_wait<AHEAD>();
            hand_over();
        }
    }
    MOTE_FN void finish()
    {
        copy_wait<0>();
        for (; n > 0; n--) hand_over();
    }
};

// ---- the work ----

// What all kernels' jobs begin with. Pieces of experts whose scales the large kernels cannot hold beside each other (piece.w) are
// the small one's.
struct MxList {
    Pieces pieces;
    const int *rest, *n_rest; // pieces with w, or null: there are none
    int n_part; // small: parts of as many pairs as it takes at once that a piece is taken in
    int one;     // 1, which the compiler does not know
};

#endif
