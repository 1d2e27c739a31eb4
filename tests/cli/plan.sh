#!/bin/sh
# mote plan and --memory: the limit is hard, and the message has the number that would do.
. "$(dirname "$0")/lib.inc"
total() { sed -n 's/.*"total": \([0-9]*\).*/\1/p' out; }
expect_code 0 "$mote" plan -m "$model" --json
need=$(total)
[ "$need" -gt 8000000 ]
expect_code 0 "$mote" plan -m "$model" -c 64 --json
[ "$(total)" -lt "$need" ]
expect_code 0 "$mote" plan -m "$model"
expect out "mapped" "kv" "scratch" "total"
expect_code 0 "$mote" run -m "$model" -p "Once" -n 2 -q --memory "$need"
expect_code 1 "$mote" run -m "$model" -p "Once" -n 2 -q --memory 3M
expect err "3145728" "$need"
[ ! -s out ]
expect_code 1 "$mote" plan -m "$model" --memory 3M
expect err "$need"
# On a device ternary weights take 2-bit codes where they have room, base 3 where they have not, which is said.
export MOTE_LIBCUDA="$work/none.so" MOTE_VERBOSE=1
expect_code 0 "$mote" plan -D cuda -m "$model" --json
expect err "weights have room"
need=$(total)
expect_code 0 "$mote" plan -D cuda -m "$model" --json --memory $((need - 1))
expect err "weights lie compact for want of memory"
least=$(total)
[ "$least" -lt "$need" ]
expect_code 1 "$mote" plan -D cuda -m "$model" --memory $((least - 1))
expect err "--memory $least would do"
