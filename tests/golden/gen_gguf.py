"""Writes small.gguf with PyPI's gguf: every value type, a few tensor types. Values are formulas that test_gguf.c repeats."""
import numpy as np
import gguf
from gguf.constants import GGUFValueType, GGMLQuantizationType as Q

w = gguf.GGUFWriter("tests/golden/small.gguf", "qwen3moe")
w.add_name("small")
w.add_uint8("t.u8", 200)
w.add_int8("t.i8", -100)
w.add_uint16("t.u16", 60000)
w.add_int16("t.i16", -30000)
w.add_uint32("t.u32", 4000000000)
w.add_int32("t.i32", -2000000000)
w.add_uint64("t.u64", 2**63 + 5)
w.add_int64("t.i64", -(2**62))
w.add_float32("t.f32", 0.5)
w.add_float64("t.f64", 1e300)
w.add_bool("t.bool", True)
w.add_string("t.text", "caf\u00e9")
w.add_array("t.texts", ["", "b", "\u4e2d\u6587"])
w.add_key_value("t.i32s", [-1, 2, 70000], GGUFValueType.ARRAY, sub_type=GGUFValueType.INT32)
w.add_key_value("t.f32s", [0.25, -8.0], GGUFValueType.ARRAY, sub_type=GGUFValueType.FLOAT32)
f32 = (np.arange(2 * 3 * 5, dtype=np.float32) / 4).reshape(2, 3, 5)  # dims in the file: 5, 3, 2
w.add_tensor("blk.0.ffn_up_exps.weight", f32)
w.add_tensor("half", (np.arange(7, dtype=np.float16) - 3))
x = (np.arange(3 * 64, dtype=np.float32) % 17 - 8).reshape(3, 64)
w.add_tensor("token_embd.weight", gguf.quants.quantize(x, Q.Q8_0), raw_dtype=Q.Q8_0)
w.add_tensor("output.weight", gguf.quants.quantize(x, Q.Q4_0), raw_dtype=Q.Q4_0)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
