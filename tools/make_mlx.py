#!/usr/bin/env python3
"""make_mlx.py: a Qwen3-MoE Hugging Face folder as an MLX folder: quantised, experts stacked, as mlx-lm writes it.

  make_mlx.py IN OUT [--bits 4] [--group 64] [--mode affine|mxfp4|nvfp4|mxfp8] [--down-bits N]

--down-bits gives the experts' down projections other bits (affine): a mixed recipe with per-module overrides.
Needs mlx (PyPI, mlx[cpu] on Linux). For tests by hand: `mote parity -m IN --against OUT`.
"""
import argparse
import json
import pathlib
import shutil

import mlx.core as mx

parser = argparse.ArgumentParser()
parser.add_argument("source", type=pathlib.Path)
parser.add_argument("out", type=pathlib.Path)
parser.add_argument("--bits", type=int, default=4)
parser.add_argument("--group", type=int, default=64)
parser.add_argument("--mode", default="affine")
parser.add_argument("--down-bits", type=int)
args = parser.parse_args()

tensors = {}
for shard in sorted(args.source.glob("*.safetensors")):
    tensors.update(mx.load(str(shard)))
config = json.loads((args.source / "config.json").read_text())
for layer in range(config["num_hidden_layers"]):
    for name in ("gate_proj", "up_proj", "down_proj"):
        prefix = f"model.layers.{layer}.mlp."
        parts = [tensors.pop(f"{prefix}experts.{e}.{name}.weight") for e in range(config["num_experts"])]
        tensors[f"{prefix}switch_mlp.{name}.weight"] = mx.stack(parts)

overrides, written = {}, {}
for name, value in tensors.items():
    path = name.removesuffix(".weight")
    if value.ndim == 1:
        written[name] = value
        continue
    bits, group, mode = args.bits, args.group, args.mode
    if path.endswith("mlp.gate"):  # routers: 8 bits in groups of 64, whatever the rest
        bits, group, mode = 8, 64, "affine"
        overrides[path] = {"group_size": 64, "bits": 8}
    elif args.down_bits and path.endswith("down_proj"):
        bits = args.down_bits
        overrides[path] = {"group_size": group, "bits": bits}
    parts = mx.quantize(value, group_size=group, bits=bits, mode=mode)
    for suffix, part in zip(("weight", "scales", "biases"), parts):
        written[f"{path}.{suffix}"] = part

args.out.mkdir(parents=True, exist_ok=True)
mx.save_safetensors(str(args.out / "model.safetensors"), written, metadata={"format": "mlx"})
quantization = {"group_size": args.group, "bits": args.bits, "mode": args.mode, **overrides}
config["quantization"] = config["quantization_config"] = quantization
(args.out / "config.json").write_text(json.dumps(config, indent=1))
for extra in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
    shutil.copy(args.source / extra, args.out / extra)
