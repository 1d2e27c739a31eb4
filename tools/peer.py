"""peer.py: mote and llama.cpp behind one small class each, in one process, for bench_peer.py and check_peer.py.

Needs a Python with llama-cpp-python and numpy. mote is libmote.so through ctypes; nothing is measured here.
"""
import ctypes as C
import os
import pathlib

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent


class MoteOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("n_thread", C.c_int), ("memory", C.c_uint64), ("act", C.c_char_p),
                ("moe", C.c_char_p), ("n_ctx", C.c_int64), ("n_batch", C.c_int64), ("n_session", C.c_int64),
                ("kv", C.c_char_p), ("progress", C.c_void_p), ("progress_context", C.c_void_p)]


class MoteInfo(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("arch", C.c_char_p), ("name", C.c_char_p), ("kernels", C.c_char_p),
                ("n_layer", C.c_int64), ("n_vocab", C.c_int64), ("d_model", C.c_int64), ("n_expert", C.c_int64),
                ("n_expert_used", C.c_int64), ("n_ctx_train", C.c_int64), ("n_param", C.c_uint64),
                ("n_param_active", C.c_uint64), ("n_byte", C.c_uint64), ("n_byte_per_token", C.c_uint64),
                ("n_thread", C.c_int)]


_mote = None


def mote_library():
    global _mote
    if _mote:
        return _mote
    lib = C.CDLL(os.environ.get("MOTE_LIB", str(ROOT / "build" / "libmote.so")))
    lib.mote_error.restype = C.c_char_p
    lib.mote_session_logits.restype = C.POINTER(C.c_float)
    for name, args in {
        "mote_model_open": [C.c_char_p, C.POINTER(MoteOptions), C.POINTER(C.c_void_p)],
        "mote_model_close": [C.c_void_p],
        "mote_model_describe": [C.c_void_p, C.POINTER(MoteInfo)],
        "mote_model_tokenize": [C.c_void_p, C.c_char_p, C.c_size_t, C.c_int, C.POINTER(C.c_int32), C.c_size_t,
                                C.POINTER(C.c_size_t)],
        "mote_session_create": [C.c_void_p, C.POINTER(C.c_void_p)],
        "mote_session_destroy": [C.c_void_p],
        "mote_session_eval": [C.c_void_p, C.POINTER(C.c_int32), C.c_size_t],
        "mote_session_truncate": [C.c_void_p, C.c_int64],
        "mote_session_logits": [C.c_void_p],
        "mote_measure_bandwidth": [C.c_int, C.POINTER(C.c_double)],
    }.items():
        getattr(lib, name).argtypes = args
    _mote = lib
    return lib


def bandwidth(n_thread):
    value = C.c_double()
    lib = mote_library()
    if lib.mote_measure_bandwidth(n_thread, C.byref(value)):
        raise RuntimeError(lib.mote_error().decode())
    return value.value


class Mote:
    name = "mote"

    def __init__(self, path, n_ctx, n_batch, n_thread, act=None):
        self.lib = mote_library()
        self.model, self.session = C.c_void_p(), C.c_void_p()
        options = MoteOptions(C.sizeof(MoteOptions), n_thread=n_thread, n_ctx=n_ctx, n_batch=n_batch,
                              act=act.encode() if act else None)
        self._check(self.lib.mote_model_open(str(path).encode(), options, C.byref(self.model)))
        self.info = MoteInfo(C.sizeof(MoteInfo))
        self._check(self.lib.mote_model_describe(self.model, C.byref(self.info)))
        self._check(self.lib.mote_session_create(self.model, C.byref(self.session)))
        self.n_vocab = self.info.n_vocab

    def _check(self, status):
        if status:
            raise RuntimeError("mote: " + self.lib.mote_error().decode())

    def tokenize(self, text):
        """Control tokens spelled out count as such; no token in front."""
        data = text.encode()
        ids, n = (C.c_int32 * (len(data) + 2))(), C.c_size_t()
        self._check(self.lib.mote_model_tokenize(self.model, data, len(data), 1, ids, len(ids), C.byref(n)))
        return list(ids[: n.value])

    def truncate(self, n):
        self._check(self.lib.mote_session_truncate(self.session, n))

    def eval(self, ids):
        """Append an array that self.ids made."""
        self._check(self.lib.mote_session_eval(self.session, ids, len(ids)))

    @staticmethod
    def ids(values):
        return (C.c_int32 * len(values))(*values)

    def logits(self):
        return np.ctypeslib.as_array(self.lib.mote_session_logits(self.session), (self.n_vocab,)).copy()

    def close(self):
        self.lib.mote_session_destroy(self.session)
        self.lib.mote_model_close(self.model)


_log = None


def llama_library():
    """llama.cpp's C functions; its log is kept in llama_log, not printed."""
    global _log
    from llama_cpp import llama_cpp as L
    if not _log:
        _log = L.llama_log_callback(lambda level, text, data: llama_log.append(text.decode(errors="replace")))
        L.llama_log_set(_log, None)
        L.llama_backend_init()
    return L


llama_log = []


class Llama:
    """llama.cpp with its own defaults: mmap, flash attention on auto, f16 cache, repacked weights where it has them."""
    name = "llama.cpp"

    def __init__(self, path, n_ctx, n_batch, n_thread):
        L = self.L = llama_library()
        del llama_log[:]
        self.model = L.llama_model_load_from_file(str(path).encode(), L.llama_model_default_params())
        if not self.model:
            raise RuntimeError("llama.cpp cannot load %s: %s" % (path, "".join(llama_log[-4:])))
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, n_batch
        params.n_threads = params.n_threads_batch = n_thread
        self.context = L.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp: no context: " + "".join(llama_log[-4:]))
        self.vocab = L.llama_model_get_vocab(self.model)
        self.n_vocab = L.llama_vocab_n_tokens(self.vocab)
        self.n_batch = n_batch

    def tokenize(self, text):
        data = text.encode()
        ids = (C.c_int32 * (len(data) + 2))()
        n = self.L.llama_tokenize(self.vocab, data, len(data), ids, len(ids), False, True)
        if n < 0:
            raise RuntimeError("llama.cpp: %d tokens for %d bytes" % (-n, len(data)))
        return list(ids[:n])

    def truncate(self, n):
        if not self.L.llama_memory_seq_rm(self.L.llama_get_memory(self.context), 0, n, -1):
            raise RuntimeError("llama.cpp: cannot truncate to %d tokens" % n)

    def eval(self, ids):
        for i in range(0, len(ids), self.n_batch):
            part = ids if len(ids) <= self.n_batch else self.ids(ids[i:i + self.n_batch])
            status = self.L.llama_decode(self.context, self.L.llama_batch_get_one(part, len(part)))
            if status:
                raise RuntimeError("llama.cpp: llama_decode gave %d" % status)
        self.L.llama_synchronize(self.context)

    ids = staticmethod(Mote.ids)

    def logits(self):
        return np.ctypeslib.as_array(self.L.llama_get_logits_ith(self.context, -1), (self.n_vocab,)).copy()

    def close(self):
        self.L.llama_free(self.context)
        self.L.llama_model_free(self.model)
