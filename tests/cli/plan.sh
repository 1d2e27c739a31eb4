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
