"""Layer normalisation."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from pycomm.errors import ArgumentError
from pycomm.nn.arrays import Array, array_module, float_dtype
from pycomm.nn.module import Module, Parameter


class LayerNorm(Module):
    """Gives each row mean 0 and variance 1 over the last axes, then scales and shifts (Ba et al.
    2016).

    Args:
        shape: Lengths of the normalised last axes, one number or several.
        eps: Added to the variance.
        dtype: float32 or float64.
    """

    def __init__(
        self, shape: int | tuple[int, ...], *, eps: float = 1e-5, dtype: DTypeLike = np.float32
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.weight = Parameter(np.ones(self.shape, float_dtype(dtype)))
        self.bias = Parameter(np.zeros(self.shape, float_dtype(dtype)))

    def forward(self, x: Array) -> tuple[Array, tuple[Array, Array]]:
        """Return the normalised rows; the context holds them unscaled, and 1 / deviation."""
        if x.shape[-len(self.shape) :] != self.shape or x.ndim < len(self.shape):
            raise ArgumentError(
                f"LayerNorm takes (..., {self.shape}), the input has shape {x.shape}"
            )
        xp, axes = array_module(x), self._axes()
        centred = x - x.mean(axis=axes, keepdims=True)
        variance = (centred * centred).mean(axis=axes, keepdims=True)
        inverse = 1 / xp.sqrt(variance + x.dtype.type(self.eps))
        normal = centred * inverse
        return normal * self.weight.data + self.bias.data, (normal, inverse)

    def backward(self, context: tuple[Array, Array], grad: Array) -> Array:
        """Accumulate the gradients of scale and shift; return the input's."""
        normal, inverse = context
        axes = self._axes()
        leading = tuple(range(grad.ndim - len(self.shape)))
        self.weight.accumulate((grad * normal).sum(axis=leading))
        self.bias.accumulate(grad.sum(axis=leading))
        scaled = grad * self.weight.data
        mean = scaled.mean(axis=axes, keepdims=True)
        along = (scaled * normal).mean(axis=axes, keepdims=True)
        result: Array = (scaled - mean - normal * along) * inverse
        return result

    def _axes(self) -> tuple[int, ...]:
        return tuple(range(-len(self.shape), 0))
