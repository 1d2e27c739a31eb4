#!/bin/sh
# --device: a wrong name, a missing driver, a plan for a GPU that is not here, and limits on the stand-in driver.
. "$(dirname "$0")/lib.inc"
fake=$(dirname "$mote")/tests/libcuda_fake.so
expect_code 2 "$mote" run -D gpu -m "$model" -p a
expect err "device 'gpu'" "cpu, cuda or cuda:N"
export MOTE_LIBCUDA="$work/none.so"
for command in "run -p a" "bench moe" "perplexity -f $model"; do
    expect_code 1 "$mote" $command -D cuda -m "$model"
    expect err "CUDA" "none.so"
done
# Weights move to the device: nothing is read where the file is mapped.
expect_code 0 "$mote" plan -D cuda -m "$model"
grep -q "^mapped  *0 " out || { cat out; exit 1; }
expect_code 0 "$mote" plan -m "$model"
grep -q "^mapped  *0 " out && { cat out; exit 1; }
# Without a limit it is what the device has free (a GiB there) that decides whether ternary weights lie compact.
export MOTE_LIBCUDA="$fake" MOTE_CACHE="$work/cache"
expect_code 0 "$mote" plan -D cuda -m "$model"
grep -q "compact" err && { cat err; exit 1; }
expect_code 0 "$mote" plan -D cuda -m "$model" --kv f32 -c 200000
expect err "weights lie compact for want of memory"
# A limit below the need is refused before anything is loaded, on a device too; an index past the last is named.
expect_code 1 "$mote" run -D cuda --memory 1M -m "$model" -p a
expect err "the limit is 1048576"
expect_code 2 "$mote" run -D cuda:7 -m "$model" -p a
expect err "device 7" "there are 2"
# The time of every launch, of short steps and of long ones, beside the whole; the experts drawn beforehand or by a router. (Needs NVRTC.)
if ! "$mote" info --quick --json | grep -q '"nvrtc": 0'; then
    moe="$mote bench moe -D cuda --shape 16/256/256/2 --type mxfp4 -r 1 --kernels"
    expect_code 0 $moe --moe portable -M 1,4,100 --csv --bandwidth 4200
    expect out ",router=" "gate_up_one=" "gate_up_many=" "prefill_begin=" "prefill_sum="
    expect_code 0 $moe --moe portable -M 1,100 --routing uniform
    expect out "16/256/256/2 uniform" "  input_rows" "  gate_up_one" "  prefill_down_64"
    ! grep -q "route" out || { cat out; exit 1; }
    # Kernels of their own between few and many pairs an expert.
    expect_code 0 $moe -M 1,3,100 --csv --bandwidth 4200
    expect out "gate_up_one=" "gate_up_many=" "mx_begin=" "mx_narrow_gate_up=" "mx_narrow_down=" "mx_sum="
    ! grep -q "mx_small" out || { cat out; exit 1; }
fi
