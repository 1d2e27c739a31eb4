// prefill_linear.cuh: where the products of steps of many rows go: up to four matrices of one kind, side by side in a grid.
#ifndef PREFILL_LINEAR_CUH
#define PREFILL_LINEAR_CUH
#include "common.cuh"

struct LinearOut {
    const u8 *w;           // tiles
    const float *bias;     // [n_row] or null
    const float *residual; // like y, or null; may be y
    float *y;              // [n_token][y_stride]
    i64 y_stride;
    int n_row, first_block; // where it starts in the grid

    MOTE_FN void put(float v, int token, int row) const
    {
        i64 at = token * y_stride + row;
        y[at] = residual ? residual[at] + v : v;
    }
};

struct LinearOuts {
    LinearOut out[4]; // of one kind
    int n_out, n_token;

    MOTE_FN const LinearOut &of_block() const
    {
        int which = 0;
        while (which + 1 < n_out && (int)blockIdx.x >= out[which + 1].first_block) which++;
        return out[which];
    }
};

#endif
