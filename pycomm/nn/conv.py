"""Two-dimensional convolution as one matrix product over the image's patches (im2col).

Every output pixel's input patch becomes a row of a matrix, so the convolution is a product with
the weights:

    image (rows, C, H, W) -> patches (rows * OH * OW, KH * KW * C) -> times W^T -> (rows, O, OH, OW)

Channels are innermost in the patches, so both the copy into them and the sum out of them move
runs of C numbers. Images made here look like (rows, channels, H, W) but lie in memory with
channels innermost.

The backward pass multiplies the other way and adds each patch's gradient back where the patch
came from. The idea is from Chellapilla, Puri and Simard, "High Performance Convolutional Neural
Networks for Document Processing", 2006.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import DTypeLike

from pycomm._arrays import check_int
from pycomm.errors import ArgumentError
from pycomm.nn.arrays import Array, RandomSource, array_module, pair
from pycomm.nn.linear import scaled_normal
from pycomm.nn.module import Module, Parameter


class Conv2d(Module):
    """Cross-correlates images with learned kernels.

    Input (rows, in_channels, H, W), output (rows, out_channels, OH, OW) with
    OH = (H + 2 * padding - kernel) // stride + 1. The context holds the patches: KH * KW /
    (stride^2) times the input's memory per microbatch in flight.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel: Kernel size, one number or (height, width).
        stride: Step between patches, one number or (vertical, horizontal).
        padding: Zeros added on each side, one number or (vertical, horizontal).
        bias: Whether to add a number per output channel, which starts at zero.
        rng: Where the weights come from: N(0, 2 / fan_in), shape (out, in, KH, KW).
        dtype: float32 or float64.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        bias: bool = True,
        rng: RandomSource = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        check_int(in_channels, "in_channels", 1, None, "a number from 1")
        check_int(out_channels, "out_channels", 1, None, "a number from 1")
        self.kernel = pair(kernel, "kernel", 1)
        self.stride = pair(stride, "stride", 1)
        self.padding = pair(padding, "padding", 0)
        fan_in = in_channels * self.kernel[0] * self.kernel[1]
        shape = (out_channels, in_channels, *self.kernel)
        self.weight = scaled_normal(shape, sqrt(2 / fan_in), rng, dtype)
        self.bias = Parameter(np.zeros(out_channels, self.weight.data.dtype)) if bias else None

    def forward(self, x: Array) -> tuple[Array, tuple[Array, tuple[int, ...]]]:
        """Return the images of the output channels; the context holds the patches."""
        out_channels, in_channels = self.weight.data.shape[:2]
        if x.ndim != 4 or x.shape[1] != in_channels:
            raise ArgumentError(
                f"Conv2d takes (rows, {in_channels}, height, width), the input has shape {x.shape}"
            )
        patches, (height, width) = self._patches(x)
        y = patches @ self._matrix().T
        if self.bias is not None:
            y += self.bias.data
        image = y.reshape(x.shape[0], height, width, out_channels).transpose(0, 3, 1, 2)
        return image, (patches, x.shape)

    def backward(self, context: tuple[Array, tuple[int, ...]], grad: Array) -> Array:
        """Accumulate the gradients of weights and bias; return the images'."""
        patches, in_shape = context
        out_channels = self.weight.data.shape[0]
        flat = grad.transpose(0, 2, 3, 1).reshape(-1, out_channels)
        grads = (flat.T @ patches).reshape(out_channels, *self.kernel, -1)
        self.weight.accumulate(grads.transpose(0, 3, 1, 2).copy())
        if self.bias is not None:
            self.bias.accumulate(flat.sum(axis=0))
        return self._scatter(flat @ self._matrix(), in_shape, grad.shape[2:])

    def _matrix(self) -> Array:
        """Return the weights as (out_channels, KH * KW * C), the order of the patches."""
        return self.weight.data.transpose(0, 2, 3, 1).reshape(self.weight.data.shape[0], -1)

    def _patches(self, x: Array) -> tuple[Array, tuple[int, int]]:
        """Copy every patch into a row: (rows * OH * OW, KH * KW * C), and return (OH, OW)."""
        xp = array_module(x)
        (kernel_h, kernel_w), (pad_h, pad_w) = self.kernel, self.padding
        rows, channels, height, width = x.shape
        if height + 2 * pad_h < kernel_h or width + 2 * pad_w < kernel_w:
            raise ArgumentError(
                f"a {height}x{width} image with padding {self.padding} is smaller than the kernel "
                f"{self.kernel}"
            )
        padded = xp.zeros((rows, height + 2 * pad_h, width + 2 * pad_w, channels), x.dtype)
        inner = padded[:, pad_h : pad_h + height, pad_w : pad_w + width]
        inner[...] = x.transpose(0, 2, 3, 1)
        windows = xp.lib.stride_tricks.sliding_window_view(padded, self.kernel, axis=(1, 2))
        windows = windows[:, :: self.stride[0], :: self.stride[1]].transpose(0, 1, 2, 4, 5, 3)
        out_h, out_w = windows.shape[1:3]
        patches = windows.reshape(rows * out_h * out_w, kernel_h * kernel_w * channels)
        return patches, (out_h, out_w)

    def _scatter(self, by_patch: Array, in_shape: tuple[int, ...], out: tuple[int, ...]) -> Array:
        """Add the patches' gradients up where the patches overlap: the transpose of `_patches`."""
        xp = array_module(by_patch)
        (stride_h, stride_w), (pad_h, pad_w) = self.stride, self.padding
        rows, channels, height, width = in_shape
        (kernel_h, kernel_w), (out_h, out_w) = self.kernel, out
        image = xp.zeros((rows, height + 2 * pad_h, width + 2 * pad_w, channels), by_patch.dtype)
        taps = by_patch.reshape(rows, out_h, out_w, kernel_h, kernel_w, channels)
        for i in range(kernel_h):
            for j in range(kernel_w):
                ends = i + stride_h * out_h, j + stride_w * out_w
                image[:, i : ends[0] : stride_h, j : ends[1] : stride_w] += taps[:, :, :, i, j]
        inner = image[:, pad_h : pad_h + height, pad_w : pad_w + width]
        result: Array = inner.transpose(0, 3, 1, 2)
        return result
