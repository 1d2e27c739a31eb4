// pair_sort.cuh: pairs (row of a step, one of its experts) in the order of experts, with a list of pieces: what every expert
// block of many rows begins with.
//
// One idea: nothing here depends on the order in which threads run: a pair's place is counted, not raced for.
#ifndef PAIR_SORT_CUH
#define PAIR_SORT_CUH
#include "common.cuh"
#include "step.h"

extern __shared__ __align__(1024) u8 shared[];

struct Sort {
    const int *ids; // [n_pair]: of pair row * n_used + s
    int *row_of;    // [place]: row of the pair that stands there
    int *place;     // [pair]: where it stands: in the order of experts, those of one in the order of pairs
    int4 *piece;    // [n_piece]: {expert, first place, pairs, wide[expert]}: up to `width` neighbours of one expert, about
                    // as many in each of its pieces
    int *n_piece;
    const int *wide; // [n_expert], or null: zeros (mx_narrow.cu)
    int *rest, *n_rest; // [n_rest]: pieces with wide; or null
    const float *weights; // [n_pair], of pairs
    float *weight_of;     // [place], or null
    mote_step_fault *fault; // of an id that is none
    int n_pair, n_used, n_expert, width;
    int n_warp; // of a block that take part: as many as have room for their counts
    int n_part; // blocks that share the pairs: each counts all of them for itself and places its own
};

MOTE_FN int expert_of(const int *ids, int pair, int n_expert)
{
    return min((u32)ids[pair], (u32)n_expert - 1); // no memory but our own, whatever the id
}
MOTE_FN void check_expert(const Sort &job, int pair)
{
    int id = job.ids[pair];
    if ((u32)id >= (u32)job.n_expert && atomicCAS(&job.fault->code, 0, MOTE_STEP_EXPERT) == 0)
        job.fault->row = pair, job.fault->value = id;
}

// The lanes whose number (of so many bits) is this lane's. As fast as its bits; MATCH.ANY takes turns among all warps.
MOTE_FN u32 lanes_of(u32 number, int bits)
{
    u32 lanes = ~0u;
    for (int b = 0; b < bits; b++) {
        u32 one = __ballot_sync(~0u, number >> b & 1);
        lanes &= number >> b & 1 ? one : ~one;
    }
    return lanes;
}

// The experts of a thread's next pairs, n_expert past the end: all under way at once.
constexpr int AT_ONCE = 8;
MOTE_FN void take_experts(const Sort &job, int first, int step, int end, int e[AT_ONCE])
{
    MOTE_UNROLL
    for (int j = 0; j < AT_ONCE; j++) {
        int i = first + step * j;
        e[j] = i < end ? expert_of(job.ids, i, job.n_expert) : job.n_expert;
    }
}

// Of an expert's n, but for the last piece's; the pieces are as few as can be.
MOTE_FN int piece_pairs(int n, int width)
{
    int pieces = (n + width - 1) / width;
    return (n + pieces - 1) / pieces;
}
MOTE_FN int whole_warps(int n, int parts) { return ((n + parts - 1) / parts + 31) / 32 * 32; }

// Few pairs: every place is counted by comparing with all others, each pair by as many neighbouring lanes as there are threads
// for. One block. Shared memory: experts of the pairs, and places of those that begin a piece, or one with wide.
constexpr int FEW_PAIRS = 128;
MOTE_FN void sort_few_pairs(const Sort &job)
{
    int *expert = (int *)shared, *start = expert + FEW_PAIRS, *wide_start = start + FEW_PAIRS, n = job.n_pair, share = 1;
    while (share < 32 && 2 * share * n <= (int)blockDim.x) share *= 2;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        check_expert(job, i);
        expert[i] = expert_of(job.ids, i, job.n_expert);
    }
    __syncthreads();
    int pair = threadIdx.x / share, own = pair < n ? expert[pair] : -1, less = 0, before = 0, same = 0;
    auto sum = [&](int v) {
        for (int i = 1; i < share; i *= 2) v += __shfl_xor_sync(~0u, v, i);
        return v;
    };
    for (int j = threadIdx.x % share; j < n; j += share) {
        int e = expert[j];
        less += e < own, same += e == own, before += e == own && j < pair;
    }
    less = sum(less), same = sum(same), before = sum(before);
    int each = piece_pairs(max(same, 1), job.width), place = less + before, begins = before % each == 0;
    int wide = pair < n && job.wide ? job.wide[own] : 0;
    bool writes = pair < n && threadIdx.x % share == 0;
    if (writes) {
        job.place[pair] = place;
        job.row_of[place] = pair / job.n_used;
        if (job.weight_of) job.weight_of[place] = job.weights[pair];
        start[pair] = begins ? place : n;
        wide_start[pair] = begins && wide ? place : n;
    }
    __syncthreads();
    auto count = [&](const int *of, int &all) { // what begins before, and all
        int n_before = 0;
        all = 0;
        for (int j = threadIdx.x % share; j < n; j += share) n_before += of[j] < place, all += of[j] < n;
        all = sum(all);
        return sum(n_before);
    };
    int all, piece = count(start, all);
    if (writes && begins) job.piece[piece] = make_int4(own, place, min(each, same - before), wide);
    if (threadIdx.x == 0) *job.n_piece = all;
    if (!job.rest) return;
    int at = count(wide_start, all);
    if (writes && begins && wide) job.rest[at] = piece;
    if (threadIdx.x == 0) *job.n_rest = all;
}

// What the threads before this one have, of v; all: what all have. sums: [32] of shared memory. A barrier stands between its use and
// the caller's next.
MOTE_FN int sum_before(int v, int *sums, int &all)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warp = blockDim.x / 32, sum = v;
    MOTE_UNROLL
    for (int i = 1; i < 32; i *= 2) {
        int up = __shfl_up_sync(~0u, sum, i);
        if (lane >= i) sum += up;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    int of_warp = lane < n_warp ? sums[lane] : 0;
    all = __reduce_add_sync(~0u, of_warp);
    return __reduce_add_sync(~0u, lane < warp ? of_warp : 0) + sum - v;
}

// Part `part` of the pairs, by one block of a thread an expert or more; every warp owns a run of them. Shared memory: [n_warp][n_expert]
// counts, [n_expert] pairs of the parts before, [2][n_expert + 1] starts, [3][32] sums.
MOTE_FN void sort_pairs(const Sort &job, int part)
{
    if (job.n_pair <= FEW_PAIRS) return sort_few_pairs(job);
    int *counts = (int *)shared;
    int n_expert = job.n_expert, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int own = whole_warps(job.n_pair, job.n_part), part_begin = min(part * own, job.n_pair), part_end = min(part_begin + own, job.n_pair);
    int n_warp = min(job.n_warp, own / 32), run = whole_warps(own, n_warp), begin = min(part_begin + warp * run, part_end),
        end = min(begin + run, part_end);
    int *count = counts + warp * n_expert, *before = counts + n_warp * n_expert, *start = before + n_expert,
        *first_piece = start + n_expert + 1, *sums = first_piece + n_expert + 1;
    if (warp >= n_warp) end = begin; // only helps where nobody owns anything
    for (int i = threadIdx.x; i < (n_warp + 2) * n_expert; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    int e[AT_ONCE], bits = 32 - __clz(n_expert);
    for (int base = 0; base < job.n_pair && job.n_part > 1; base += AT_ONCE * (int)blockDim.x) { // the other parts' pairs
        take_experts(job, base + threadIdx.x, blockDim.x, job.n_pair, e);
        MOTE_UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
            int i = base + threadIdx.x + j * blockDim.x;
            if (e[j] == n_expert || (i >= part_begin && i < part_end)) continue;
            atomicAdd(start + e[j], 1);
            if (i < part_begin) atomicAdd(before + e[j], 1);
        }
    }
    for (int base = begin; base < end; base += AT_ONCE * 32) {
        take_experts(job, base + lane, 32, end, e);
        MOTE_UNROLL
        for (int j = 0; j < AT_ONCE; j++)
            if (e[j] < n_expert) atomicAdd(count + e[j], 1);
    }
    __syncthreads();
    int mine = threadIdx.x, pairs = 0, all_pairs, all_pieces; // an expert, what it has
    if (mine < n_expert) { // counts become where a warp's pairs start
        int sum = before[mine];
        for (int w = 0; w < n_warp; w++) {
            int n = counts[w * n_expert + mine];
            counts[w * n_expert + mine] = sum;
            sum += n, pairs += n;
        }
        pairs += start[mine];
    }
    int n_piece = (pairs + job.width - 1) / job.width;
    int first = sum_before(pairs, sums, all_pairs), piece = sum_before(n_piece, sums + 32, all_pieces);
    if (job.rest && part == 0) {
        int n_wide = mine < n_expert && job.wide[mine] ? n_piece : 0, all_wide, at = sum_before(n_wide, sums + 64, all_wide);
        for (int i = 0; i < n_wide; i++) job.rest[at + i] = piece + i;
        if (threadIdx.x == 0) *job.n_rest = all_wide;
    }
    if (mine < n_expert) start[mine] = first, first_piece[mine] = piece;
    if (threadIdx.x == 0) {
        start[n_expert] = all_pairs, first_piece[n_expert] = all_pieces;
        if (part == 0) *job.n_piece = all_pieces;
    }
    __syncthreads();
    for (int base = begin; base < end; base += AT_ONCE * 32) {
        take_experts(job, base + lane, 32, end, e);
        MOTE_UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
            int i = base + 32 * j + lane;
            u32 equals = lanes_of((u32)e[j], bits), before = equals & ((1u << lane) - 1);
            int to = e[j] < n_expert ? start[e[j]] + count[e[j]] + __popc(before) : 0;
            __syncwarp();
            if (e[j] < n_expert) {
                if (e[j] == n_expert - 1) check_expert(job, i);
                job.place[i] = to;
                job.row_of[to] = i / job.n_used;
                if (job.weight_of) job.weight_of[to] = job.weights[i];
                if (!before) count[e[j]] += __popc(equals);
            }
            __syncwarp();
        }
    }
    for (int p = part * blockDim.x + threadIdx.x; p < first_piece[n_expert]; p += job.n_part * blockDim.x) {
        int low = 0, high = n_expert - 1; // the last expert whose pieces start at p or before
        while (low < high) {
            int middle = (low + high + 1) / 2;
            if (first_piece[middle] <= p) low = middle;
            else high = middle - 1;
        }
        int n = start[low + 1] - start[low], each = piece_pairs(n, job.width), at = (p - first_piece[low]) * each;
        job.piece[p] = make_int4(low, start[low] + at, min(each, n - at), job.wide ? job.wide[low] : 0);
    }
}

#endif
