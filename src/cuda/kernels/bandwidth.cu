// bandwidth.cu: how fast the device reads its memory, plainly: the figure that floors are made of.
// A grid of 2 x n_sm blocks of 512 threads; every thread has eight 16-byte loads in flight.

__device__ __forceinline__ uint4 load(const uint4 *from)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

// from[n], n a multiple of 8 times the grid's threads, all zero: nothing is written, but the compiler cannot know.
extern "C" __global__ void __launch_bounds__(512)
    read_memory(const uint4 *from, unsigned long long n, unsigned *seen)
{
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    unsigned any = 0;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = load(from + i + k * stride);
#pragma unroll
        for (int k = 0; k < 8; k++) any |= v[k].x | v[k].y | v[k].z | v[k].w;
    }
    if (any) *seen = any;
}
