"""What layers promise beyond their gradients: dtypes, seeds, empty batches, contexts, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from pycomm import nn
from pycomm.errors import ArgumentError
from pycomm.nn import Module


def small_model(dtype: type, seed: int = 3) -> nn.Sequential:
    rng = np.random.default_rng(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, rng=rng, dtype=dtype),
        nn.ReLU(),
        nn.Conv2d(4, 2, 3, stride=2, rng=rng, dtype=dtype),
        nn.GELU(),
        nn.Flatten(),
        nn.LayerNorm(8, dtype=dtype),
        nn.Linear(8, 5, rng=rng, dtype=dtype),
        nn.GELU("tanh"),
        nn.Linear(5, 3, rng=rng, dtype=dtype),
    )


def gradient(parameter: nn.Parameter) -> nn.Array:
    assert parameter.grad is not None
    return parameter.grad


def images(rows: int, dtype: type = np.float64) -> nn.Array:
    return np.random.default_rng(rows).standard_normal((rows, 1, 6, 6)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_is_kept_everywhere(dtype: type) -> None:
    model = small_model(dtype)
    x = images(4, dtype)
    y, context = model.forward(x)
    loss, grad = nn.cross_entropy(y, np.array([0, 2, 1, 1]))
    assert y.dtype == grad.dtype == model.backward(context, grad).dtype == dtype
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.dtype == dtype, name
    before = [p.data for p in model.parameters()]
    for optimizer in (nn.SGD(model, 0.1, momentum=0.9), nn.Adam(model, 0.01)):
        optimizer.step()
        assert all(
            p.data is b and p.data.dtype == dtype
            for p, b in zip(model.parameters(), before, strict=True)
        )


def test_float32_and_float64_start_from_the_same_numbers() -> None:
    single, double = small_model(np.float32), small_model(np.float64)
    for (name, a), (_, b) in zip(single.named_parameters(), double.named_parameters(), strict=True):
        np.testing.assert_array_equal(a.data, b.data.astype(np.float32), err_msg=name)


def test_a_seed_repeats_and_another_does_not() -> None:
    first, again, other = (small_model(np.float32, seed).state_dict() for seed in (3, 3, 4))
    assert all((first[name] == again[name]).all() for name in first)
    assert any((first[name] != other[name]).any() for name in first)


def test_microbatches_in_flight_add_up_to_the_batch() -> None:
    """All forwards first, then the backwards in another order."""
    model = small_model(np.float64)
    x, labels = images(8), np.random.default_rng(0).integers(0, 3, 8)
    y, context = model.forward(x)
    whole, grad = nn.cross_entropy(y, labels)
    grad_x = model.backward(context, grad)
    expected = {name: gradient(p) for name, p in model.named_parameters()}

    model.zero_grad()
    parts = [slice(0, 3), slice(3, 4), slice(4, 8)]
    passes = [model.forward(x[part]) for part in parts]
    losses = [0.0] * 3
    for index in (1, 2, 0):
        y, context = passes[index]
        losses[index], grad = nn.cross_entropy(y, labels[parts[index]], divisor=8)
        got = model.backward(context, grad)
        np.testing.assert_allclose(got, grad_x[parts[index]], rtol=1e-12, atol=1e-15)
    assert sum(losses) == pytest.approx(whole, rel=1e-14)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(gradient(parameter), expected[name], rtol=1e-11, atol=1e-14)


def test_a_batch_without_rows_passes() -> None:
    model = small_model(np.float32)
    y, context = model.forward(images(0, np.float32))
    loss, grad = nn.cross_entropy(y, np.zeros(0, np.int64))
    assert loss == 0.0 and y.shape == (0, 3)
    assert model.backward(context, grad).shape == (0, 1, 6, 6)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_erf_and_gelu_are_exact() -> None:
    x = np.concatenate([np.linspace(-7, 7, 40001), [np.inf, -np.inf, 1e-300, -1e-20]])
    exact = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(nn.erf(x), exact, rtol=1e-15, atol=2e-16)
    assert np.isnan(nn.erf(np.array([np.nan]))).all()
    x = x[:-4]
    gelu = np.array([v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x])
    np.testing.assert_allclose(nn.GELU()(x), gelu, rtol=0, atol=2e-15)
    np.testing.assert_allclose(nn.GELU("tanh")(x), gelu, rtol=0, atol=5e-4)


def test_cross_entropy_survives_huge_scores() -> None:
    logits = np.array([[1000.0, 0.0], [0.0, -1000.0]], np.float32)
    loss, grad = nn.cross_entropy(logits, np.array([1, 0]))
    assert loss == 500.0
    np.testing.assert_array_equal(grad, np.array([[0.5, -0.5], [0.0, 0.0]], np.float32))


def call(layer: Module, *shape: int, dtype: type = np.float32) -> Callable[[], object]:
    return lambda: layer.forward(np.zeros(shape, dtype))


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "linear width": (call(nn.Linear(4, 2), 3, 5), r"Linear takes \(\.\.\., 4\).*\(3, 5\)"),
    "conv channels": (call(nn.Conv2d(2, 1, 3), 1, 3, 8, 8), r"\(rows, 2, .*\(1, 3, 8, 8\)"),
    "conv axes": (call(nn.Conv2d(2, 1, 3), 2, 8, 8), "Conv2d takes"),
    "conv too small": (call(nn.Conv2d(1, 1, 5, padding=1), 1, 1, 2, 9), "2x9 image"),
    "conv stride": (lambda: nn.Conv2d(1, 1, 3, stride=0), "stride .* >= 1, not 0"),
    "conv padding": (lambda: nn.Conv2d(1, 1, 3, padding=(1, -1)), r"padding .* not \(1, -1\)"),
    "norm shape": (call(nn.LayerNorm((2, 3)), 4, 3), "LayerNorm takes"),
    "linear inputs": (lambda: nn.Linear(-1, 3), "in_features is -1, expected a number from 1"),
    "linear outputs": (lambda: nn.Linear(2, 2.5), "out_features is 2.5"),  # type: ignore[arg-type]
    "conv inputs": (lambda: nn.Conv2d(0, 1, 3), "in_channels is 0, expected a number from 1"),
    "embedding size": (lambda: nn.Embedding(0, 2), "count is 0, expected a number from 1"),
    "embedding floats": (call(nn.Embedding(3, 2), 4), "integers, not float32"),
    "embedding range": (
        lambda: nn.Embedding(3, 2).forward(np.array([0, 3])),
        r"\[0, 3\), the input spans \[0, 3\]",
    ),
    "gelu": (lambda: nn.GELU("fast"), "'none' or 'tanh', not 'fast'"),
    "dtype": (lambda: nn.Linear(2, 2, dtype=np.float16), "float32 or float64, not float16"),
    "layer": (lambda: nn.Sequential(nn.ReLU(), "x"), "modules, not str"),  # type: ignore[arg-type]
    "label range": (
        lambda: nn.cross_entropy(np.zeros((3, 2)), np.array([0, 1, 2])),
        r"row 2 has label 2, outside \[0, 2\)",
    ),
    "label shape": (
        lambda: nn.cross_entropy(np.zeros((3, 2)), np.array([0, 1])),
        r"labels of shape \(3,\), not int64 of shape \(2,\)",
    ),
    "label type": (lambda: nn.cross_entropy(np.zeros((1, 2)), np.array([0.0])), "not float64"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_says_what_was_expected(name: str) -> None:
    wrong, message = BAD[name]
    with pytest.raises(ArgumentError, match=message):
        wrong()
