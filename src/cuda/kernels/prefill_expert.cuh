// prefill_expert.cuh: what the two products of an expert block read besides their operands: the work list.
#ifndef PREFILL_EXPERT_CUH
#define PREFILL_EXPERT_CUH
#include "common.cuh"

// Pairs (row of the step, one of its experts) in the order of experts (prefill_step.cu). A piece is up to WIDTH pairs of
// one expert; the grid has room for the most pieces there can be, and blocks beyond the list end at once.
// A shared expert has no list: its pairs are the rows, in order.
struct Pieces {
    const u64 *slot;    // [n_expert][3] addresses of gate, up, down
    const int4 *piece;  // {expert, first pair, pairs, 0}, or null
    const int *n_piece;
    const int *row_of;  // [n_pair] row of a pair, or null
    int n_pair;
};

MOTE_FN int4 piece_of(const Pieces &list, int at, int width)
{
    if (!list.piece) return make_int4(0, at * width, min(width, list.n_pair - at * width), 0);
    return at < *list.n_piece ? list.piece[at] : make_int4(0, 0, 0, 0);
}

#endif
