"""The block against float64, in every layout and type; what it refuses."""

import gc
import threading

import numpy
import pytest
from conftest import D_MODEL, DEVICES, N_EXPERT, N_FF, N_USED, Reference, error, normals, routed, torch

import mote

FORMATS = ["mxfp4", "mlx_mxfp4", "q4_k", "iq2_xxs", "tq2_0", "q8_0", "affine4", "bf16"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format", FORMATS)
def test_formats(format, device):
    reference = Reference(format)
    moe = mote.MoE(gate=reference.gate, up=reference.up, down=reference.down, n_used=N_USED, device=device)
    for n_row in (1, 5, 33, 70):
        x, ids, weights = routed(n_row, device=device)
        y = moe(x, ids, weights)
        assert y.dtype == torch.float32 and y.shape == x.shape and y.device == x.device
        assert error(y, reference(x, ids, weights)) < 0.03
    moe.check()


@pytest.mark.parametrize("device", DEVICES)
def test_bf16(device):
    reference = Reference("mlx_mxfp4")
    for dtype, out_dtype in ((torch.bfloat16, None), (torch.float16, torch.float32), (torch.float32, torch.bfloat16)):
        moe = mote.MoE(
            gate=reference.gate,
            up=reference.up,
            down=reference.down,
            n_used=N_USED,
            device=device,
            act="f32",
            dtype=dtype,
            out_dtype=out_dtype,
        )
        x, ids, weights = routed(9, device=device, dtype=dtype)
        residual = normals(9, D_MODEL).to(device, out_dtype or dtype)
        y = moe(x, ids, weights, residual=residual)
        assert y.dtype == (out_dtype or dtype)
        budget = 0.01 if device == "cuda" else 0.003
        assert error(y, reference(x, ids, weights, residual)) < budget
        out = residual
        assert moe(x, ids, weights, out=out, residual=residual) is out
        assert torch.equal(out, y)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["stacked", "up_gate", "interleaved"])
@pytest.mark.parametrize("format", ["mlx_mxfp4", "affine4", "q4_k"])
def test_fused_gate_up(format, layout, device):
    reference = Reference(format, device=device)

    def join(name):
        gate, up = getattr(reference.gate, name), getattr(reference.up, name)
        if gate is None:
            return None
        if layout == "interleaved":
            return torch.stack([gate, up], 2).flatten(1, 2)
        return torch.cat([gate, up] if layout == "stacked" else [up, gate], 1)

    fused = tuple(a for a in map(join, ("data", "scale", "bias")) if a is not None)
    moe = mote.MoE(gate_up=fused, down=reference.down, layout=layout, format=format, n_used=N_USED)
    assert moe.device.startswith(device)
    x, ids, weights = routed(2, 4, device=device)
    same = mote.MoE(gate=reference.gate, up=reference.up, down=reference.down, n_used=N_USED)
    y = moe(x, ids, weights)
    assert torch.equal(y, same(x, ids, weights))
    assert error(y, reference(x, ids, weights)) < 0.03


def test_as_checkpoints_have_them():
    """ "mxfp4" with planes, blocks apart as gpt-oss has them, and plain float tensors."""
    reference = Reference("mlx_mxfp4")
    x, ids, weights = routed(4)
    want = mote.MoE(gate=reference.gate, up=reference.up, down=reference.down, n_used=N_USED)(x, ids, weights)
    planes = [
        (w.data.reshape(*w.data.shape[:-1], -1, 16), w.scale) for w in (reference.gate, reference.up, reference.down)
    ]
    moe = mote.MoE(gate=planes[0], up=planes[1], down=planes[2], format="mxfp4", n_used=N_USED)
    assert (moe.n_expert, moe.d_model, moe.n_ff) == (N_EXPERT, D_MODEL, N_FF)
    assert torch.equal(moe(x, ids, weights), want)
    floats = [mote.dequantise(w).to(torch.bfloat16) for w in (reference.gate, reference.up, reference.down)]  # exact
    moe = mote.MoE(gate=floats[0], up=floats[1], down=floats[2], n_used=N_USED)
    assert error(moe(x, ids, weights), reference(x, ids, weights)) < 1e-5


def test_relu2_and_limits():
    reference = Reference("q8_0")
    x, ids, weights = routed(3)
    moe = mote.MoE(up=reference.up, down=reference.down, n_used=N_USED, activation="relu2", act="f32")
    up, down = mote.dequantise(reference.up).double(), mote.dequantise(reference.down).double()
    want = torch.stack(
        [
            sum(
                weights[i, s].double() * (down[e] @ torch.relu(up[e] @ x[i].double()) ** 2)
                for s, e in enumerate(ids[i])
            )
            for i in range(3)
        ]
    )
    assert error(moe(x, ids, weights), want) < 1e-5
    clamped = mote.MoE(
        gate=reference.gate,
        up=reference.up,
        down=reference.down,
        n_used=N_USED,
        activation="swiglu_clamped",
        limit=0.01,
    )
    assert clamped(x, ids, weights).abs().max() < moe(x, ids, weights).abs().max()


def test_mxfp4_activations():
    reference = Reference("mlx_mxfp4")
    x, ids, weights = routed(4)
    exact = mote.MoE(gate=reference.gate, up=reference.up, down=reference.down, n_used=N_USED, act="mxfp4")
    y = exact(x, ids, weights)
    codes, scales = mote.mxfp4_quantise(x)
    rounded = mote.dequantise(mote.Weights("mxfp4", codes, scales))
    assert 0.05 < error(y, reference(x, ids, weights)) < 0.3
    # Rows that are MXFP4 already stay as they are.
    assert torch.equal(exact(rounded, ids, weights), y)


@pytest.mark.parametrize("device", DEVICES)
def test_unordered(device):
    reference = Reference("mlx_mxfp4", device=device)
    parts = dict(gate=reference.gate, up=reference.up, down=reference.down, n_used=N_USED, act="mxfp4")
    ordered, unordered = mote.MoE(**parts), mote.MoE(ordered=False, **parts)
    for n in (1, 4, 100):
        x, ids, weights = routed(n, device=device)
        residual = torch.randn(x.shape, device=device)
        y = ordered(x, ids, weights, residual=residual)
        assert torch.equal(ordered(x, ids, weights, residual=residual), y)
        want = y.cpu().double()
        assert error(unordered(x, ids, weights, residual=residual), want) < 1e-2  # of results in bf16
        assert error(unordered(x, ids, weights, residual=residual, out=residual), want) < 1e-2  # in place


def test_numpy():
    reference = Reference("q4_k")
    x, ids, weights = routed(6)
    numpy_weights = [mote.Weights(w.format, w.data.numpy()) for w in (reference.gate, reference.up, reference.down)]
    moe = mote.MoE(
        gate=numpy_weights[0], up=numpy_weights[1], down=numpy_weights[2], n_used=N_USED, dtype=numpy.float32
    )
    y = moe(x.numpy(), ids.numpy(), weights.numpy())
    assert isinstance(y, numpy.ndarray) and y.dtype == numpy.float32
    same = mote.MoE(gate=reference.gate, up=reference.up, down=reference.down, n_used=N_USED)
    assert numpy.array_equal(y, same(x, ids, weights).numpy())


def test_no_rows_and_strides():
    reference = Reference("q8_0")
    moe = mote.MoE(gate=reference.gate, up=reference.up, down=reference.down, n_used=N_USED)
    x, ids, weights = routed(0)
    assert moe(x, ids, weights).shape == (0, D_MODEL)
    x, ids, weights = routed(8)
    y = moe(x[::2], ids[::2], weights[::2])  # with gaps
    assert torch.equal(y, moe(x, ids, weights)[::2])


def test_weights_live_as_long_as_the_block():
    reference = Reference("q8_0")
    moe = mote.MoE(gate=reference.gate, up=reference.up, down=reference.down, n_used=N_USED)
    x, ids, weights = routed(2)
    y = moe(x, ids, weights)
    del reference
    gc.collect()
    hog = [torch.full((N_EXPERT, N_FF, D_MODEL), 7, dtype=torch.uint8) for _ in range(8)]
    assert torch.equal(moe(x, ids, weights), y)
    del hog
    moe.close()
    moe.close()
    with pytest.raises(mote.Error, match="closed"):
        moe(x, ids, weights)


def test_threads():
    reference = Reference("q4_k")
    moe = mote.MoE(gate=reference.gate, up=reference.up, down=reference.down, n_used=N_USED)
    x, ids, weights = routed(12)
    want, wrong = moe(x, ids, weights), []

    def often():
        for _ in range(20):
            if not torch.equal(moe(x, ids, weights), want):
                wrong.append(1)

    threads = [threading.Thread(target=often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- what is refused ----


def refused(status, text, call):
    with pytest.raises(mote.Error, match=text) as info:
        call()
    assert info.value.status == status


def test_refused_blocks():
    r = Reference("mlx_mxfp4")
    good = {"gate": r.gate, "up": r.up, "down": r.down, "n_used": N_USED}

    def make(**changes):
        return lambda: mote.MoE(**{**good, **changes})

    refused("ARGUMENT", "no format", make(gate=r.gate.data))
    refused("ARGUMENT", "'q9'", make(gate=(r.gate.data, r.gate.scale), format="q9"))
    refused("ARGUMENT", "gate: scale has 1 numbers", make(gate=(r.gate.data, r.gate.scale[:1, :1, :1]), format="mxfp4"))
    refused("ARGUMENT", "gate: scale is torch.int32", make(gate=(r.gate.data, r.gate.scale.int()), format="mxfp4"))
    refused("ARGUMENT", "gate: 5 experts", make(gate=mote.Weights("mxfp4", r.gate.data[:5], r.gate.scale[:5])))
    refused("ARGUMENT", "up: 6 experts of 512 rows of 256", make(up=r.down))
    refused("ARGUMENT", "down: shape", make(down=mote.Weights("mxfp4", r.down.data[0], r.down.scale[0])))
    refused("ARGUMENT", "gate", make(gate=None, gate_up=r.gate))
    refused("ARGUMENT", "expected gate and up", make(up=None))
    refused("ARGUMENT", "layout 'zigzag'", make(layout="zigzag"))
    refused("ARGUMENT", "activation 'gelu'", make(activation="gelu"))
    refused("ARGUMENT", "activation type", make(act="int3"))
    refused("ARGUMENT", "experts", make(n_used=N_EXPERT + 1))
    refused("ARGUMENT", "dtype", make(dtype=torch.int8))
    refused("ARGUMENT", "device 'tpu'", make(device="tpu"))
    refused(
        "ARGUMENT",
        "factor has shape",
        make(down=mote.Weights("mxfp4", r.down.data, r.down.scale, factor=torch.ones(2))),
    )
    refused("ARGUMENT", "list, expected a torch tensor", make(gate=[[1, 2]]))


def test_refused_calls():
    r = Reference("q8_0")
    moe = mote.MoE(gate=r.gate, up=r.up, down=r.down, n_used=N_USED)
    x, ids, weights = routed(4)
    refused("ARGUMENT", "x: shape", lambda: moe(x[:, :100], ids, weights))
    refused("ARGUMENT", "ids: shape", lambda: moe(x, ids[:3], weights))
    refused("ARGUMENT", "weights: shape", lambda: moe(x, ids, weights[:, :1]))
    refused("ARGUMENT", "expected f32", lambda: moe(x.double().bfloat16(), ids, weights))
    refused("ARGUMENT", "ids: torch.float32, expected integers", lambda: moe(x, weights, weights))
    refused("ARGUMENT", "weights: torch.int64, expected floats", lambda: moe(x, ids, ids))
    refused("ARGUMENT", "out: shape", lambda: moe(x, ids, weights, out=x[:2]))
    refused("ARGUMENT", "out: has gaps", lambda: moe(x, ids, weights, out=torch.empty(D_MODEL, 4).t()))
    refused("ARGUMENT", "list", lambda: moe([1.0], ids, weights))
    refused(
        "ARGUMENT",
        "expert 6 of 6 asked for by row 2",
        lambda: moe(x, torch.full_like(ids, 0).index_fill(0, torch.tensor([2]), 6), weights),
    )
    y = moe(x, ids, weights)  # nothing above has hurt it
    assert error(y, r(x, ids, weights)) < 0.03


# ---- GPU alone ----

needs_gpu = DEVICES[1].marks[0]


@needs_gpu
def test_graph():
    reference = Reference("mlx_mxfp4", device="cuda")
    moe = mote.MoE(gate=reference.gate, up=reference.up, down=reference.down, n_used=N_USED, dtype=torch.bfloat16)
    x, ids, weights = routed(8, device="cuda", dtype=torch.bfloat16)
    moe(x, ids, weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = moe(x, ids, weights)
    for seed in (20, 30):
        for to, value in zip((x, ids, weights), routed(8, seed=seed, device="cuda", dtype=torch.bfloat16)):
            to.copy_(value)
        graph.replay()
        assert error(y, reference(x, ids, weights)) < 0.02
        moe(*routed(200, device="cuda", dtype=torch.bfloat16))  # a larger workspace leaves the recorded one alone
    moe.check()


@needs_gpu
def test_streams_and_bad_ids():
    reference = Reference("q4_k", device="cuda")
    moe = mote.MoE(gate=reference.gate, up=reference.up, down=reference.down, n_used=N_USED)
    x, ids, weights = routed(16, device="cuda")
    want = moe(x, ids, weights)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        assert torch.equal(moe(x, ids, weights), want)
        moe(x, ids + 100, weights)
        refused("ARGUMENT", "expert 1", moe.check)
        moe.check()
    refused("ARGUMENT", "x: on cpu", lambda: moe(x.cpu(), ids, weights))
