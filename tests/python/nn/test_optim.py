"""Optimizers against their formulas, written out in plain float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pycomm import nn
from pycomm.errors import ArgumentError

GRADS = [np.array([0.5, -1.0, 2.0]), np.array([-0.25, 3.0, 0.0]), np.array([1.5, 0.5, -2.0])]


def run(make: Callable[[list[nn.Parameter]], nn.Optimizer]) -> nn.Array:
    parameter = nn.Parameter(np.array([1.0, 2.0, -3.0]))
    optimizer = make([parameter])
    for grad in GRADS:
        parameter.grad = grad.copy()
        optimizer.step()
        np.testing.assert_array_equal(parameter.grad, grad)
        optimizer.zero_grad()
        assert parameter.grad is None
    return parameter.data


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd(nesterov: bool) -> None:
    lr, momentum, decay = 0.1, 0.9, 0.01
    data, velocity = np.array([1.0, 2.0, -3.0]), np.zeros(3)
    for grad in GRADS:
        slope = grad + decay * data
        velocity = momentum * velocity + slope
        data = data - lr * (slope + momentum * velocity if nesterov else velocity)
    got = run(lambda p: nn.SGD(p, lr, momentum=momentum, nesterov=nesterov, weight_decay=decay))
    np.testing.assert_allclose(got, data, rtol=1e-14)


def test_adam() -> None:
    lr, (b1, b2), eps = 0.1, (0.8, 0.95), 1e-6
    data, m, v = np.array([1.0, 2.0, -3.0]), np.zeros(3), np.zeros(3)
    for t, grad in enumerate(GRADS, start=1):
        m = b1 * m + (1 - b1) * grad
        v = b2 * v + (1 - b2) * grad**2
        data = data - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
    np.testing.assert_allclose(
        run(lambda p: nn.Adam(p, lr, betas=(b1, b2), eps=eps)), data, rtol=1e-13
    )


@pytest.mark.parametrize("kind", [lambda p: nn.SGD(p, 0.1, momentum=0.9), nn.Adam])
def test_a_saved_state_continues(kind: Callable[[list[nn.Parameter]], nn.Optimizer]) -> None:
    parameter = nn.Parameter(np.array([1.0, 2.0, -3.0]))
    optimizer = kind([parameter])
    for grad in GRADS[:2]:
        parameter.grad = grad.copy()
        optimizer.step()
    twin = nn.Parameter(parameter.data.copy())
    other = kind([twin])
    other.load_state_dict(optimizer.state_dict())
    for p, o in ((parameter, optimizer), (twin, other)):
        p.grad = GRADS[2].copy()
        o.step()
    np.testing.assert_array_equal(parameter.data, twin.data)
    with pytest.raises(ArgumentError, match="other parameters"):
        kind([nn.Parameter(np.zeros(4))]).load_state_dict(optimizer.state_dict())


def test_no_gradient_is_no_step_and_no_parameters_are_fine() -> None:
    parameter = nn.Parameter(np.ones(2))
    nn.SGD([parameter], 0.1, weight_decay=0.5).step()
    np.testing.assert_array_equal(parameter.data, np.ones(2))
    nn.Adam([]).step()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: nn.SGD([p, p], 0.1), "given twice"),
        (lambda p: nn.SGD([p], -0.1), "lr and weight_decay must be >= 0"),
        (lambda p: nn.SGD([p], float("nan")), "must be >= 0, not nan"),
        (lambda p: nn.SGD([p], 0.1, momentum=1.0), r"momentum must be in \[0, 1\), not 1.0"),
        (lambda p: nn.Adam([p], betas=(0.9, 1.5)), r"betas must be in \[0, 1\)"),
    ],
)
def test_bad_settings(make: Callable[[nn.Parameter], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(nn.Parameter(np.zeros(1)))
