"""What the layers know about arrays: type, computing module, random streams."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pycomm.errors import ArgumentError

Array = NDArray[Any]
"""A NumPy array, or an array of another module with NumPy's interface (see `array_module`)."""

RandomSource = np.random.Generator | int | None
"""A generator (shared, so that layers draw one after the other), a seed, or None (random)."""


def array_module(array: object) -> Any:
    """Return the module (`numpy` or `cupy`) whose functions compute on `array`.

    Layers fetch it once per call and name it `xp`, so the same code runs wherever the array lives.
    """
    if type(array).__module__.partition(".")[0] == "cupy":
        import cupy

        return cupy
    return np


def generator(source: RandomSource) -> np.random.Generator:
    """Return `source` as a generator; a generator is returned as it is, and so advances."""
    return source if isinstance(source, np.random.Generator) else np.random.default_rng(source)


def float_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return `dtype` when it is float32 or float64.

    Raises:
        ArgumentError: any other type; the layers' arithmetic is only defined for these two.
    """
    found = np.dtype(dtype)
    if found not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ArgumentError(f"layers compute in float32 or float64, not {found}")
    return found


def pair(value: int | tuple[int, int], name: str, minimum: int) -> tuple[int, int]:
    """Return `value` as (height, width), both at least `minimum`.

    Raises:
        ArgumentError: not one or two integers, or one is below `minimum`.
    """
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or any(not isinstance(v, int) or v < minimum for v in both):
        raise ArgumentError(f"{name} must be one or two integers >= {minimum}, not {value!r}")
    return both[0], both[1]
