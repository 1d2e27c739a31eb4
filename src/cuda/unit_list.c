/* unit_list.c: the table of representative units. See unit_list.h.
 *
 * The first row of a text is what tests compile for every architecture that it is for; the others they compile for
 * sm_90a. Between them they have every kind of codes and of scales.
 */
#include "cuda/unit_list.h"

#include <string.h>

#include "cuda/layout.h"

/* The template arguments of Tile<> before the columns. */
#define TILE_TEXT(code, zero, table, sub, item, min, exponent) \
    "MOTE_CODE_" #code "," #zero ",MOTE_TABLE_" #table "," sub ",MOTE_ITEM_" #item "," #min "," #exponent ",0"
#define TILE_Q4_K TILE_TEXT(C4, 0, NONE, "32", U8, 1, 0)
#define TILE_Q6_K TILE_TEXT(C6, 32, NONE, "16", S8, 0, 0)
#define TILE_Q2_K TILE_TEXT(C2, 0, NONE, "16", NIBBLES, 1, 0)
#define TILE_Q3_K TILE_TEXT(C3, 4, NONE, "16", S8, 0, 0)
#define TILE_Q8_0 TILE_TEXT(C8, 0, NONE, "32", F16, 0, 0)
#define TILE_IQ2_XXS TILE_TEXT(IQ2XXS, 0, NONE, "32", INSIDE, 0, -3)
#define TILE_IQ3_XXS TILE_TEXT(IQ3XXS, 0, NONE, "32", INSIDE, 0, -2)
#define TILE_IQ4_XS TILE_TEXT(LUT4, 0, IQ4NL, "32", S8, 0, 0)
#define TILE_TQ1_0 TILE_TEXT(T5, 1, NONE, "256", F16, 0, 0) /* compact; otherwise it is TQ2_0's */
#define TILE_TQ2_0 TILE_TEXT(C2, 1, NONE, "256", F16, 0, 0)
#define TILE_Q1_0 TILE_TEXT(C1, 1, NONE, "128", F16, 0, 0)
#define TILE_MXFP4 TILE_TEXT(E2M1, 0, NONE, "32", E8M0, 0, -1)
#define TILE_NVFP4 "MOTE_CODE_E2M1,0,MOTE_TABLE_NONE,16,MOTE_ITEM_UE4M3,0,-1,1" /* with a tensor scale */
#define TILE_AFFINE4 TILE_TEXT(C4, 0, NONE, "64", BF16, 1, 0)

#define LINEAR(name)                                                     \
    {                                                                    \
        {"linear.cu", "W0=" TILE_##name " COLS=2048 WARPS=16"}, #name, 1 \
    }
#define SHAPE_30B " D_MODEL=2048 N_FF=768"
#define ROUTING_30B "N_EXPERT=128 N_USED=8 SCORE=0 N_GROUP=1 N_GROUP_USED=1 RENORMALISE=1"
#define ROUTING_512 "N_EXPERT=512 N_USED=10 SCORE=0 N_GROUP=1 N_GROUP_USED=1 RENORMALISE=1"
#define ROUTING_GROUPS "N_EXPERT=256 N_USED=8 SCORE=2 N_GROUP=8 N_GROUP_USED=4 RENORMALISE=1"
/* By enum mote_activation_kind. */
#define SWIGLU " ACTIVATION=0 LIMIT=0.0f"
#define SWIGLU_OAI " ACTIVATION=3 LIMIT=7.0f"
#define RELU2 " ACTIVATION=4 LIMIT=0.0f"
#define MOE_OF(name, gate, up, down, activation, routing)                                                 \
    {                                                                                                     \
        {"moe_decode.cu", "GATE=" gate " UP=" up " DOWN=" down SHAPE_30B activation " " routing}, name, 1 \
    }
#define MOE(name, gate, up, down, activation) MOE_OF(name, gate, up, down, activation, ROUTING_30B)
/* wgmma, and barriers and small floats of that generation. */
#define MX_TEXT "W0=" TILE_MXFP4 " MX_SHARED=232448 "
#define MX(text, constants, name)            \
    {                                        \
        {text, constants}, name, 1, "sm_90a" \
    }

const struct mote_cuda_unit_row mote_cuda_unit_list[] = {
    {{"bandwidth.cu", ""}, "read", 1},
    {{"rows.cu", "ROWS=1"}, "all", 1},
    {{"route.cu", ROUTING_30B}, "128/8", 1},
    {{"route.cu", ROUTING_GROUPS}, "256/8-groups", 1},
    {{"router.cu", ROUTING_30B " ITEM=2 D_MODEL=2048 WARPS=16"}, "128/8", 1},
    {{"shortlist.cu", "VOCAB=151936"}, "151936", 1},
    {{"shortlist.cu", "VOCAB=262144"}, "262144", 1},
    {{"plain.cu", "ITEM=1"}, "bf16", 1},
    {{"plain.cu", "ITEM=0"}, "f16", 1},
    {{"plain.cu", "ITEM=2"}, "f32", 1},
    {{"attend.cu", "HEAD_DIM=128 N_HEAD=32 N_HEAD_KV=4 N_ROT=128"}, "128/32/4", 1},
    {{"attend.cu", "HEAD_DIM=64 N_HEAD=16 N_HEAD_KV=16 N_ROT=64"}, "64/16/16", 1},

    {{"attend_prefill.cu", "HEAD_DIM=128 N_HEAD=32 N_HEAD_KV=4 N_ROT=128 SHARED=101376"}, "128/32/4", 1},
    {{"attend_prefill.cu", "HEAD_DIM=128 N_HEAD=32 N_HEAD_KV=4 N_ROT=128 SHARED=232448"},
     "128/32/4-hopper",
     1},

    LINEAR(Q4_K),
    LINEAR(Q6_K),
    LINEAR(Q3_K),
    LINEAR(IQ2_XXS),
    LINEAR(IQ3_XXS),
    LINEAR(TQ1_0),
    LINEAR(TQ2_0),
    LINEAR(MXFP4),
    LINEAR(AFFINE4),
    LINEAR(NVFP4),
    {{"linear.cu", "W0=" TILE_Q4_K " COLS=5632 WARPS=8"}, "Q4_K-wide", 1},

    MOE("Q4_K/Q6_K", TILE_Q4_K, TILE_Q4_K, TILE_Q6_K, SWIGLU),
    MOE("Q2_K/Q3_K", TILE_Q2_K, TILE_Q2_K, TILE_Q3_K, SWIGLU),
    MOE("IQ2_XXS/IQ3_XXS", TILE_IQ2_XXS, TILE_IQ2_XXS, TILE_IQ3_XXS, SWIGLU),
    MOE("TQ1_0", TILE_TQ1_0, TILE_TQ1_0, TILE_TQ1_0, SWIGLU),
    MOE("TQ2_0", TILE_TQ2_0, TILE_TQ2_0, TILE_TQ2_0, SWIGLU),
    MOE("MXFP4", TILE_MXFP4, TILE_MXFP4, TILE_MXFP4, SWIGLU),
    MOE("NVFP4/AFFINE4", TILE_NVFP4, TILE_NVFP4, TILE_AFFINE4, SWIGLU),
    MOE("MXFP4-oai", TILE_MXFP4, TILE_MXFP4, TILE_MXFP4, SWIGLU_OAI),
    MOE("Q4_K/Q6_K-relu2", TILE_Q4_K, TILE_Q4_K, TILE_Q6_K, RELU2),
    MOE_OF("IQ2_XXS-512/10", TILE_IQ2_XXS, TILE_IQ2_XXS, TILE_IQ2_XXS, SWIGLU, ROUTING_512),
    MOE_OF("Q4_K/Q6_K-256/8-groups", TILE_Q4_K, TILE_Q4_K, TILE_Q6_K, SWIGLU, ROUTING_GROUPS),

    {{"moe_reference.cu", "W0=" TILE_Q4_K " COLS=2048 SPLIT=4"}, "Q4_K", 0},
    {{"moe_reference.cu", "W0=" TILE_IQ2_XXS " COLS=768 SPLIT=2"}, "IQ2_XXS", 0},

    {{"prefill_step.cu", ""}, "all", 1},
    {{"prefill_linear.cu", "W0=" TILE_Q4_K " COLS=2048 X_BF16=0"}, "Q4_K", 1},
    {{"prefill_linear.cu", "W0=" TILE_Q6_K " COLS=2048 X_BF16=0"}, "Q6_K", 1},
    {{"prefill_linear.cu", "W0=" TILE_Q8_0 " COLS=2048 X_BF16=1"}, "Q8_0-bf16", 1},
    {{"prefill_linear.cu", "W0=" TILE_TQ2_0 " COLS=2048 X_BF16=0"}, "TQ2_0", 1},
    {{"prefill_gate_up.cu", "W0=" TILE_Q4_K " W1=" TILE_Q4_K " COLS=2048 X_BF16=0 H_TYPE=0" SWIGLU},
     "Q4_K",
     1},
    {{"prefill_gate_up.cu", "W0=" TILE_IQ2_XXS " W1=" TILE_IQ2_XXS " COLS=2048 X_BF16=0 H_TYPE=1" SWIGLU},
     "IQ2_XXS",
     1},
    {{"prefill_gate_up.cu", "W0=" TILE_MXFP4 " W1=" TILE_MXFP4 " COLS=2048 X_BF16=1 H_TYPE=1" SWIGLU},
     "MXFP4-bf16",
     1},
    {{"prefill_gate_up.cu", "W0=" TILE_MXFP4 " W1=" TILE_MXFP4 " COLS=2048 X_BF16=1 H_TYPE=2" SWIGLU},
     "MXFP4-mxfp4",
     1},
    {{"prefill_gate_up.cu", "W0=" TILE_NVFP4 " W1=" TILE_NVFP4 " COLS=2048 X_BF16=0 H_TYPE=0" SWIGLU},
     "NVFP4",
     1},
    {{"prefill_gate_up.cu", "W0=" TILE_Q4_K " W1=" TILE_Q4_K " COLS=2048 X_BF16=0 H_TYPE=0" RELU2},
     "Q4_K-relu2",
     1},
    {{"prefill_down.cu", "W0=" TILE_Q6_K " COLS=768 X_BF16=0"}, "Q6_K", 1},
    {{"prefill_down.cu", "W0=" TILE_IQ3_XXS " COLS=768 X_BF16=0"}, "IQ3_XXS", 1},
    {{"prefill_down.cu", "W0=" TILE_TQ1_0 " COLS=768 X_BF16=0"}, "TQ1_0", 1},
    {{"prefill_down.cu", "W0=" TILE_IQ4_XS " COLS=768 X_BF16=0"}, "IQ4_XS", 1},

    {{"prefill_int8_linear.cu", "W0=" TILE_TQ2_0 " COLS=2048 X_GROUP=256"}, "TQ2_0", 1},
    {{"prefill_int8_linear.cu", "W0=" TILE_TQ1_0 " COLS=2048 X_GROUP=256"}, "TQ1_0", 1},
    {{"prefill_int8_gate_up.cu", "W0=" TILE_TQ2_0 " W1=" TILE_TQ2_0 " COLS=2048 X_GROUP=256" SWIGLU},
     "TQ2_0",
     1},
    {{"prefill_int8_gate_up.cu", "W0=" TILE_TQ1_0 " W1=" TILE_TQ1_0 " COLS=2048 X_GROUP=256" SWIGLU},
     "TQ1_0",
     1},
    {{"prefill_int8_gate_up.cu", "W0=" TILE_Q1_0 " W1=" TILE_Q1_0 " COLS=2048 X_GROUP=128" RELU2},
     "Q1_0-relu2",
     1},
    {{"prefill_int8_down.cu", "W0=" TILE_TQ2_0 " COLS=768 X_GROUP=128"}, "TQ2_0", 1},
    {{"prefill_int8_down.cu", "W0=" TILE_Q1_0 " COLS=768 X_GROUP=128"}, "Q1_0", 1},

    MX("mx_step.cu", "", "all"),
    MX("mx_small.cu", MX_TEXT "D_MODEL=7168 N_FF=512 PLANES=1" SWIGLU, "swiglu"),
    MX("mx_small.cu", MX_TEXT "D_MODEL=2880 N_FF=2880 PLANES=1" RELU2, "relu2"),
    MX("mx_small.cu", MX_TEXT "D_MODEL=2880 N_FF=2880 PLANES=2" SWIGLU_OAI, "oai-planes"),
    MX("mx_narrow.cu", MX_TEXT "D_MODEL=7168 N_FF=512 PLANES=1" SWIGLU, "swiglu"),
    MX("mx_narrow.cu", MX_TEXT "D_MODEL=2880 N_FF=2880 PLANES=2" SWIGLU_OAI, "oai-planes"),
    MX("mx_wide.cu", MX_TEXT "D_MODEL=7168 N_FF=512 FP8=1 WIDTH=208" SWIGLU, "fp8"),
    MX("mx_wide.cu", MX_TEXT "D_MODEL=2880 N_FF=2880 FP8=0 WIDTH=256" SWIGLU_OAI, "bf16"),
    {{NULL, NULL}, NULL, 0},
};

int mote_cuda_unit_is_for(const struct mote_cuda_unit_row *row, const char *arch)
{
    return !row->arch || !strcmp(row->arch, arch);
}
