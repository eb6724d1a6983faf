"""Layers built from a plain product or a table: Linear, Embedding, and the reshaping Flatten."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from pycomm._arrays import check_int
from pycomm.errors import ArgumentError
from pycomm.nn.arrays import Array, RandomSource, array_module, float_dtype, generator
from pycomm.nn.module import Module, Parameter


def scaled_normal(
    shape: tuple[int, ...], std: float, rng: RandomSource, dtype: DTypeLike
) -> Parameter:
    """Draw a parameter from N(0, std^2).

    It is drawn in float64 whatever `dtype` is, so float32 and float64 models start from the same
    numbers.
    """
    return Parameter((generator(rng).standard_normal(shape) * std).astype(float_dtype(dtype)))


class Linear(Module):
    """y = x W^T + b over the last axis.

    Args:
        in_features: Length of the input's last axis.
        out_features: Length of the output's last axis.
        bias: Whether to add b, which starts at zero.
        rng: Where W comes from: N(0, 2 / in_features) (He et al. 2015), shape (out_features,
            in_features).
        dtype: float32 or float64.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        rng: RandomSource = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        check_int(in_features, "in_features", 1, None, "a number from 1")
        check_int(out_features, "out_features", 1, None, "a number from 1")
        self.weight = scaled_normal((out_features, in_features), sqrt(2 / in_features), rng, dtype)
        self.bias = Parameter(np.zeros(out_features, self.weight.data.dtype)) if bias else None

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return x W^T + b, and x as the context."""
        if x.ndim == 0 or x.shape[-1] != self.weight.data.shape[1]:
            raise ArgumentError(
                f"Linear takes (..., {self.weight.data.shape[1]}), the input has shape {x.shape}"
            )
        y = x @ self.weight.data.T
        if self.bias is not None:
            y += self.bias.data
        return y, x

    def backward(self, context: Array, grad: Array) -> Array:
        """Accumulate the gradients of W and b; return the input's."""
        rows = context.reshape(-1, context.shape[-1])
        flat = grad.reshape(-1, grad.shape[-1])
        self.weight.accumulate(flat.T @ rows)
        if self.bias is not None:
            self.bias.accumulate(flat.sum(axis=0))
        return grad @ self.weight.data


class Embedding(Module):
    """Looks up rows of a table: integers of any shape (...) become (..., dim).

    Args:
        count: Rows of the table; inputs are in [0, count).
        dim: Length of a row.
        rng: Where the table comes from: N(0, 1).
        dtype: float32 or float64.
    """

    def __init__(
        self, count: int, dim: int, *, rng: RandomSource = None, dtype: DTypeLike = np.float32
    ) -> None:
        check_int(count, "count", 1, None, "a number from 1")
        check_int(dim, "dim", 1, None, "a number from 1")
        self.weight = scaled_normal((count, dim), 1.0, rng, dtype)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the rows that x names, and x as the context."""
        count = self.weight.data.shape[0]
        if x.dtype.kind not in "iu":
            raise ArgumentError(f"Embedding takes integers, not {x.dtype}")
        if x.size and (int(x.min()) < 0 or int(x.max()) >= count):
            raise ArgumentError(
                f"Embedding takes indices in [0, {count}), the input spans [{x.min()}, {x.max()}]"
            )
        return self.weight.data[x], x

    def backward(self, context: Array, grad: Array) -> Any:
        """Accumulate the table's gradient; integers have none."""
        xp = array_module(grad)
        table = xp.zeros_like(self.weight.data)
        xp.add.at(table, context.reshape(-1), grad.reshape(-1, grad.shape[-1]))
        self.weight.accumulate(table)


class Flatten(Module):
    """Joins all axes but axis 0: (rows, a, b, ...) becomes (rows, a * b * ...)."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return x with two axes, and its old shape as the context."""
        return x.reshape(x.shape[0], int(np.prod(x.shape[1:]))), x.shape

    def backward(self, context: Any, grad: Array) -> Array:
        """Return the gradient in the old shape."""
        return grad.reshape(context)
