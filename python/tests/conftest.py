"""What the tests share: a block in float64, weights in any format, tensors of torch or arrays of numpy."""

import pytest

import mote

torch = pytest.importorskip("torch")

N_EXPERT, N_USED, D_MODEL, N_FF = 6, 3, 512, 256


def has_gpu():
    if not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= (8, 0)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not has_gpu(), reason="no GPU"))]


def normals(*shape, seed=1, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


class Reference:
    """Weights in a format, and the block over what they decode to, in float64."""

    def __init__(self, format, seed=1, device="cpu", **options):
        self.gate = mote.quantise(
            normals(N_EXPERT, N_FF, D_MODEL, seed=seed, scale=D_MODEL**-0.5).to(device), format, **options
        )
        self.up = mote.quantise(
            normals(N_EXPERT, N_FF, D_MODEL, seed=seed + 1, scale=D_MODEL**-0.5).to(device), format, **options
        )
        self.down = mote.quantise(
            normals(N_EXPERT, D_MODEL, N_FF, seed=seed + 2, scale=N_FF**-0.5).to(device), format, **options
        )

    def __call__(self, x, ids, weights, residual=None):
        wide = [mote.dequantise(w).cpu().double() for w in (self.gate, self.up, self.down)]
        x, ids, weights = x.cpu().double(), ids.cpu().long(), weights.cpu().double()
        rows, flat = x.reshape(-1, D_MODEL), ids.reshape(-1, N_USED)
        y = torch.zeros_like(rows)
        for i in range(rows.shape[0]):
            for s in range(N_USED):
                e = flat[i, s]
                hidden = torch.nn.functional.silu(wide[0][e] @ rows[i]) * (wide[1][e] @ rows[i])
                y[i] += weights.reshape(-1, N_USED)[i, s] * (wide[2][e] @ hidden)
        y = y.reshape(x.shape)
        return y if residual is None else y + residual.cpu().double()


def routed(*lead, seed=7, device="cpu", dtype=torch.float32):
    """x, ids (int64, as topk has them) and weights."""
    x = normals(*lead, D_MODEL, seed=seed).to(dtype)
    scores = normals(*lead, N_EXPERT, seed=seed + 1)
    weights, ids = torch.topk(torch.softmax(scores, -1), N_USED)
    return x.to(device), ids.to(device), weights.to(device)


def error(y, want):
    return float((y.cpu().double() - want).norm() / want.norm())
