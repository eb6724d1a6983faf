"""Every layer's backward against central differences, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pycomm import nn
from pycomm.nn import Array

STEP = 1e-6


def numeric_gradient(array: Array, value: Any) -> Array:
    """Differentiate value() with respect to every element of `array`, in place and restored."""
    grad = np.full(array.shape, np.nan)
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + STEP
        above = value()
        array[index] = kept - STEP
        below = value()
        array[index] = kept
        grad[index] = (above - below) / (2 * STEP)
    return grad


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3, rng=1, dtype=np.float64), (5, 4)),
    "linear-3d": (lambda: nn.Linear(4, 3, rng=1, dtype=np.float64), (2, 3, 4)),
    "linear-no-bias": (lambda: nn.Linear(4, 3, bias=False, rng=1, dtype=np.float64), (5, 4)),
    "conv": (lambda: nn.Conv2d(2, 3, 3, rng=1, dtype=np.float64), (2, 2, 5, 4)),
    "conv-padding": (lambda: nn.Conv2d(2, 3, 3, padding=1, rng=1, dtype=np.float64), (2, 2, 4, 3)),
    "conv-stride": (
        lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1, rng=1, dtype=np.float64),
        (2, 2, 6, 5),
    ),
    "conv-uneven": (
        lambda: nn.Conv2d(
            1, 2, (2, 3), stride=(3, 2), padding=(0, 2), bias=False, rng=1, dtype=np.float64
        ),
        (2, 1, 7, 4),
    ),
    "relu": (nn.ReLU, (4, 5)),
    "gelu": (nn.GELU, (4, 5)),
    "gelu-tanh": (lambda: nn.GELU("tanh"), (4, 5)),
    "norm": (lambda: nn.LayerNorm(5, dtype=np.float64), (4, 5)),
    "norm-2-axes": (lambda: nn.LayerNorm((3, 4), dtype=np.float64), (2, 3, 4)),
    "flatten": (nn.Flatten, (3, 2, 4)),
    "sequential": (
        lambda: nn.Sequential(
            nn.Linear(4, 6, rng=1, dtype=np.float64),
            nn.GELU(),
            nn.LayerNorm(6, dtype=np.float64),
            nn.Linear(6, 2, rng=2, dtype=np.float64),
        ),
        (3, 4),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    make, shape = LAYERS[name]
    layer = make()
    for parameter in layer.parameters():  # biases and scales must not be at their special start
        parameter.data += 0.1 * rng().standard_normal(parameter.data.shape)
    x = rng().standard_normal(shape)
    y, context = layer.forward(x)
    weights = rng().standard_normal(y.shape)
    grad = layer.backward(context, weights)

    def value() -> float:
        return float((layer(x) * weights).sum())

    np.testing.assert_allclose(grad, numeric_gradient(x, value), rtol=1e-6, atol=1e-8)
    for parameter in layer.parameters():
        expected = numeric_gradient(parameter.data, value)
        np.testing.assert_allclose(parameter.grad, expected, rtol=1e-6, atol=1e-8)


def test_embedding() -> None:
    layer = nn.Embedding(6, 3, rng=1, dtype=np.float64)
    x = np.array([[0, 5, 2], [2, 2, 4]])
    y, context = layer.forward(x)
    np.testing.assert_array_equal(y, layer.weight.data[x])
    weights = rng().standard_normal(y.shape)
    assert layer.backward(context, weights) is None
    expected = numeric_gradient(layer.weight.data, lambda: float((layer(x) * weights).sum()))
    assert layer.weight.grad is not None
    np.testing.assert_allclose(layer.weight.grad, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5)])
def test_cross_entropy(shape: tuple[int, ...]) -> None:
    logits = 3 * rng().standard_normal(shape)
    labels = rng().integers(0, 5, shape[:-1])
    loss, grad = nn.cross_entropy(logits, labels)
    shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    chosen = np.take_along_axis(shares, labels[..., None], axis=-1)
    assert loss == pytest.approx(float(-np.log(chosen).mean()), abs=1e-14)
    assert type(loss) is float
    by_row = [
        nn.cross_entropy(logits[i : i + 1], labels[i : i + 1], shape[0]) for i in range(shape[0])
    ]
    assert loss == pytest.approx(sum(part for part, _ in by_row), abs=1e-14)
    np.testing.assert_allclose(grad, np.concatenate([g for _, g in by_row]), rtol=1e-14)
    expected = numeric_gradient(logits, lambda: nn.cross_entropy(logits, labels)[0])
    np.testing.assert_allclose(grad, expected, rtol=1e-6, atol=1e-9)


def test_conv_is_the_sum_over_patches() -> None:
    layer = nn.Conv2d(2, 3, (2, 3), stride=(2, 1), padding=(1, 0), rng=1, dtype=np.float64)
    assert layer.bias is not None
    layer.bias.data[:] = [1.0, -2.0, 3.0]
    x = rng().standard_normal((2, 2, 5, 4))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    expected = np.full((2, 3, 3, 2), np.nan)
    for i, j in np.ndindex(3, 2):
        patch = padded[:, None, :, 2 * i : 2 * i + 2, j : j + 3]
        expected[:, :, i, j] = (patch * layer.weight.data).sum(axis=(2, 3, 4)) + layer.bias.data
    np.testing.assert_allclose(layer(x), expected, rtol=1e-13, atol=1e-13)
