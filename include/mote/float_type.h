/* mote/float_type.h: the floating-point types that inputs, results and planes of scales may have. Numbers are pinned. */
#ifndef MOTE_FLOAT_TYPE_H
#define MOTE_FLOAT_TYPE_H

enum mote_float_type {
    MOTE_F32 = 0,
    MOTE_BF16 = 1,
    MOTE_F16 = 2, /* IEEE half */
    MOTE_FLOAT_TYPE_COUNT
};

#endif
