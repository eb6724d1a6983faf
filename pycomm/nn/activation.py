"""Activations: ReLU and GELU, and the error function that exact GELU needs."""

from __future__ import annotations

from functools import lru_cache
from math import erf as scalar_erf
from math import exp, pi, sqrt

import numpy as np

from pycomm.errors import ArgumentError
from pycomm.nn.arrays import Array, array_module
from pycomm.nn.module import Module

_ERF_CELLS = 32  # table cells per unit; the remainder is at most 1/64
_ERF_END = 6.0  # erf(6) rounds to 1 in double precision


class ReLU(Module):
    """max(x, 0), elementwise; the gradient at 0 is 0."""

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return max(x, 0), and as context where x is positive."""
        positive = x > 0
        return x * positive, positive

    def backward(self, context: Array, grad: Array) -> Array:
        """Pass the gradient on where x was positive."""
        return grad * context


class GELU(Module):
    """x times the normal distribution function of x (Hendrycks and Gimpel 2016), elementwise.

    Args:
        approximate: "none" for the exact function, x * (1 + erf(x / sqrt 2)) / 2; "tanh" for the
            paper's approximation x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2, off by up
            to 5e-4 and faster.
    """

    def __init__(self, approximate: str = "none") -> None:
        if approximate not in ("none", "tanh"):
            raise ArgumentError(f"approximate must be 'none' or 'tanh', not {approximate!r}")
        self.approximate = approximate

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the output and, as context, the derivative, which costs less now than later."""
        xp = array_module(x)
        if self.approximate == "tanh":
            scale, cubic = sqrt(2 / pi), 0.044715
            square = x * x
            t = xp.tanh(scale * x * (1 + cubic * square))
            slope = scale * (1 + 3 * cubic * square)
            return 0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope
        share = 0.5 * (1 + erf(x * sqrt(0.5)))
        return x * share, share + x * xp.exp(-0.5 * x * x) * (1 / sqrt(2 * pi))

    def backward(self, context: Array, grad: Array) -> Array:
        """Multiply with the derivative."""
        return grad * context


def erf(x: Array) -> Array:
    """The error function, elementwise, of the input's float dtype, within 1e-15.

    Each value is expanded around the nearest of a table of points 1/32 apart. There the
    derivatives are
    known: erf' = g = 2 / sqrt(pi) * exp(-c^2), and the n-th derivative of g is (-1)^n H_n(c) g
    with the Hermite polynomials H_n, so that erf(c + d) = erf(c) + g * sum of (-1)^n H_n(c)
    d^(n+1) / (n+1)!.
    """
    xp = array_module(x)
    table = xp.asarray(_erf_table())
    magnitude = xp.minimum(xp.abs(x).astype(np.float64), _ERF_END)
    finite = xp.where(xp.isnan(magnitude), 0.0, magnitude)
    cell = xp.rint(finite * _ERF_CELLS).astype(np.int64)
    offset = magnitude - cell / _ERF_CELLS
    value = table[-1][cell]
    for coefficients in table[-2::-1]:
        value = value * offset + coefficients[cell]
    result: Array = (xp.sign(x) * value).astype(x.dtype)
    return result


@lru_cache(maxsize=1)
def _erf_table(terms: int = 8) -> Array:
    """Taylor coefficients of erf, (terms, points): row n belongs to d^n."""
    points = np.arange(int(_ERF_END * _ERF_CELLS) + 1) / _ERF_CELLS
    slope = np.array([2 / sqrt(pi) * exp(-c * c) for c in points])
    rows = [np.array([scalar_erf(c) for c in points])]
    hermite, previous, factorial = np.ones_like(points), np.zeros_like(points), 1.0
    for n in range(terms - 1):
        factorial *= n + 1
        rows.append((-1) ** n * hermite * slope / factorial)
        hermite, previous = 2 * points * hermite - 2 * n * previous, hermite
    return np.stack(rows)
