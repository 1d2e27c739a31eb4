#!/bin/sh
# mote synth: a true shape that runs; the same seed gives the same file.
. "$(dirname "$0")/lib.inc"
expect_code 0 "$mote" synth a.gguf --shape fable --type iq3_xxs --embed-type q8_0
expect_code 0 "$mote" synth b.gguf --shape fable --type iq3_xxs --embed-type q8_0 -t 1
same a.gguf b.gguf
expect_code 0 "$mote" synth c.gguf --shape fable --type iq3_xxs --embed-type q8_0 --seed 2
! cmp -s a.gguf c.gguf
expect_code 0 "$mote" run -m a.gguf -p "Once" -n 3 --temp 0 --ignore-eos
expect_code 0 "$mote" synth d.gguf --shape fable --type q4_k --layers 2 --tokenizer "$model"
expect_code 0 "$mote" inspect --json d.gguf
expect out '"qwen3moe.block_count": 2'
expect_code 0 "$mote" bench model -m d.gguf -M 8 -n 4 -r 1 --csv
expect out "pp8" "tg4"
