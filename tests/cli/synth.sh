#!/bin/sh
# mote synth: a true shape that runs, as a GGUF and as an MLX folder; the same seed gives the same file.
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

# ---- MLX ----
expect_code 0 "$mote" synth a4 --shape fable --type affine4 --layers 2
expect_code 0 "$mote" synth b4/ --shape fable --type affine4 --layers 2 -t 1
for file in config.json model.safetensors tokenizer.json tokenizer_config.json generation_config.json; do same a4/$file b4/$file; done
expect_code 0 "$mote" synth c4 --shape fable --type affine4 --layers 2 --seed 2
! cmp -s a4/model.safetensors c4/model.safetensors
expect_code 0 "$mote" inspect a4
expect out "a4: mlx, 26 tensors" "blk.1.ffn_down_exps.weight                 affine4   256 x 256 x 16" \
    "blk.1.ffn_gate_inp.weight                  f16 " "blk.0.attn_norm.weight                     f16 "
expect_code 0 "$mote" run -m a4 -p "Once" -n 3 --temp 0 --ignore-eos
expect_code 0 "$mote" bench model -m a4 -M 8 -n 4 -r 1 --csv
expect out "pp8" "tg4" "affine4"
# Other bits for attention are an entry of config.json for each of its modules; tokenizers from a GGUF and from a folder.
expect_code 0 "$mote" synth d4 --shape fable --type affine2 --attn-type affine6 --embed-type bf16 --layers 2 --tokenizer "$model"
expect d4/config.json '"model.layers.0.self_attn.q_proj": {' '"bits": 6' '"bits": 2'
expect_code 0 "$mote" inspect d4
expect out "blk.0.attn_q.weight                        affine6" "token_embd.weight                          bf16"
expect_code 0 "$mote" synth e4 --shape fable --type affine8 --layers 1 --tokenizer d4
same d4/tokenizer.json e4/tokenizer.json
echo "Once upon a time there was a king <|im_end|> who 12345 ran, and it's so." >text
expect_code 0 "$mote" parity -m d4 --against d.gguf -f text # refuses vocabularies that differ
# Refused, with nothing left behind.
expect_code 2 "$mote" synth x --shape fable --type affine7
expect err "affine7" "does not exist" "affine6" "q4_k"
expect_code 2 "$mote" synth x --shape fable --type affine4 --attn-type q4_k
expect err "--attn-type 'q4_k' does not go with --type affine4: an MLX folder takes" "affine8"
expect_code 2 "$mote" synth x --shape fable --type q4_k --embed-type affine4
expect err "--embed-type 'affine4' does not go with --type q4_k: a GGUF takes"
expect_code 2 "$mote" synth a4 --shape fable --type affine4
expect err "a4: holds 5 files" "expected a new or an empty folder"
expect_code 2 "$mote" synth a.gguf --shape fable --type affine4
expect err "a.gguf: is a file"
expect_code 1 "$mote" synth x --shape fable --type affine4 --tokenizer none
expect err "none"
[ ! -e x ]
[ ! -e x.part ]
