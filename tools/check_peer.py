#!/usr/bin/env python3
"""check_peer.py: files that mote writes run in llama.cpp with the same text, and files that llama.cpp writes run in mote.

  check_peer.py [--model ../shared/models/fable] [--golden ...-golden.json] [--types q8_0,...] [--theirs q4_k_m,...]

For each type: `mote quantize` of the model (theirs: llama_model_quantize of an f16 GGUF that mote wrote), then for the
six golden prompts the token ids and 64 greedy tokens of both engines. Both also read the golden tokens, and the
distributions at every position are compared: mean KL of the two, of each from mote with float activations ("exact":
the file's weights without the rounding of activations to 8 bits that both engines do), the largest logit difference.
A changed token is excused when it is a near-tie: exact products hold the two candidates closer than --tie logits.
Exit code 1 when a file does not load, ids differ, or a difference is not excused.
"""
import argparse
import ctypes as C
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import peer

# Ternary weights are for models trained that way: --model ../shared/models/fable-ternary --types q8_0+tq1_0,q8_0+tq2_0
OURS = ["f16", "q8_0", "q4_0", "q5_1", "q2_k", "q3_k", "q4_k", "q6_k", "iq4_nl", "iq4_xs", "iq3_xxs", "q6_k+iq2_xxs",
        "q8_0+mxfp4"]
# llama_ftype numbers
THEIRS = {"q4_0": 2, "q8_0": 7, "q2_k": 10, "q3_k_m": 12, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18, "iq2_xxs": 19,
          "iq2_xs": 20, "iq3_xxs": 23, "iq1_s": 24, "iq4_nl": 25, "iq3_s": 26, "iq2_s": 28, "iq4_xs": 30, "iq1_m": 31,
          "tq1_0": 36, "tq2_0": 37, "mxfp4_moe": 38}
N_GREEDY = 64


def our_file(mote, model, spec, out):
    """spec: TYPE, or TYPE+EXPERT_TYPE."""
    rest, _, experts = spec.partition("+")
    command = [mote, "quantize", str(model), str(out), "--type", rest]
    if experts:
        command += ["--expert-type", experts]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("mote quantize: " + done.stderr.strip().splitlines()[-1])


def their_file(source, ftype, out):
    """llama.cpp's quantiser with an importance of ones, which its 1 and 2 bit types insist on."""
    import gguf
    L = peer.llama_library()
    keep, items = [], []
    for tensor in gguf.GGUFReader(str(source)).tensors:
        shape = [int(d) for d in tensor.shape]
        if len(shape) < 2:
            continue
        n = shape[0] * (shape[2] if len(shape) > 2 else 1)
        ones = (C.c_float * n)(*([1.0] * n))
        keep.append(ones)
        items.append(L.llama_model_imatrix_data(tensor.name.encode(), C.cast(ones, C.POINTER(C.c_float)), n))
    items.append(L.llama_model_imatrix_data(None, None, 0))
    importance = (L.llama_model_imatrix_data * len(items))(*items)
    params = L.llama_model_quantize_default_params()
    params.nthread, params.ftype = 2, ftype
    params.imatrix = C.cast(importance, C.POINTER(L.llama_model_imatrix_data))
    del peer.llama_log[:]
    if L.llama_model_quantize(str(source).encode(), str(out).encode(), C.byref(params)):
        raise RuntimeError("llama_model_quantize: " + "".join(peer.llama_log[-2:]).strip())


def greedy(engine, ids):
    """64 tokens and the logits that each was chosen from."""
    engine.truncate(0)
    engine.eval(engine.ids(ids))
    tokens, logits = [], []
    for _ in range(N_GREEDY):
        logits.append(engine.logits())
        tokens.append(int(np.argmax(logits[-1])))
        engine.eval(engine.ids(tokens[-1:]))
    return tokens, logits


def forced(engine, ids):
    """Logits after every token of ids."""
    engine.truncate(0)
    rows = []
    for token in ids:
        engine.eval(engine.ids([token]))
        rows.append(engine.logits())
    return np.stack(rows).astype(np.float64)


def log_softmax(x):
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def check(path, golden, tie, n_thread):
    """One file in both engines: counts, and what to say of it."""
    a, b = (engine(path, 256, 256, n_thread) for engine in (peer.Mote, peer.Llama))
    exact = peer.Mote(path, 256, 256, n_thread, act="f32")
    same, ties, bad, kl, worst = 0, [], [], [], 0.0
    for p in golden["prompts"]:
        ids = [e.tokenize(p["prompt"]) for e in (a, b)]
        if ids[0] != p["ids"] or ids[1] != p["ids"]:
            bad.append("ids of %r: golden %s, mote %s, llama.cpp %s" % (p["prompt"], p["ids"], ids[0], ids[1]))
            continue
        (ta, la), (tb, lb) = greedy(a, p["ids"]), greedy(b, p["ids"])
        first = next((i for i in range(N_GREEDY) if ta[i] != tb[i]), None)
        if first is None:
            same += 1
        else:
            x, y = ta[first], tb[first]
            gap_a, gap_b = la[first][x] - la[first][y], lb[first][y] - lb[first][x]
            exact.truncate(0)
            exact.eval(exact.ids(p["ids"] + ta[:first]))
            le = exact.logits()
            text = "%r at token %d: mote %d (ahead by %.3f), llama.cpp %d (ahead by %.3f), exact: %.3f" % (
                p["prompt"][:24], first, x, gap_a, y, gap_b, le[x] - le[y])
            if abs(le[x] - le[y]) < tie:
                ties.append("near-tie: " + text)
            else:
                bad.append("text differs: " + text)
        fa, fb, fe = (forced(e, p["ids"] + p["greedy_ids"]) for e in (a, b, exact))
        qa, qb, qe = log_softmax(fa), log_softmax(fb), log_softmax(fe)
        kl.append([(np.exp(p) * (p - q)).sum(axis=1).mean() for p, q in ((qb, qa), (qe, qa), (qe, qb))])
        worst = max(worst, float(np.abs(fa - fb).max()))
    for engine in (a, b, exact):
        engine.close()
    return same, ties, bad, np.mean(kl, axis=0) if kl else [float("nan")] * 3, worst


def run(label, make, golden, args):
    with tempfile.TemporaryDirectory(prefix="check_peer_") as folder:
        path = os.path.join(folder, "model.gguf")
        try:
            make(path)
            same, ties, bad, kl, worst = check(path, golden, args.tie, args.threads)
        except RuntimeError as error:
            print("%-20s FAILED  %s" % (label, error), flush=True)
            return False
    print("%-20s %-6s %4d/%d %5d %12.1e %12.1e %12.1e %9.3f" %
          (label, "FAILED" if bad else "ok", same, len(golden["prompts"]), len(ties), *kl, worst), flush=True)
    if args.verbose:
        for line in ties:
            print("    " + line)
    for line in bad:
        print("    " + line)
    return not bad


def main():
    parser = argparse.ArgumentParser(description="the same files in mote and in llama.cpp")
    parser.add_argument("--mote", default=str(peer.ROOT / "build" / "mote"))
    parser.add_argument("--model", default=str(peer.ROOT.parent / "shared/models/fable"))
    parser.add_argument("--golden", help="default: MODEL-golden.json")
    parser.add_argument("--types", default=",".join(OURS), help="written by mote: TYPE or TYPE+EXPERT_TYPE")
    parser.add_argument("--theirs", default=",".join(n for n in THEIRS if not n.startswith("tq")), help="written by llama.cpp")
    parser.add_argument("--tie", type=float, default=0.25, help="logits between candidates that may change places")
    parser.add_argument("-t", "--threads", type=int, default=1, help="of each engine; on a busy machine 1 is fastest")
    parser.add_argument("-v", "--verbose", action="store_true", help="show near-ties")
    args = parser.parse_args()
    golden = json.loads(pathlib.Path(args.golden or args.model.rstrip("/") + "-golden.json").read_text())
    passed = []
    print("%-20s %-6s %6s %5s %12s %12s %12s %9s" %
          ("file", "", "same", "ties", "KL peer|mote", "exact|mote", "exact|peer", "logit"))
    for spec in filter(None, args.types.split(",")):
        passed.append(run("mote " + spec, lambda out: our_file(args.mote, args.model, spec, out), golden, args))
    theirs = list(filter(None, args.theirs.split(",")))
    if theirs:
        with tempfile.TemporaryDirectory(prefix="check_peer_") as folder:
            source = os.path.join(folder, "f16.gguf")
            our_file(args.mote, args.model, "f16", source)
            for name in theirs:
                passed.append(run("llama.cpp " + name, lambda out: their_file(source, THEIRS[name], out), golden, args))
    print("%d passed, %d failed" % (sum(passed), len(passed) - sum(passed)))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
