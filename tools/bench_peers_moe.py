#!/usr/bin/env python3
"""bench_peers_moe.py: one expert block in mote, in triton_kernels and in torch, interleaved on the same GPU.

  tools/bench_peers_moe.py --mote build/mote --quick                       one shape, three M, a minute: does all of it run?
  tools/bench_peers_moe.py --mote build/mote --shape kimi-k2.5-tp4 -M 1,4,16,64,256,1024,4096,16384

Peers, each left out with its error printed when it cannot run:
  triton   triton_kernels' matmul_ogs: MXFP4 weights (Hopper's swizzled layout), bf16 activations; gather, gate and up,
           swiglu, down, weighted sum: the whole block but for its router
  bf16     torch's grouped_mm, gate-and-up and down alone: no gather, activation or sum; weights in bf16
  fp8      torch's _scaled_grouped_mm, the same two products with a scale a row

Everyone goes through BLOCKS blocks in one CUDA graph, through LAYERS layers of weights, with experts chosen uniformly,
without repeats in a row, before the clock starts: a figure is a replay's time / BLOCKS, the median of the replays of all
rounds. A round is mote (one process for all M), then every peer; a ratio above 1 says that mote is faster.

triton_kernels is no package of a registry: it is a folder of Python sources in triton's repository and in vllm's wheels.
To carry it to a machine without it, once, on one that reaches PyPI (local/ is not tracked):
  pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_35_x86_64 -d local vllm==0.20.0
  unzip -q local/vllm-*.whl 'vllm/third_party/triton_kernels/*' -d local && mkdir -p local/peers
  mv local/vllm/third_party/triton_kernels local/peers/ && rm -r local/vllm local/vllm-*.whl
vllm 0.20.0 and 0.22.1 carry two versions of it, both for torch 2.11 and triton 3.6; either works here, and which is faster
depends on M: run both. --peers names the folder.
"""
import argparse
import csv
import io
import os
import pathlib
import statistics
import subprocess
import sys
import traceback

BLOCKS = 16
LAYERS = 4
POOL = 512  # rows that are really encoded
ROOT = pathlib.Path(__file__).resolve().parent.parent


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mote", default=str(ROOT / "build" / "mote"), help="the program; '' leaves it out")
    p.add_argument("--shape", default="kimi-k2.5-tp4", help="names of `mote bench shapes`, or NE/D/F/K, comma-separated")
    p.add_argument("-M", "--rows", default="1,4,16,64,256,1024,4096,16384")
    p.add_argument("--act", default="default", help="mote's activations, comma-separated: default,mxfp4")
    p.add_argument("--peer", default="triton,bf16,fp8")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--warps", type=int, default=8, help="triton_kernels: warps that its scales are laid out for: 4 or 8")
    p.add_argument("--bandwidth", default="4200", help="GB/s of the floors")
    p.add_argument("--peers", default=str(ROOT / "local" / "peers"), help="folder that holds triton_kernels/")
    p.add_argument("--quick", action="store_true", help="M 1,64,1024 of the first shape, one round")
    args = p.parse_args()
    args.shape = args.shape.split(",")
    args.rows = [int(m) for m in args.rows.split(",")]
    args.act = args.act.split(",") if args.mote else []
    args.peer = [name for name in args.peer.split(",") if name]
    for name in args.peer:
        if name not in PEERS:
            p.error("--peer %s: there are %s" % (name, ", ".join(PEERS)))
    if args.quick:
        args.shape, args.rows, args.rounds = args.shape[:1], [1, 64, 1024], 1
    return args


# ---- mote ----

def shape_of(args, name):
    """Experts, model width, expert width, used."""
    if "/" in name:
        return tuple(int(n) for n in name.split("/"))
    listed = subprocess.run([args.mote or str(ROOT / "build" / "mote"), "bench", "shapes"], check=True,
                            capture_output=True, text=True).stdout
    for line in listed.splitlines()[1:]:
        words = line.split()
        if words[0] == name:
            return tuple(int(n) for n in words[1:5])
    sys.exit("%s is no shape of `mote bench shapes`:\n%s" % (name, listed))


def run_mote(args, shape, act):
    """rows -> (microseconds, row of the table as a dict)."""
    command = [args.mote, "bench", "moe", "-D", "cuda", "--shape", shape, "--type", "mxfp4", "--routing", "uniform", "--csv",
               "--bandwidth", args.bandwidth, "-r", "5", "-M", ",".join(str(m) for m in args.rows)]
    if act != "default":
        command += ["--act", act]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print("# %s: exit %d: %s" % (" ".join(command), done.returncode, done.stderr.strip()), flush=True)
    return {int(r["rows"]): (float(r["us"]), r) for r in csv.DictReader(io.StringIO(done.stdout))}


# ---- what the peers share ----

class Routing:
    """m rows, k experts each, different ones: as sorted pairs. All tensors on `device`."""

    def __init__(self, torch, device, shape, m, seed):
        n_expert, _, _, k = shape
        draw = torch.Generator(device=device).manual_seed(seed)
        self.ids = torch.rand((m, n_expert), generator=draw, device=device).topk(k, dim=1).indices.sort(dim=1).values
        weights = torch.rand((m, k), generator=draw, device=device) + 0.1
        self.weights = weights / weights.sum(dim=1, keepdim=True)
        flat = self.ids.flatten()
        self.pair_of = flat.argsort(stable=True).int()    # sorted place -> pair
        self.place_of = self.pair_of.argsort().int()      # pair -> sorted place
        self.count = flat.bincount(minlength=n_expert).int()
        self.ends = self.count.cumsum(0).int()


def gaussian_mxfp4(torch, device, n_expert, n_row, n_col):
    """Encoded Gaussian rows drawn from a pool: codes [n_expert][n_row][n_col / 2], scales [n_expert][n_row][n_col / 32]."""
    x = torch.randn((POOL, n_col // 32, 32), device=device) / n_col ** 0.5
    exponent = torch.ceil(torch.log2(x.abs().amax(dim=2, keepdim=True) / 6)).clamp(-127, 127)
    edges = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=device)
    code = torch.bucketize(x.abs() / torch.exp2(exponent), edges).to(torch.uint8)
    code = (code | ((x < 0).to(torch.uint8) << 3)).reshape(POOL, n_col // 2, 2)
    code = code[:, :, 0] | (code[:, :, 1] << 4)
    scale = (exponent.squeeze(2) + 127).to(torch.uint8)
    pick = torch.randint(POOL, (n_expert, n_row), device=device)
    return code[pick], scale[pick]


# ---- the peers: prepare(torch, device, shape, args) once a shape, then block(state, routing, layer) ----

class Triton:
    """The whole block behind the router, W4A16."""

    def __init__(self, torch, device, shape, args):
        sys.path.insert(0, args.peers)
        from triton_kernels import matmul_ogs as ogs, swiglu, tensor
        from triton_kernels.matmul_ogs_details import opt_flags
        from triton_kernels.numerics import InFlexData
        from triton_kernels.tensor_details import layout
        self.torch, self.ogs, self.shape = torch, ogs, shape
        try:
            from triton_kernels.tensor_details.ragged_tensor import make_ragged_tensor_metadata_torch
            self.tiles = make_ragged_tensor_metadata_torch
            halves = ogs.FnSpecs("swiglu", swiglu.swiglu_fn, ("alpha", "limit"), reduction_n=2)
            self.activation = ogs.FusedActivation(halves, (1.0, 7.0))
        except ImportError:  # the older version
            from triton_kernels.routing import compute_expt_data_torch
            self.tiles = lambda count, n: compute_expt_data_torch(count, count.numel(), n)
            whole = ogs.FnSpecs("swiglu", swiglu.swiglu_fn, ("alpha", "limit"))
            self.activation = ogs.FusedActivation(whole, (1.0, 7.0), 2)
        opt_flags.update_opt_flags_constraints({"split_k": 1})
        n_expert, d, f, _ = shape

        def weights(n_row, n_col):
            code, scale = gaussian_mxfp4(torch, device, n_expert, n_row, n_col)
            w = tensor.convert_layout(tensor.wrap_torch_tensor(code.transpose(1, 2), dtype=tensor.FP4),
                                      layout.HopperMXValueLayout, mx_axis=1)
            s = tensor.convert_layout(tensor.wrap_torch_tensor(scale.transpose(1, 2)), layout.HopperMXScaleLayout, mx_axis=1,
                                      num_warps=args.warps)
            flex = ogs.FlexCtx(rhs_data=InFlexData())
            return w, ogs.PrecisionConfig(weight_scale=s, flex_ctx=flex)

        self.layers = [(weights(2 * f, d), weights(d, f)) for _ in range(LAYERS)]

    def inputs(self, routing):
        n_expert, d, _, k = self.shape
        m = routing.ids.shape[0]
        tiles = self.tiles(routing.count, m * k)
        gates = routing.weights.flatten()[routing.pair_of.long()].to(self.torch.bfloat16)
        x = self.torch.randn((m, d), device=routing.ids.device, dtype=self.torch.bfloat16)
        return (x, self.ogs.RoutingData(gates, routing.count, n_expert, k, tiles),
                self.ogs.GatherIndx(routing.pair_of, routing.place_of),
                self.ogs.ScatterIndx(routing.place_of, routing.pair_of))

    def block(self, inputs, layer):
        x, routing, gather, scatter = inputs
        (w1, precision1), (w2, precision2) = self.layers[layer]
        h = self.ogs.matmul_ogs(x, w1, None, routing, gather_indx=gather, precision_config=precision1,
                                fused_activation=self.activation)
        return self.ogs.matmul_ogs(h, w2, None, routing, scatter_indx=scatter, precision_config=precision2,
                                   gammas=routing.gate_scal)


class Grouped:
    """Two grouped products of sorted rows."""

    def __init__(self, torch, device, shape, args):
        self.torch, self.shape, self.device = torch, shape, device
        n_expert, d, f, _ = shape
        self.layers = [(self.weights(n_expert, 2 * f, d), self.weights(n_expert, d, f)) for _ in range(LAYERS)]

    def inputs(self, routing):
        _, d, f, k = self.shape
        pairs = routing.ids.shape[0] * k
        return self.rows(pairs, d), self.rows(pairs, f), routing.ends

    def block(self, inputs, layer):
        x, h, ends = inputs
        w1, w2 = self.layers[layer]
        self.product(x, w1, ends)
        return self.product(h, w2, ends)


class Bf16(Grouped):
    def weights(self, n_expert, n_row, n_col):
        pool = self.torch.randn((POOL, n_col), device=self.device).to(self.torch.bfloat16) / n_col ** 0.5
        return pool[self.torch.randint(POOL, (n_expert, n_row), device=self.device)].transpose(1, 2)

    def rows(self, n, n_col):
        return self.torch.randn((n, n_col), device=self.device, dtype=self.torch.bfloat16)

    def product(self, x, w, ends):
        return self.torch.nn.functional.grouped_mm(x, w, offs=ends)


class Fp8(Grouped):
    def weights(self, n_expert, n_row, n_col):
        pool = self.torch.randn((POOL, n_col), device=self.device).to(self.torch.float8_e4m3fn)
        pick = self.torch.randint(POOL, (n_expert, n_row), device=self.device)
        w = pool.view(self.torch.uint8)[pick].view(self.torch.float8_e4m3fn).transpose(1, 2)
        return w, self.torch.full((n_expert, n_row), n_col ** -0.5, device=self.device)

    def rows(self, n, n_col):
        x = self.torch.randn((n, n_col), device=self.device).to(self.torch.float8_e4m3fn)
        return x, self.torch.ones(n, device=self.device)

    def product(self, x, w, ends):
        return self.torch._scaled_grouped_mm(x[0], w[0], x[1], w[1], offs=ends, out_dtype=self.torch.bfloat16,
                                             use_fast_accum=True)


PEERS = {"triton": Triton, "bf16": Bf16, "fp8": Fp8}


def capture(torch, peer, routings):
    """A graph of BLOCKS blocks, each with its own routing while there are so many."""
    inputs = [peer.inputs(r) for r in routings]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles and warms up, outside the graph
        for i in range(len(inputs)):
            peer.block(inputs[i], i % LAYERS)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for b in range(BLOCKS):
            peer.block(inputs[b % len(inputs)], b % LAYERS)
    return graph, inputs


def replay(torch, graph):
    """Microseconds a block, of several replays that take about 50 ms together, five at least."""
    times = []
    graph.replay()
    torch.cuda.synchronize()
    while len(times) < 5 or (len(times) < 50 and sum(times) * BLOCKS < 50000):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end) / BLOCKS)
    return times


def run_peer(torch, peer, shape, m):
    n_set = BLOCKS if m <= 64 else 3  # odd: sets go round against layers
    routings = [Routing(torch, "cuda", shape, m, 100 + s) for s in range(n_set)]
    graph, inputs = capture(torch, peer, routings)
    times = replay(torch, graph)
    del graph, inputs
    torch.cuda.empty_cache()
    return times


# ---- the table ----

def guarded(what, call):
    """call(), or None and its error on the page: a peer that fails takes nobody else with it."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001
        last = traceback.extract_tb(error.__traceback__)[-1]
        print("# %s: %s: %s (%s:%d)" % (what, type(error).__name__, str(error)[:600], os.path.basename(last.filename),
                                        last.lineno), flush=True)
        return None


def table(name, shape, rows, mote, peers, acts):
    """mote: act -> rows -> [(us, csv row)]; peers: name -> rows -> [us]."""
    heads = ["M"]
    for act in acts:
        heads += ["mote %s us" % act, "of floor", "TFLOP/s"]
    for peer in peers:
        heads += ["%s us" % peer] + ["%s / mote %s" % (peer, act) for act in acts]
    lines = ["", "%s %s" % (name, "/".join(str(n) for n in shape)), "| %s |" % " | ".join(heads), "|%s" % ("---|" * len(heads))]
    for m in rows:
        cells, ours = [str(m)], {}
        for act in acts:
            seen = mote.get(act, {}).get(m, [])
            if not seen:
                cells += ["", "", ""]
                continue
            ours[act] = statistics.median(us for us, _ in seen)
            row = seen[0][1]
            work = float(row["tflop_s"]) * float(row["us"])
            cells += ["%.1f" % ours[act], "%.0f %%" % (100 * float(row["floor_us"]) / ours[act]), "%.0f" % (work / ours[act])]
        for peer in peers:
            times = peers[peer].get(m)
            us = statistics.median(times) if times else None
            cells.append("%.1f" % us if us else "")
            cells += ["%.2f" % (us / ours[act]) if us and act in ours else "" for act in acts]
        lines.append("| %s |" % " | ".join(cells))
    return "\n".join(lines)


def bench_shape(torch, args, name):
    shape = shape_of(args, name)
    mote = {act: {} for act in args.act}
    peers = {peer: {} for peer in args.peer}
    if not torch:
        peers = {}
    for number in range(args.rounds):
        for act in args.act:
            for m, seen in (guarded("mote %s" % act, lambda act=act: run_mote(args, name, act)) or {}).items():
                print("# mote %s M=%d: %.1f us" % (act, m, seen[0]), flush=True)
                mote[act].setdefault(m, []).append(seen)
        for peer in list(peers):
            made = guarded("%s, weights" % peer, lambda peer=peer: PEERS[peer](torch, "cuda", shape, args))
            for m in args.rows if made else []:
                times = guarded("%s, M=%d" % (peer, m), lambda m=m, made=made: run_peer(torch, made, shape, m))
                if times:
                    print("# %s M=%d: %.1f us" % (peer, m, statistics.median(times)), flush=True)
                    peers[peer].setdefault(m, []).extend(times)
            del made
            torch.cuda.empty_cache()
        print("# round %d of %d" % (number + 1, args.rounds))
        print(table(name, shape, args.rows, mote, peers, args.act), flush=True)


def main():
    args = parse()
    torch = None
    if args.peer:
        torch = guarded("torch", lambda: __import__("torch"))
    if torch:
        device = guarded("torch's CUDA", lambda: torch.cuda.get_device_name(0))
        torch = torch if device else None
    if torch:
        print("# %s, torch %s, CUDA %s" % (torch.cuda.get_device_name(0), torch.__version__, torch.version.cuda), flush=True)
    if not torch and not args.act:
        sys.exit("nothing to run")
    for name in args.shape:
        bench_shape(torch, args, name)


if __name__ == "__main__":
    main()
