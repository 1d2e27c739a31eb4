#!/bin/sh
# mote quantize, imatrix, perplexity, parity on the embedded model.
. "$(dirname "$0")/lib.inc"
cat >text <<'T'
Once upon a time there was a king who had three daughters, and the youngest was so beautiful that the sun himself
wondered whenever he shone on her face. Near the castle lay a great dark forest, and in the forest under an old tree
was a well, and when the day was hot the princess went out into the forest and sat down by the cool water.
T
for i in 1 2 3 4 5 6 7 8; do cat text; done >long
expect_code 0 "$mote" perplexity -m "$model" -f long -w 128 --json
nll() { sed -n 's/.*"nll": \([0-9.]*\).*/\1/p' out; }
base=$(nll)
expect_code 0 "$mote" quantize "$model" q8.gguf --type q8_0
expect_code 0 "$mote" inspect --json q8.gguf
expect out '"type": "q8_0"'
expect_code 0 "$mote" perplexity -m q8.gguf -f long -w 128 --json
other=$(nll)
awk -v a="$base" -v b="$other" 'BEGIN { d = a - b; exit !(d < 0.02 && d > -0.02) }' || { echo "$base and $other"; exit 1; }
# Mixed types land where they were sent.
expect_code 0 "$mote" quantize "$model" mixed.gguf --type q4_k --expert-type tq2_0 --down-type q2_0 --attn-type q6_k --embed-type q8_0
expect_code 0 "$mote" inspect mixed.gguf
grep -q "blk.0.ffn_up_exps.weight  *tq2_0" out
grep -q "blk.0.ffn_down_exps.weight  *q2_0" out
grep -q "blk.0.attn_q.weight  *q6_k" out
grep -q "token_embd.weight  *q8_0" out
grep -q "blk.0.ffn_gate_inp.weight  *f32" out
# Importance.
expect_code 0 "$mote" imatrix -m q8.gguf -f long -w 128 -o im.gguf
expect_code 0 "$mote" inspect im.gguf
expect out "blk.0.ffn_down_exps.weight.in_sum2" "blk.0.attn_q.weight.counts"
expect_code 0 "$mote" quantize q8.gguf iq2.gguf --type q8_0 --expert-type iq2_xxs --imatrix im.gguf
expect_code 1 "$mote" quantize q8.gguf bad.gguf --type q8_0 --imatrix q8.gguf
expect err "q8.gguf" "importance"
[ ! -e bad.gguf ]
# A model against itself is equal to the bit; against another type it is not.
expect_code 0 "$mote" parity -m q8.gguf --against q8.gguf -f long -w 128 -n 1 --json
expect out '"kl_max": 0,' '"top1": 1.000000' '"first_layer": -1' '"changes": []'
expect_code 0 "$mote" parity -m q8.gguf --against iq2.gguf -f long -w 128 -n 1
expect out "first past the limit"
# The source stays when a write fails.
expect_code 1 "$mote" quantize q8.gguf no/such/folder/out.gguf --type q8_0
expect err "no/such/folder"
