#!/bin/sh
# mote run: counts, determinism, the three ways to give a prompt, what goes where.
. "$(dirname "$0")/lib.inc"
say="Once upon a time"
for n in 0 1 2 17; do
    expect_code 0 "$mote" run -m "$model" -p "$say" -n $n --temp 0 --ignore-eos
    expect err "generation  $(printf '%6d' $n) tokens"
done
expect err "prompt" "tokens/s" "read a token" "of the floor"
# The longer answer begins with the shorter one, and there is nothing but the answer on standard output.
expect_code 0 "$mote" run -m "$model" -p "$say" -n 40 --temp 0 -q
[ ! -s err ]
cp out greedy
expect_code 0 "$mote" run -m "$model" -p "$say" -n 20 --temp 0 -q
[ "$(cat out)" = "$(head -c "$(wc -c <out)" greedy)" ]
grep -q "[a-z]" greedy
# -f and a pipe are the same prompt; threads and the unfused block change nothing; same seed, same text.
printf '%s' "$say" >prompt
expect_code 0 "$mote" run -m "$model" -f prompt -n 40 --temp 0 -q
same out greedy
"$mote" run -m "$model" -n 40 --temp 0 -q <prompt >out
same out greedy
expect_code 0 "$mote" run -m "$model" -p "$say" -n 40 --temp 0 -q -t 1
same out greedy
expect_code 0 "$mote" run -m "$model" -p "$say" -n 40 --temp 0 -q --moe unfused
same out greedy
expect_code 0 "$mote" run -m "$model" -p "$say" -n 40 --temp 1 --seed 5 -q
cp out five
expect_code 0 "$mote" run -m "$model" -p "$say" -n 40 --temp 1 --seed 5 -q
same out five
expect_code 0 "$mote" run -m "$model" -p "$say" -n 40 --temp 1 --seed 6 -q
! cmp -s out five
# A control token spelled out in a prompt is text unless asked for.
expect_code 0 "$mote" run -m "$model" -p "<|im_end|>" -n 1
expect err "prompt"
grep -q "prompt  *1 tokens" err && { echo "the text became a control token"; exit 1; }
expect_code 0 "$mote" run -m "$model" -p "<|im_end|>" -n 1 --special
grep -q "prompt  *1 tokens" err
# A prompt of bytes that are no UTF-8, one byte, a very long line.
printf '\377\376' >prompt
expect_code 0 "$mote" run -m "$model" -f prompt -n 4 --temp 0 -q
printf 'a' >prompt
expect_code 0 "$mote" run -m "$model" -f prompt -n 4 --temp 0 -q
: >prompt
expect_code 2 "$mote" run -m "$model" -f prompt -n 4 -q
expect err "empty"
# The context is an error with both numbers, not a silent cut.
yes "the king and the queen" | head -n 100 >prompt
expect_code 1 "$mote" run -m "$model" -f prompt -n 4 -q -c 64
expect err "64"
[ ! -s out ]
# A context that fills up while writing ends the text with an error and keeps what was written.
expect_code 1 "$mote" run -m "$model" -p "$say" -c 16 --temp 0 --ignore-eos -q
expect err "16"
[ -s out ]
