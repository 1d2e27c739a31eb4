"""Writes the seeds of fuzz_gguf, fuzz_safetensors and fuzz_json, from the golden files and by hand."""
import json
import os
import shutil
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden")


def seed(target, name):
    os.makedirs(os.path.join(HERE, "corpus", target), exist_ok=True)
    return os.path.join(HERE, "corpus", target, name)


def gguf(name, keys, tensors):
    """keys: (name, type, packed value); tensors: (name, type id, dims, bytes)."""
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()
    out = b"GGUF" + struct.pack("<IQQ", 2, len(tensors), len(keys))
    out += b"".join(text(k) + struct.pack("<I", t) + v for k, t, v in keys)
    offset, data = 0, b""
    for n, t, dims, size in tensors:
        out += text(n) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t, offset)
        data += bytes(i * 5 & 255 for i in range(size)) + bytes(-size % 32)
        offset = len(data)
    out += bytes(-len(out) % 32) + data
    open(seed("gguf", name), "wb").write(out)


def safetensors(name, tensors):
    header, data = {}, b""
    for n, dtype, size, shape in tensors:
        for dim in shape:
            size *= dim
        header[n] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes(i & 255 for i in range(size))
    text = json.dumps(header, separators=(",", ":")).encode()
    open(seed("safetensors", name), "wb").write(struct.pack("<Q", len(text)) + text + data)


shutil.copy(os.path.join(GOLDEN, "small.gguf"), seed("gguf", "small.gguf"))
gguf("nvfp4.gguf", [("general.alignment", 4, struct.pack("<I", 32)), ("split.count", 2, struct.pack("<H", 1))],
     [("blk.0.ffn_up_exps.weight", 40, [64, 2, 3], 216), ("blk.0.ffn_up_exps.scale", 0, [3], 12)])
gguf("id42.gguf", [], [("a", 42, [128, 64], 34 * 64), ("b", 42, [128, 1], 34), ("c", 42, [128, 64], 34 * 64)])
gguf("texts.gguf", [("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 3) + (struct.pack("<Q", 1) + b"x") * 3),
                    ("tokenizer.ggml.token_type", 9, struct.pack("<IQ5i", 5, 5, 1, 2, 3, 4, 5))], [])

shutil.copy(os.path.join(GOLDEN, "mlx_tiny", "model.safetensors"), seed("safetensors", "mlx_tiny.safetensors"))
expert = "model.layers.0.mlp.experts."
safetensors("experts.safetensors", [("model.embed_tokens.weight", "BF16", 2, [8, 4])] +
            [(f"{expert}{e}.{p}_proj.weight", "F16", 2, [4, 4]) for e in range(3) for p in ("gate", "up", "down")])
safetensors("fused.safetensors", [(expert + "gate_up_proj", "BF16", 2, [3, 8, 4]), ("other", "F8_E4M3", 1, [3]),
                                  (expert + "down_proj", "BF16", 2, [3, 4, 4])])

shutil.copy(os.path.join(GOLDEN, "mlx_tiny", "config.json"), seed("json", "mlx_tiny.json"))
yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 4096,
        "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.1}
open(seed("json", "yarn.json"), "w").write(json.dumps({
    "model_type": "qwen2_moe", "num_hidden_layers": 2, "hidden_size": 64, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2, "num_attention_heads": 4,
    "vocab_size": 9, "hidden_act": "silu", "use_sliding_window": False, "rope_parameters": yarn}))
