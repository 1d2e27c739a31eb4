#!/bin/sh
# mote bench: names of shapes, and an expert block on the CPU in every output.
. "$(dirname "$0")/lib.inc"
expect_code 0 "$mote" bench shapes
expect out "kimi-k2.5-tp4                 385         7168           512      9" "deepseek-v3-ep8" "gpt-oss-120b" "qwen3-30b-a3b"
expect_code 2 "$mote" synth x.gguf --shape glm-5.2-tp4 --type q4_k
expect err "glm-5.2-tp4" "an expert block, no model"
block="bench moe --shape 16/64/64/4 --type mxfp4 --act mxfp4 --routing uniform --bandwidth 4200 -M 1,20 -r 1"
expect_code 0 "$mote" $block
expect out "16/64/64/4 uniform" "TFLOP/s" "floor us"
expect err "4.20 TB/s"
expect_code 0 "$mote" $block --csv
expect out "what,name,type,act,rows,us,us_low,us_high,bytes,gb_s,tflop_s,rows_s,floor_us,share,experts,kernels"
expect out "moe,16/64/64/4 uniform,mxfp4,mxfp4,1," ",4,"
[ "$(wc -l <out)" = 3 ]
expect_code 0 "$mote" $block --json
expect out '"act": "mxfp4", "rows": 20' '"kernels": []}'
expect_code 2 "$mote" bench moe --routing even
expect err "'even'" "router, uniform"
expect_code 2 "$mote" bench moe --moe quick --shape 16/64/64/4 --type mxfp4 -M 1
expect err "'quick'" "fused, unfused, portable"
expect_code 1 "$mote" bench moe --kernels
expect err "GPU"
expect_code 2 "$mote" bench moe -M 40000
expect err "40000 rows" "1..32768"
