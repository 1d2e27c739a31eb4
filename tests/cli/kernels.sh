#!/bin/sh
# mote kernels -m: what is compiled ahead for a model is all that a run of it asks for (a driver without a device, which
# takes everything and computes nothing, stands in for one).
. "$(dirname "$0")/lib.inc"
fake=$(dirname "$mote")/tests/libcuda_fake.so
export MOTE_CACHE="$work/cache"
"$mote" info --quick >out 2>&1
grep -q "NVRTC    CUDA" out || { echo "NVRTC is not installed"; exit 77; }
expect_code 0 "$mote" kernels -m "$model" --arch sm_90a
expect out "moe_decode.cu" "gate_up_one" "attend" "router" "shortlist"
ls "$MOTE_CACHE/kernels" >before
MOTE_LIBCUDA="$fake" expect_code 0 "$mote" run -D cuda -m "$model" -n 1 -p a
ls "$MOTE_CACHE/kernels" >after
[ "$(wc -l <before)" -gt 5 ]
same before after
# Activations in MXFP4 are other kernels.
expect_code 0 "$mote" quantize "$model" mxfp4.gguf --type q8_0 --expert-type mxfp4
expect_code 0 "$mote" kernels -m mxfp4.gguf --arch sm_90a
ls "$MOTE_CACHE/kernels" >before
expect_code 0 "$mote" kernels -m mxfp4.gguf --arch sm_90a --act mxfp4
ls "$MOTE_CACHE/kernels" >after
cmp -s before after && { echo "no other kernels with --act mxfp4"; exit 1; }
MOTE_LIBCUDA="$fake" expect_code 0 "$mote" run -D cuda -m mxfp4.gguf -n 1 -p a --act mxfp4
ls "$MOTE_CACHE/kernels" >before
same before after
expect_code 2 "$mote" kernels -m "$model" --arch sm_90a --act int3
expect err "activation type"
expect_code 2 "$mote" kernels -m "$model" --arch sm_75
expect err "sm_75" "expected sm_80"
