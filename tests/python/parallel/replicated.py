"""Models, data and references that the tests of DataParallel share."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycomm import nn
from pycomm.nn import Array

COLLECTIVES = ("all_reduce", "broadcast", "all_gather_object", "broadcast_object", "barrier")


class Counting:
    """A communicator that notes the collectives it is asked for."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in COLLECTIVES:
            self.calls.append(name)
        return getattr(self.comm, name)


class RunningMean(nn.Module):
    """Passes its input on and keeps the mean of what it saw in a buffer."""

    def __init__(self, width: int) -> None:
        self.mean = nn.Buffer(np.zeros(width))
        self.batches = nn.Buffer(np.zeros((), np.int64))

    def forward(self, x: Array) -> tuple[Array, None]:
        if self.training:
            self.mean.data += 0.1 * (x.mean(axis=0) - self.mean.data)
            self.batches.data += 1
        return x, None

    def backward(self, context: None, grad: Array) -> Array:
        return grad


class Branches(nn.Module):
    """Only one of its two layers takes part."""

    def __init__(self) -> None:
        self.a = nn.Linear(3, 2, rng=1, dtype=np.float64)
        self.b = nn.Linear(3, 2, rng=2, dtype=np.float64)
        self.use = "a"

    def forward(self, x: Array) -> tuple[Array, Any]:
        layer = self.a if self.use == "a" else self.b
        y, context = layer.forward(x)
        return y, (layer, context)

    def backward(self, context: Any, grad: Array) -> Any:
        return context[0].backward(context[1], grad)


def make_model(seed: int = 0) -> nn.Sequential:
    rng = np.random.default_rng(seed)
    return nn.Sequential(
        nn.Linear(6, 16, rng=rng, dtype=np.float64),
        nn.ReLU(),
        nn.Linear(16, 16, rng=rng, dtype=np.float64),
        nn.GELU(),
        nn.LayerNorm(16, dtype=np.float64),
        nn.Linear(16, 4, rng=rng, dtype=np.float64),
    )


def batch(rows: int, seed: int = 1) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 6)), rng.integers(0, 4, rows)


def gradients(model: nn.Module) -> dict[str, Array]:
    grads = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        grads[name] = parameter.grad.copy()
    return grads


def backward(model: Any, x: Array, labels: Array, divisor: float | None = None) -> Array:
    y, context = model.forward(x)
    grad_in: Array = model.backward(context, nn.cross_entropy(y, labels, divisor)[1])
    return grad_in


def reference(x: Array, labels: Array, model: nn.Module | None = None) -> dict[str, Array]:
    model = model or make_model()
    backward(model, x, labels)
    return gradients(model)


def assert_same(got: dict[str, Array], expected: dict[str, Array], rtol: float = 1e-12) -> None:
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=rtol, atol=1e-15, err_msg=name)
