#!/bin/sh
# Usage: tools/bench_cuda.sh BUILD/mote FOLDER: the tables of docs/performance-cuda.md on this machine's first GPU. FOLDER takes
# the synthetic models (up to 18 GB, one at a time). On an H200 with its kernels still to be compiled by 16 CPUs: five minutes
# without the models' depth of 8192 for all types.
set -u
mote=$1 folder=$2
start=$(date +%s)
say() { echo "# $* ($(($(date +%s) - start)) s)"; }
model() { # shape type depths
    say "$1 $2"
    rm -rf "$folder/bench.model" # a file, or with affine types a folder, which must be new
    "$mote" synth "$folder/bench.model" --shape "$1" --type "$2" >/dev/null 2>&1 || return
    "$mote" bench model -D cuda -m "$folder/bench.model" -M 512,4096 -d "$3" -n 128 -B 1,4,16 -r 2 -c 8400 -b 2048 2>&1
    rm -rf "$folder/bench.model"
}
block() { # type shape rows options..
    type=$1 shape=$2 rows=$3; shift 3
    "$mote" bench moe -D cuda --type "$type" --shape "$shape" -M "$rows" -r 2 "$@" 2>&1 | grep "$shape"
}
"$mote" info
say "expert blocks"
for type in iq2_xxs q4_k tq1_0 affine4 iq3_xxs mxfp4 tq2_0 q2_0 q1_0 q8_0 affine6 affine8 q2_k q4_0; do
    block $type 128/2048/768/8 1,2,4,8,16,32,64,128,512,2048
done
for type in iq2_xxs q4_k tq1_0; do model qwen3-30b-a3b $type 0,8192; done
for type in iq3_xxs affine4; do model qwen3-30b-a3b $type 0; done
model qwen1.5-moe-a2.7b iq2_xxs 0,8192
for type in iq3_xxs q4_k tq1_0 affine4; do model qwen1.5-moe-a2.7b $type 0; done
say "unfused"
for type in affine4 affine8 iq2_xxs iq3_xxs tq1_0; do block $type 128/2048/768/8 1,4,16 --moe unfused; done
say "other shapes"
for type in iq2_xxs iq3_xxs; do block $type 512/2048/512/10 1,4,16,128,512,2048; done
block q8_0 60/2048/1408/4 1,4,16,128,512
block mxfp4 384/7168/512/8 1,4,16,64,256,1024,4096
block mxfp4 128/2880/2880/4 1,4,16,64,256,1024,4096
say "MXFP4 x MXFP4 (docs/performance-mxfp4.md)"
for shape in kimi-k2.5-tp4 kimi-k2.5-tp4-routed deepseek-v3-tp4 deepseek-v3-ep8; do
    "$mote" bench moe -D cuda --shape $shape --type mxfp4 --act mxfp4 --routing uniform --kernels --bandwidth 4200 \
        -M 1,4,16,64,256,512,1024,2048,4096,8192,32768 -r 2 2>&1
done
say "done"
