"""Checks and layout of array arguments: what the core needs is contiguous, aligned and native."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycomm.errors import ArgumentError

Array = NDArray[Any]

# float128 and complex256 have no fixed layout; they are refused like every other unknown dtype.
SUPPORTED = (
    "bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, "
    "complex64, complex128"
)
_MAX_ELEMENTS = 1 << 58
_NAMES = frozenset(
    ["bool", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
# Dtypes that have passed; looking a name up takes NumPy longer than a small operation.
_accepted: set[np.dtype[Any]] = set()


def check_array(value: Any, name: str) -> Array:
    """Returns ``value`` when it is a NumPy array (or scalar) of a supported dtype."""
    if type(value) is np.ndarray and value.dtype in _accepted:
        return value
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"{name} must be a NumPy array, got {type(value).__name__}")
    dtype = value.dtype
    if dtype.name not in _NAMES:
        raise ArgumentError(
            f"{name} has dtype {dtype}, which is not supported; supported are {SUPPORTED}"
        )
    if not dtype.isnative:
        raise ArgumentError(
            f"{name} has dtype {dtype} in foreign byte order; convert it with "
            f"{name}.astype({name}.dtype.newbyteorder('='))"
        )
    _accepted.add(dtype)
    return value


def check_output(value: Any, name: str) -> Array:
    """As :func:`check_array`, for an array that will be written."""
    if isinstance(value, np.generic):
        raise ArgumentError(f"{name} must be a NumPy array that can be written, got a NumPy scalar")
    array = check_array(value, name)
    if not array.flags.writeable:
        raise ArgumentError(f"{name} is read-only and cannot take the result")
    if not array.flags.c_contiguous and _elements_overlap(array):
        raise ArgumentError(
            f"{name} has strides {array.strides}, which put elements on top of each other, "
            "and cannot take the result"
        )
    return array


def _elements_overlap(array: Array) -> bool:
    """Whether two elements share memory."""
    axes = sorted(
        (abs(stride), extent)
        for stride, extent in zip(array.strides, array.shape, strict=True)
        if extent > 1
    )
    if array.size == 0:
        return False
    reach = array.itemsize  # bytes from the first element to the end of the last, so far
    for stride, extent in axes:
        if stride == 0:
            return True
        if stride < reach:
            break
        reach += stride * (extent - 1)
    else:
        return False
    # Axes that mesh: made by as_strided only. Their elements are looked at one by one.
    offsets = np.zeros((), dtype=np.int64)
    for stride, extent in axes:
        offsets = np.add.outer(offsets, stride * np.arange(extent, dtype=np.int64))
    ordered = np.sort(offsets, axis=None)
    return bool(np.any(np.diff(ordered) < array.itemsize))


def check_same_dtype(array: Array, name: str, other: Array, other_name: str) -> None:
    if array.dtype != other.dtype:
        raise ArgumentError(
            f"{name} has dtype {array.dtype} but {other_name} has dtype {other.dtype}"
        )


def check_shape(array: Array, name: str, shape: Sequence[int]) -> None:
    if array.shape != tuple(shape):
        raise ArgumentError(f"{name} has shape {array.shape}, expected {tuple(shape)}")


def packed(array: Array) -> Array:
    """The same elements in C order, contiguous and aligned: the array itself or a copy."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    return np.array(array, order="C", copy=True, subok=False)


def check_int(value: Any, name: str, low: int, high: int | None, what: str) -> int:
    """An integer within [low, high]; ``what`` says in words what was expected."""
    if isinstance(value, (bool, np.bool_)):
        raise ArgumentError(f"{name} is {value}, expected {what}")
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {value!r}, expected {what}") from None
    if number < low or (high is not None and number > high):
        raise ArgumentError(f"{name} is {number}, expected {what}")
    return number


def check_timeout(value: Any, name: str = "timeout") -> float | None:
    """Seconds as a float, or None for the default."""
    if value is None:
        return None
    if isinstance(value, (bool, str, bytes)):
        raise ArgumentError(f"{name} is {value!r}, expected a positive number of seconds")
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name} is {value!r}, expected a positive number of seconds") from None
    if not math.isfinite(seconds) or seconds <= 0:
        raise ArgumentError(f"{name} is {seconds}, expected a positive number of seconds")
    return seconds


def check_rows(value: Any, name: str, size: int, row_elements: int = 1) -> list[int]:
    """A list of ``size`` row counts, of rows of ``row_elements`` elements."""
    try:
        rows = [operator.index(entry) for entry in value]
    except TypeError:
        raise ArgumentError(f"{name} is {value!r}, expected {size} row counts") from None
    if len(rows) != size:
        raise ArgumentError(
            f"{name} has {len(rows)} entries, expected one for each of {size} ranks"
        )
    if any(count < 0 for count in rows):
        raise ArgumentError(f"{name} is {rows}, expected counts of 0 or more")
    check_elements(sum(rows) * row_elements, f"{name} is {rows}")
    return rows


def check_elements(elements: int, what: str) -> None:
    """Refuses what does not fit into 64 bits of bytes, for any dtype."""
    if elements > _MAX_ELEMENTS:
        raise ArgumentError(f"{what}, {elements} elements in all; expected at most 2^58")


def split_rows(rows: int, parts: int) -> list[int]:
    """The row counts of ``numpy.array_split(x, parts)`` for ``rows`` rows."""
    base, extra = divmod(rows, parts)
    return [base + (part < extra) for part in range(parts)]


def row_shape(array: Array) -> tuple[int, tuple[int, ...], int]:
    """(rows, shape of a row, elements of a row); an array without axes is one row."""
    if array.ndim == 0:
        return 1, (), 1
    tail = array.shape[1:]
    return array.shape[0], tail, math.prod(tail)
