"""Names, sharing, freezing, modes and state of modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pycomm import nn
from pycomm.errors import ArgumentError
from pycomm.nn import Array


class Residual(nn.Module):
    """x + body(x), with a running count in a buffer."""

    def __init__(self, width: int, seed: int) -> None:
        self.body = nn.Sequential(nn.Linear(width, width, rng=seed, dtype=np.float64), nn.ReLU())
        self.parts = [nn.Linear(width, width, rng=seed + 1, dtype=np.float64)]
        self.count = nn.Buffer(np.zeros(1, np.int64))

    def forward(self, x: Array) -> tuple[Array, Any]:
        if self.training:
            self.count.data += x.shape[0]
        inner, first = self.body.forward(x)
        y, second = self.parts[0].forward(inner)
        return x + y, (first, second)

    def backward(self, context: Any, grad: Array) -> Array:
        inner = self.parts[0].backward(context[1], grad)
        back: Array = self.body.backward(context[0], inner)
        return grad + back


def test_names_follow_attributes_in_order() -> None:
    model = nn.Sequential(nn.Flatten(), Residual(3, 1))
    assert [name for name, _ in model.named_parameters()] == [
        "1.body.0.weight",
        "1.body.0.bias",
        "1.parts.0.weight",
        "1.parts.0.bias",
    ]
    assert [name for name, _ in model.named_buffers()] == ["1.count"]
    offset = nn.Sequential(Residual(3, 1), first_index=5)
    assert next(offset.named_parameters())[0] == "5.body.0.weight"
    assert len(model) == 2 and isinstance(model[1], Residual)


def test_a_layer_used_twice_counts_once_and_sums_both_gradients() -> None:
    layer = nn.Linear(3, 3, rng=1, dtype=np.float64)
    model = nn.Sequential(layer, nn.GELU(), layer)
    assert len(model.parameters()) == 2
    x = np.random.default_rng(0).standard_normal((4, 3))
    y, context = model.forward(x)
    model.backward(context, np.ones_like(y))
    twin = nn.Sequential(*(nn.Linear(3, 3, rng=1, dtype=np.float64) for _ in range(2)))
    separate = nn.Sequential(twin[0], nn.GELU(), twin[1])
    y, context = separate.forward(x)
    separate.backward(context, np.ones_like(y))
    grads = [p.grad for p in separate.parameters()]
    np.testing.assert_array_equal(layer.weight.grad, grads[2] + grads[0])  # type: ignore[operator]


def test_gradients_accumulate_until_zeroed() -> None:
    layer = nn.Linear(2, 2, rng=1, dtype=np.float64)
    x = np.array([[1.0, 2.0]])
    for times in (1, 2, 3):
        y, context = layer.forward(x)
        layer.backward(context, np.ones_like(y))
        np.testing.assert_array_equal(layer.weight.grad, times * np.array([[1.0, 2.0]] * 2))
    layer.zero_grad()
    assert layer.weight.grad is None


def test_a_frozen_parameter_gets_no_gradient_and_no_step() -> None:
    layer = nn.Linear(2, 2, rng=1)
    layer.weight.trainable = False
    before = layer.weight.data.copy()
    y, context = layer.forward(np.ones((3, 2), np.float32))
    layer.backward(context, y)
    nn.SGD(layer, 1.0).step()
    assert layer.weight.grad is None
    np.testing.assert_array_equal(layer.weight.data, before)
    assert layer.bias is not None and layer.bias.data.any()


def test_a_gradient_of_another_shape_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"\(3,\) came for a parameter of shape \(1, 3\)"):
        nn.Parameter(np.zeros((1, 3))).accumulate(np.zeros(3))


def test_modes_reach_every_module() -> None:
    model = nn.Sequential(Residual(2, 1))
    model(np.ones((3, 2)))
    model.eval()
    model(np.ones((4, 2)))
    assert not model[0].training and not model[0].body[0].training  # type: ignore[attr-defined]
    model.train()
    model(np.ones((5, 2)))
    assert model.state_dict()["0.count"].tolist() == [8]


def test_state_is_copied_both_ways() -> None:
    source, target = nn.Sequential(Residual(2, 1)), nn.Sequential(Residual(2, 5))
    source(np.ones((3, 2)))
    state = source.state_dict()
    arrays = [p.data for p in target.parameters()]
    target.load_state_dict(state)
    assert all(p.data is a for p, a in zip(target.parameters(), arrays, strict=True))
    state["0.count"][:] = -1
    for name, array in source.state_dict().items():
        np.testing.assert_array_equal(target.state_dict()[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("0.body.0.bias"), r"missing \['0.body.0.bias'\], unknown \[\]"),
        (lambda s: s.update(extra=np.zeros(1)), r"missing \[\], unknown \['extra'\]"),
        (lambda s: s.update({"0.count": np.zeros(2, np.int64)}), r"0.count is int64\[1\], .*\[2\]"),
        (lambda s: s.update({"0.count": np.zeros(1)}), r"0.count is int64\[1\], .* float64\[1\]"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change: Any, message: str) -> None:
    model = nn.Sequential(Residual(2, 1))
    state = {name: array + 1 for name, array in model.state_dict().items()}
    before = model.state_dict()
    change(state)
    with pytest.raises(ArgumentError, match=message):
        model.load_state_dict(state)
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
