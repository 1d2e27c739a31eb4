"""Writes qwen2moe_tiny.gguf (random weights, f32) and qwen2moe_tiny.json: logits of llama.cpp (CPU, f32 cache) for two
prompts at every position.  python tests/golden/gen_qwen2moe.py  (gguf, numpy, llama-cpp-python)"""
import ctypes
import json
import os

import gguf
import llama_cpp
import numpy as np

here = os.path.dirname(os.path.abspath(__file__))
path = os.path.join(here, "qwen2moe_tiny.gguf")
V, D, L, H, KV, HD, E, K, FF, SH = 48, 32, 2, 2, 1, 16, 6, 2, 32, 64
rng = np.random.default_rng(5)

w = gguf.GGUFWriter(path, "qwen2moe")
w.add_name("tiny")
w.add_context_length(64)
w.add_embedding_length(D)
w.add_block_count(L)
w.add_feed_forward_length(FF)
w.add_head_count(H)
w.add_head_count_kv(KV)
w.add_layer_norm_rms_eps(1e-6)
w.add_rope_freq_base(10000.0)
w.add_expert_count(E)
w.add_expert_used_count(K)
w.add_expert_feed_forward_length(FF)
w.add_expert_shared_feed_forward_length(SH)
w.add_tokenizer_model("gpt2")
w.add_tokenizer_pre("qwen2")
w.add_token_list([f"t{i}" for i in range(V)])
w.add_token_types([1] * V)
w.add_token_merges(["t 1"])
w.add_eos_token_id(0)


def put(name, *shape, scale=None):
    x = rng.standard_normal(shape) * (scale if scale else 1.5 / np.sqrt(shape[-1]))
    w.add_tensor(name, x.astype(np.float32))


def norm(name, n):
    w.add_tensor(name, (1 + 0.2 * rng.standard_normal(n)).astype(np.float32))


put("token_embd.weight", V, D, scale=1)
put("output.weight", V, D)
norm("output_norm.weight", D)
for i in range(L):
    b = f"blk.{i}."
    norm(b + "attn_norm.weight", D)
    norm(b + "ffn_norm.weight", D)
    put(b + "attn_q.weight", H * HD, D)
    put(b + "attn_k.weight", KV * HD, D)
    put(b + "attn_v.weight", KV * HD, D)
    put(b + "attn_output.weight", D, H * HD)
    for n, rows in (("q", H * HD), ("k", KV * HD), ("v", KV * HD)):
        put(b + f"attn_{n}.bias", rows, scale=0.5)
    put(b + "ffn_gate_inp.weight", E, D)
    put(b + "ffn_gate_exps.weight", E, FF, D)
    put(b + "ffn_up_exps.weight", E, FF, D)
    put(b + "ffn_down_exps.weight", E, D, FF)
    put(b + "ffn_gate_inp_shexp.weight", D, scale=0.3)
    put(b + "ffn_gate_shexp.weight", SH, D)
    put(b + "ffn_up_shexp.weight", SH, D)
    put(b + "ffn_down_shexp.weight", D, SH)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()

prompts = [[5, 17, 42, 1, 33, 8, 8, 20, 47, 3, 11, 29], [30]]
out = []
for ids in prompts:
    m = llama_cpp.Llama(model_path=path, n_ctx=64, logits_all=True, verbose=False, n_threads=1, type_k=0, type_v=0,
                        flash_attn=False)
    m.eval(ids)
    out.append({"ids": ids, "logits": [[round(float(v), 6) for v in m.scores[i]] for i in range(len(ids))]})
json.dump({"reference": f"llama.cpp by llama-cpp-python {llama_cpp.__version__}, f32", "prompts": out},
          open(os.path.join(here, "qwen2moe_tiny.json"), "w"))
print(os.path.getsize(path), out[0]["logits"][3][:6])
