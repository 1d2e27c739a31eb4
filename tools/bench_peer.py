#!/usr/bin/env python3
"""bench_peer.py: mote and llama.cpp on the same GGUF files, interleaved in one process.

  bench_peer.py [-t 2] [-r 7] [--prompt 512] [--generate 32] [--depth 8] FILE.gguf ...

Rounds go A B, B A, A B, ... after one discarded warm-up of each; a figure is the median over rounds, a ratio is the
median of the rounds' ratios (what a busy machine does to one engine in a round it mostly does to the other). Both get
the same random token ids, context, batch (n_batch = n_ubatch = 512) and threads, f16 cache, and compute the logits of
every decoded token and of a prompt's last. Sampling is not timed. llama.cpp runs on its defaults: mmap, flash attention
on auto, and weights that it repacks when it loads.
Floor: mote's count of the weight bytes that a decoded token reads, at the bandwidth measured in the same run.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import peer


def timed(engine, before, ids, one_by_one):
    engine.truncate(before)
    start = time.perf_counter()
    if one_by_one:
        for token in ids:
            engine.eval(token)
    else:
        engine.eval(ids)
    return time.perf_counter() - start


def compare(path, args):
    n_ctx = max(args.prompt, args.depth + args.generate) + 8
    n_ctx = (n_ctx + 255) // 256 * 256
    engines = [peer.Mote(path, n_ctx, 512, args.threads), peer.Llama(path, n_ctx, 512, args.threads)]
    rng = np.random.default_rng(1)
    tokens = [int(t) for t in rng.integers(0, engines[0].n_vocab, n_ctx)]
    prompt = peer.Mote.ids(tokens[: args.prompt])
    start = peer.Mote.ids(tokens[: args.depth])
    decode = [peer.Mote.ids([t]) for t in tokens[args.depth:args.depth + args.generate]]
    jobs = []
    if args.prompt:
        jobs.append(("pp%d" % args.prompt, args.prompt, 0, prompt, False))
    if args.generate:
        jobs.append(("tg%d" % args.generate, args.generate, args.depth, decode, True))
    rows = []
    for name, n, before, ids, one_by_one in jobs:
        seconds = [[], []]
        for engine in engines:
            engine.truncate(0)
            if before:
                engine.eval(start)
        for r in range(-1, args.rounds):
            for e in (0, 1) if r % 2 else (1, 0):
                took = timed(engines[e], before, ids, one_by_one)
                if r >= 0:
                    seconds[e].append(took)
        # above 1: mote is faster
        ratios = sorted(b / a for a, b in zip(*seconds))
        row = {"file": os.path.basename(str(path)), "test": name, "mote": n / statistics.median(seconds[0]),
               "llama.cpp": n / statistics.median(seconds[1]), "ratio": statistics.median(ratios),
               "low": ratios[0], "high": ratios[-1]}
        if one_by_one:
            row["floor"] = engines[0].info.n_byte_per_token
        rows.append(row)
    for engine in engines:
        engine.close()
    return rows


def main():
    parser = argparse.ArgumentParser(description="mote and llama.cpp on the same files, interleaved")
    parser.add_argument("file", nargs="+")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=512, help="0: no prompt test")
    parser.add_argument("--generate", type=int, default=32, help="0: no decode test")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.rounds < 1 or args.depth < 1:
        parser.error("rounds and depth are at least 1")
    bandwidth = peer.bandwidth(args.threads)
    llama = peer.llama_library()
    if not args.json:
        print("llama.cpp: %s" % llama.llama_print_system_info().decode())
        print("%d threads, %d rounds, plain reads in this run: %.1f GB/s; load average %.1f" %
              (args.threads, args.rounds, bandwidth / 1e9, os.getloadavg()[0]))
        print("%-36s %-7s %12s %12s %7s %15s %6s" %
              ("file", "test", "mote tok/s", "llama tok/s", "ratio", "low..high", "floor"))
    every = []
    for path in args.file:
        for row in compare(path, args):
            if "floor" in row:
                row["floor"] = row["floor"] * row["mote"] / bandwidth
            every.append(row)
            if not args.json:
                print("%-36s %-7s %12.1f %12.1f %7.2f %7.2f %7.2f %6s" %
                      (row["file"], row["test"], row["mote"], row["llama.cpp"], row["ratio"], row["low"], row["high"],
                       "%.0f%%" % (100 * row["floor"]) if "floor" in row else ""), flush=True)
    if args.json:
        print(json.dumps({"threads": args.threads, "rounds": args.rounds, "bandwidth": bandwidth, "rows": every},
                         indent=1))


if __name__ == "__main__":
    main()
