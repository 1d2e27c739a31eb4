#!/bin/sh
# Files that cannot be run: one message with the name, exit 1, no output, no crash.
. "$(dirname "$0")/lib.inc"
expect_code 1 "$mote" run -m none.gguf -p x
expect err "none.gguf"
mkdir empty
expect_code 1 "$mote" run -m empty -p x
expect err "empty"
echo "not a model" >text.gguf
expect_code 1 "$mote" run -m text.gguf -p x
expect err "text.gguf"
size=$(wc -c <"$model")
for part in 3 20 1000 20000 $((size / 2)) $((size - 1)); do
    head -c "$part" "$model" >cut.gguf
    expect_code 1 "$mote" run -m cut.gguf -p x -n 1
    expect err "cut.gguf"
    expect_code 1 "$mote" inspect cut.gguf
    expect_code 1 "$mote" quantize cut.gguf out.gguf --type q8_0
    [ ! -e out.gguf ]
    [ ! -e out.gguf.part ]
done
expect_code 0 "$mote" inspect "$model"
expect out "general.architecture" "qwen3moe" "blk.0.ffn_gate_exps.weight" "tq1_0" "256 x 256 x 16"
expect_code 0 "$mote" inspect --json "$model"
expect out '"name": "blk.7.ffn_down_exps.weight"' '"type": "tq1_0"'
