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
    const int *wide; // [n_expert], or null: zeros (mx_large.cu)
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
// for. One block. Shared memory: experts of the pairs, and places of those that begin a piece.
constexpr int FEW_PAIRS = 512;
MOTE_FN void sort_few_pairs(const Sort &job)
{
    int *expert = (int *)shared, *start = expert + FEW_PAIRS, n = job.n_pair, share = 1;
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
    int each = piece_pairs(max(same, 1), job.width), place = less + before, begins = before % each == 0, n_before = 0;
    if (pair < n && threadIdx.x % share == 0) {
        job.place[pair] = place;
        job.row_of[place] = pair / job.n_used;
        start[pair] = begins ? place : n;
    }
    __syncthreads();
    int all = 0;
    for (int j = threadIdx.x % share; j < n; j += share) n_before += start[j] < place, all += start[j] < n;
    n_before = sum(n_before), all = sum(all);
    if (pair < n && begins && threadIdx.x % share == 0)
        job.piece[n_before] = make_int4(own, place, min(each, same - before), job.wide ? job.wide[own] : 0);
    if (threadIdx.x == 0) *job.n_piece = all;
}

// Part `part` of the pairs, by one block; every warp owns a run of them. Shared memory: [n_warp][n_expert] counts, [n_expert]
// pairs of the parts before, [2][n_expert + 1] starts.
MOTE_FN void sort_pairs(const Sort &job, int part)
{
    if (job.n_pair <= FEW_PAIRS) return sort_few_pairs(job);
    int *counts = (int *)shared;
    int n_expert = job.n_expert, n_warp = job.n_warp, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int *count = counts + warp * n_expert, *before = counts + n_warp * n_expert, *start = before + n_expert,
        *first_piece = start + n_expert + 1;
    int own = whole_warps(job.n_pair, job.n_part), part_begin = min(part * own, job.n_pair), part_end = min(part_begin + own, job.n_pair);
    int run = whole_warps(own, n_warp), begin = min(part_begin + warp * run, part_end), end = min(begin + run, part_end);
    if (warp >= n_warp) end = begin; // only helps where nobody owns anything
    for (int i = threadIdx.x; i < (n_warp + 2) * n_expert; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    int e[AT_ONCE], bits = 32 - __clz(n_expert);
    for (int base = 0; base < job.n_pair; base += AT_ONCE * (int)blockDim.x) {
        take_experts(job, base + threadIdx.x, blockDim.x, job.n_pair, e);
        MOTE_UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
            if (e[j] == n_expert) continue;
            atomicAdd(start + e[j], 1); // the total, for now
            if (base + (int)(threadIdx.x + j * blockDim.x) < part_begin) atomicAdd(before + e[j], 1);
        }
    }
    for (int base = begin; base < end; base += AT_ONCE * 32) {
        take_experts(job, base + lane, 32, end, e);
        MOTE_UNROLL
        for (int j = 0; j < AT_ONCE; j++)
            if (e[j] < n_expert) atomicAdd(count + e[j], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < n_expert; e += blockDim.x) { // counts become where a warp's pairs start
        int sum = before[e];
        for (int w = 0; w < n_warp; w++) {
            int n = counts[w * n_expert + e];
            counts[w * n_expert + e] = sum;
            sum += n;
        }
    }
    __syncthreads();
    if (warp == 0) { // totals become starts, of pairs and of pieces
        int pairs = 0, pieces = 0;
        for (int base = 0; base < n_expert; base += 32) {
            int e = base + lane, n = e < n_expert ? start[e] : 0, p = (n + job.width - 1) / job.width;
            int n_sum = n, p_sum = p;
            MOTE_UNROLL
            for (int i = 1; i < 32; i *= 2) {
                int n_up = __shfl_up_sync(~0u, n_sum, i), p_up = __shfl_up_sync(~0u, p_sum, i);
                if (lane >= i) n_sum += n_up, p_sum += p_up;
            }
            if (e < n_expert) start[e] = pairs + n_sum - n, first_piece[e] = pieces + p_sum - p;
            pairs += __shfl_sync(~0u, n_sum, 31), pieces += __shfl_sync(~0u, p_sum, 31);
        }
        if (lane == 0) {
            start[n_expert] = pairs, first_piece[n_expert] = pieces;
            if (part == 0) *job.n_piece = pieces;
        }
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
