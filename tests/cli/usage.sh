#!/bin/sh
# Wrong command lines: exit 2, one message that names the thing, nothing on standard output.
. "$(dirname "$0")/lib.inc"
expect_code 2 "$mote"
expect err "usage:" "run" "quantize"
expect_code 2 "$mote" fly
expect err "fly" "perplexity"
expect_code 0 "$mote" --version
expect out "mote 0."
for c in run chat inspect plan quantize perplexity parity imatrix synth bench info kernels; do
    expect_code 0 "$mote" $c --help
    expect out "usage: mote $c"
    expect_code 2 "$mote" $c --no-such-option
    expect err "--no-such-option"
    [ ! -s out ]
done
expect_code 2 "$mote" run -p x
expect err "-m MODEL"
expect_code 2 "$mote" run -m "$model" -p x -f y
expect_code 2 "$mote" run -m "$model" -p x -n ten
expect err "ten" "whole number"
expect_code 2 "$mote" run -m "$model" -p x --memory lots
expect err "lots" "6G"
expect_code 2 "$mote" run -m "$model" -p x --act int3
expect err "int3" "f32"
expect_code 2 "$mote" run -m "$model" -p x extra
expect err "extra"
expect_code 2 "$mote" quantize "$model" out.gguf
expect err "--type"
expect_code 2 "$mote" quantize "$model" out.gguf --type q7_z
expect err "q7_z" "q4_k" "tq1_0"
[ ! -e out.gguf ]
expect_code 2 "$mote" synth out.gguf --shape no-such --type q4_k
expect err "no-such" "qwen3-30b-a3b"
