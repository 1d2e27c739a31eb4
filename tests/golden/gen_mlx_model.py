"""Writes mlx_tiny/ (a model folder as mlx-lm saves one) and mlx_tiny.bin (weights as mlx decodes them).

mlx_tiny.bin, per matrix: name[40], u32 expert, n_row, n_col, f32 weights[n_row][n_col].
The header's length is left as mlx writes it, not a multiple of 8: weights lie at odd addresses.
"""
import json
import os
import struct

import mlx.core as mx
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
H, I, E, V = 64, 64, 3, 8
mx.random.seed(7)
tensors, golden = {}, []
quantization = {"group_size": 32, "bits": 4}


def plain(module, *shape):
    tensors[module + ".weight"] = mx.random.normal(shape).astype(mx.bfloat16)


def quantised(module, gguf, *shape, group_size=32, bits=4, mode="affine", dtype=mx.bfloat16):
    w = mx.random.normal(shape).astype(dtype)
    planes = mx.quantize(w, group_size=group_size, bits=bits, mode=mode)
    for name, plane in zip(("weight", "scales", "biases"), planes):
        tensors[f"{module}.{name}"] = plane
    wide = [planes[0]] + [p.astype(mx.float32) if mode == "affine" else p for p in planes[1:]]
    w = np.array(mx.dequantize(*wide, group_size=group_size, bits=bits, mode=mode).astype(mx.float32))
    golden.extend((gguf, e, m) for e, m in enumerate(w.reshape(-1, *shape[-2:])))
    own = {"group_size": group_size, "bits": bits} | ({"mode": mode} if mode != "affine" else {})
    if own != {"group_size": 32, "bits": 4}:
        quantization[module] = own


L = "model.layers.0."
quantised("model.embed_tokens", "token_embd.weight", V, H)
plain("model.norm", H)
plain(L + "input_layernorm", H)
plain(L + "post_attention_layernorm", H)
plain(L + "self_attn.q_norm", 32)
plain(L + "self_attn.k_norm", 32)
quantised(L + "self_attn.q_proj", "blk.0.attn_q.weight", 32, H, group_size=32, bits=8, mode="mxfp8")
quantised(L + "self_attn.k_proj", "blk.0.attn_k.weight", 32, H, group_size=16, bits=4, mode="nvfp4")
plain(L + "self_attn.v_proj", 32, H)
quantization[L + "self_attn.v_proj"] = False
quantised(L + "self_attn.o_proj", "blk.0.attn_output.weight", H, 32, bits=6, dtype=mx.float32)
quantised(L + "mlp.gate", "blk.0.ffn_gate_inp.weight", E, H, group_size=64, bits=8)
quantised(L + "mlp.switch_mlp.gate_proj", "blk.0.ffn_gate_exps.weight", E, I, H)
quantised(L + "mlp.switch_mlp.up_proj", "blk.0.ffn_up_exps.weight", E, I, H, mode="mxfp4")
quantised(L + "mlp.switch_mlp.down_proj", "blk.0.ffn_down_exps.weight", E, H, I, group_size=64, bits=3, dtype=mx.float16)

folder = os.path.join(HERE, "mlx_tiny")
os.makedirs(folder, exist_ok=True)
mx.save_safetensors(os.path.join(folder, "model.safetensors"), tensors, metadata={"format": "mlx"})
config = {
    "model_type": "qwen3_moe", "vocab_size": V, "hidden_size": H, "intermediate_size": I, "moe_intermediate_size": I,
    "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32, "num_experts": E,
    "num_experts_per_tok": 2, "norm_topk_prob": True, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
    "max_position_embeddings": 64, "tie_word_embeddings": True, "hidden_act": "silu",
    "quantization": quantization, "quantization_config": quantization,
}
with open(os.path.join(folder, "config.json"), "w") as f:
    json.dump(config, f, indent=1)
with open(os.path.join(HERE, "mlx_tiny.bin"), "wb") as f:
    for name, expert, m in golden:
        f.write(struct.pack("<40sIII", name.encode(), expert, *m.shape) + np.ascontiguousarray(m, np.float32).tobytes())
