"""Formats, rows to and from them."""

import numpy
import pytest
from conftest import normals, torch

import mote


def test_list():
    names = [f.name for f in mote.formats()]
    assert len(names) == len(set(names)) > 35
    assert {"q4_k", "mxfp4", "mlx_mxfp4", "affine4", "tq1_0", "bf16"} <= set(names)
    assert mote.version().count(".") == 2 and mote.library_path()


@pytest.mark.parametrize("format", [f.name for f in mote.formats() if f.can_quantise])
def test_round_trip(format):
    x = normals(3, 40, 512)
    w = mote.quantise(x, format)
    back = mote.dequantise(w)
    assert back.shape == x.shape and back.dtype == torch.float32
    size = sum(a.numel() * a.element_size() for a in (w.data, w.scale, w.bias) if a is not None)
    bits = min(8 * size / x.numel(), 8)
    budget = (
        0.7 if bits < 2.5 else 2 ** (3.4 - 2 * bits)
    )  # a bit is worth a factor of four; two bits of ternary codes are not two
    assert float((back - x).square().sum() / x.square().sum()) < budget
    # Many rows on many threads are the rows one by one.
    one = mote.quantise(x[1, 7], format)
    assert torch.equal(one.data, w.data[1, 7])
    assert torch.equal(mote.dequantise(one), back[1, 7])
    # numpy gives the same bytes.
    assert numpy.array_equal(mote.quantise(x.numpy(), format).data, w.data.numpy())


def test_affine_scales():
    x = normals(4, 256)
    for scale_type, dtype in (("f16", torch.float16), (torch.bfloat16, torch.bfloat16), ("f32", torch.float32)):
        w = mote.quantise(x, "affine4", group=32, scale_type=scale_type)
        assert w.scale.dtype == dtype and w.scale.shape == w.bias.shape == (4, 8)
        assert float((mote.dequantise(w) - x).norm() / x.norm()) < 0.12


def test_bf16_input_and_importance():
    x = normals(4, 256)
    assert torch.equal(mote.quantise(x.bfloat16(), "q4_0").data, mote.quantise(x.bfloat16().float(), "q4_0").data)
    importance = torch.ones(256)
    importance[:16] = 1000
    plain, weighted = mote.quantise(x, "q4_k"), mote.quantise(x, "q4_k", importance=importance)
    off = lambda w: float((mote.dequantise(w) - x)[:, :16].square().sum())  # noqa: E731
    assert off(weighted) < off(plain)


def test_mxfp4_rule():
    x = torch.tensor([[6.0, -3.0, 0.24, 0.25, 0.26, 5.0, 5.1, 1.25] + 24 * [0.0]])
    codes, scales = mote.mxfp4_quantise(x)
    assert scales.tolist() == [[127]]
    assert mote.dequantise(mote.Weights("mxfp4", codes, scales))[0, :8].tolist() == [
        6.0,
        -3.0,
        0.0,
        0.0,
        0.5,
        4.0,
        6.0,
        1.0,
    ]
    codes, scales = mote.mxfp4_quantise(torch.full((1, 32), float("nan")))
    assert scales.tolist() == [[255]] and not codes.any()


def test_refused():
    x = normals(2, 256)
    for status, text, call in (
        ("ARGUMENT", "'q9'", lambda: mote.quantise(x, "q9")),
        ("UNSUPPORTED", "no encoder", lambda: mote.quantise(x, "iq1_m")),
        ("ARGUMENT", "250 columns", lambda: mote.quantise(x[:, :250], "q4_k")),
        ("NUMERIC", "NaN", lambda: mote.quantise(x * float("nan"), "q4_k")),
        ("ARGUMENT", "groups of 48", lambda: mote.quantise(x, "affine4", group=48)),
        ("ARGUMENT", "expected floats", lambda: mote.quantise(x.int(), "q4_k")),
        ("ARGUMENT", "importance", lambda: mote.quantise(x, "q4_k", importance=torch.ones(3))),
        (
            "ARGUMENT",
            "whole blocks",
            lambda: mote.dequantise(mote.Weights("q4_k", torch.zeros(2, 100, dtype=torch.uint8))),
        ),
        (
            "ARGUMENT",
            "scale has",
            lambda: mote.dequantise(
                mote.Weights("mxfp4", torch.zeros(2, 64, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8))
            ),
        ),
        ("ARGUMENT", "32", lambda: mote.mxfp4_quantise(x[:, :33])),
    ):
        with pytest.raises(mote.Error, match=text) as info:
            call()
        assert info.value.status == status
