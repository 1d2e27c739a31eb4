#!/bin/sh
# Usage: tools/bench_cuda.sh BUILD/mote FOLDER: the tables of docs/performance-cuda.md on this machine's first GPU. FOLDER takes
# the synthetic models (up to 20 GB, one at a time). Not run as a whole yet: five minutes on an H200 is an estimate, kernels
# that are not in the cache add some.
set -u
mote=$1 folder=$2
start=$(date +%s)
say() { echo "# $* ($(($(date +%s) - start)) s)"; }
model() { # shape type prompt-lengths depths sessions
    say "$1 $2"
    rm -rf "$folder/bench.model" # a file, or with affine types a folder, which must be new
    "$mote" synth "$folder/bench.model" --shape "$1" --type "$2" >/dev/null 2>&1 || return
    "$mote" bench model -D cuda -m "$folder/bench.model" -M "$3" -d "$4" -n 128 -B "$5" -r 3 -c 8400 -b 2048 2>&1
    rm -rf "$folder/bench.model"
}
block() { # type shape rows options..
    type=$1 shape=$2 rows=$3; shift 3
    "$mote" bench moe -D cuda --type "$type" --shape "$shape" -M "$rows" -r 3 "$@" 2>&1 | grep "$shape"
}
"$mote" info
for type in iq2_xxs iq3_xxs tq1_0 q4_k affine4; do model qwen3-30b-a3b $type 512,4096 0,8192 1,4,16; done
for type in iq2_xxs q4_k affine4; do model qwen1.5-moe-a2.7b $type 512,4096 0,8192 1,4,16; done
say "expert blocks"
for type in iq2_xxs iq3_xxs q2_k q4_k q4_0 mxfp4 q2_0 q1_0 q8_0 tq1_0 tq2_0 affine4 affine6 affine8; do
    block $type 128/2048/768/8 1,2,4,8,16,32,128,512,2048
done
for type in iq2_xxs iq3_xxs; do block $type 512/2048/512/10 1,4,16,128,512,2048; done
block q8_0 60/2048/1408/4 1,4,16,128,512
block mxfp4 384/7168/512/8 1,4,16,64,256,1024,4096
block mxfp4 128/2880/2880/4 1,4,16,64,256,1024,4096
say "unfused"
for type in affine4 affine8 iq2_xxs iq3_xxs tq1_0; do block $type 128/2048/768/8 1,4,16 --moe unfused; done
say "done"
