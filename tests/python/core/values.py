"""Data for tests of operations, and what NumPy says the results are.

Every rank and element has a different value; all are chosen such that each result is exact in its
dtype, whatever the order of the additions, except those of `noise`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")

# Every algorithm that PYCOMM_ALGO knows, per operation; test_algorithms.py checks that this is all.
ALGORITHMS = {
    "all_reduce": ("pairwise", "ring", "recursive_doubling", "recursive_halving"),
    "reduce_scatter": ("pairwise", "ring"),
    "all_gather": ("pairwise", "ring", "recursive_doubling"),
    "broadcast": ("tree", "linear"),
    "reduce": ("pairwise", "tree", "linear"),
    "gather": ("linear",),
    "scatter": ("linear",),
    "all_to_all": ("pairwise",),
    "barrier": ("dissemination",),
}
# Values of PYCOMM_ALGO that together use every one of them.
CHOICES = tuple(
    ",".join(
        f"{operation}:{names[index]}"
        for operation, names in ALGORITHMS.items()
        if index < len(names)
    )
    for index in range(max(map(len, ALGORITHMS.values())))
)


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def ops_of(name: str) -> tuple[str, ...]:
    if name in COMPLEX:
        return "sum", "prod", "avg"
    if name in FLOATS:
        return "sum", "prod", "min", "max", "avg"
    return tuple(op for op in OPS if op != "avg")


def values(
    rank: int, shape: int | Sequence[int], name: str, op: str = "sum", salt: int = 0
) -> Array:
    """Values for `op` that differ by rank and element."""
    return np.array(_values(rank, shape, name, op, salt))


def _values(rank: int, shape: int | Sequence[int], name: str, op: str, salt: int) -> Any:
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    index = np.arange(int(np.prod(extents, dtype=np.int64)), dtype=np.int64).reshape(extents)
    mixed = index * 37 + rank * 101 + salt * 1009 + (index // 64) * (rank + 3)
    if name == "bool":
        return mixed % 3 != 0
    if name in INTEGERS:
        # The whole range: sums and products wrap.
        return (mixed * 2654435761).astype(dtype_of(name))
    if op == "prod":
        factors = [1, -1, 1j, -1j, 1 + 1j, 2] if name in COMPLEX else [1, -1, 2, 0.5, -2, 1]
        return np.asarray(factors)[mixed % len(factors)].astype(dtype_of(name))
    small = mixed % 15 - 7
    if name in COMPLEX:
        return (small + 1j * (mixed * 7 % 13 - 6)).astype(dtype_of(name))
    return small.astype(np.float32).astype(dtype_of(name))


# Ranks that are threads need the same arrays at the same time: one makes them, all read them.
_once = threading.Lock()


def constant(
    rank: int, shape: int | tuple[int, ...], name: str, op: str = "sum", salt: int = 0
) -> Array:
    """As `values`; the array is shared and read-only."""
    with _once:
        return _constant(rank, shape, name, op, salt)


def constants(
    size: int, shape: int | tuple[int, ...], name: str, op: str = "sum", salt: int = 0
) -> tuple[list[Array], Array]:
    """The arrays of all ranks, and their combination; read-only."""
    with _once:
        return _constants(size, shape, name, op, salt)


@lru_cache(maxsize=64)
def _constant(rank: int, shape: int | tuple[int, ...], name: str, op: str, salt: int) -> Array:
    array = values(rank, shape, name, op, salt)
    array.flags.writeable = False
    return array


@lru_cache(maxsize=4)
def _constants(
    size: int, shape: int | tuple[int, ...], name: str, op: str, salt: int
) -> tuple[list[Array], Array]:
    parts = [_constant(rank, shape, name, op, salt) for rank in range(size)]
    result = np.array(combine(parts, op))
    result.flags.writeable = False
    return parts, result


def noise(rank: int, shape: int | Sequence[int], name: str, salt: int = 0) -> Array:
    """Values whose sum depends on the order of the additions."""
    random = np.random.default_rng([rank, salt])
    scale = 10.0 ** random.integers(-2, 3, size=shape)
    real: Any = random.standard_normal(shape) * scale
    if name in COMPLEX:
        real = real + 1j * random.standard_normal(shape) * scale
        return np.asarray(real).astype(dtype_of(name))
    if name != "float64":
        real = real.astype(np.float32)
    return np.asarray(real).astype(dtype_of(name))


def combine(parts: Sequence[Array], op: str) -> Array:
    """The result of `op`, in the documented order: ((0+1)+(2+3))+4."""
    dtype = parts[0].dtype
    half = dtype.name in HALVES
    work = [part.astype(np.float32) if half else part for part in parts]
    with np.errstate(all="ignore"):
        result = _tree(work, "sum" if op == "avg" else op)
        if op == "avg":
            size = len(parts)
            if result.dtype.kind == "c":
                real = result.real.dtype.type
                divided = result.copy()
                divided.real, divided.imag = result.real / real(size), result.imag / real(size)
                result = divided
            else:
                result = result / result.dtype.type(size)
        return np.asarray(result).astype(dtype)


def _tree(parts: Sequence[Array], op: str) -> Array:
    if len(parts) == 1:
        return parts[0]
    left = 1 << ((len(parts) - 1).bit_length() - 1)
    return _pair(_tree(parts[:left], op), _tree(parts[left:], op), op)


def _pair(a: Array, b: Array, op: str) -> Array:
    functions: dict[str, Any]
    if a.dtype == bool:
        functions = {
            "sum": np.logical_or,
            "bor": np.logical_or,
            "max": np.logical_or,
            "prod": np.logical_and,
            "band": np.logical_and,
            "min": np.logical_and,
            "bxor": np.logical_xor,
        }
    else:
        functions = {
            "sum": np.add,
            "prod": np.multiply,
            "min": np.minimum,
            "max": np.maximum,
            "band": np.bitwise_and,
            "bor": np.bitwise_or,
            "bxor": np.bitwise_xor,
        }
    result: Array = np.asarray(functions[op](a, b))
    return result


def sentinel(shape: int | Sequence[int], name: str) -> Array:
    """An output that holds what no result holds everywhere."""
    out: Array = np.empty(shape, dtype=dtype_of(name))
    out.reshape(-1).view(np.uint8)[...] = 1 if name == "bool" else 0x5B
    return out


def check(got: Any, expected: Array, what: str) -> None:
    """Bitwise equality, apart from the payload of a NaN; shape and dtype count."""
    if not isinstance(got, np.ndarray):
        raise AssertionError(f"{what}: got {got!r}, not an array")
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise AssertionError(
            f"{what}: got {got.dtype}{got.shape}, expected {expected.dtype}{expected.shape}"
        )
    a, b = np.ascontiguousarray(got), np.ascontiguousarray(expected)
    if a.tobytes() == b.tobytes():
        return
    same = np.asarray((a == b) | ((a != a) & (b != b)))
    if not same.all():
        wrong = np.argwhere(~np.atleast_1d(same))
        first = tuple(wrong[0]) if got.ndim else ()
        raise AssertionError(
            f"{what}: {len(wrong)} of {got.size} elements are wrong, the first at {first}: "
            f"got {got[first]!r}, expected {expected[first]!r}"
        )


def split_rows(rows: int, parts: int) -> list[int]:
    """Rows per part, as numpy.array_split gives them."""
    return [len(part) for part in np.array_split(np.empty(rows), parts)]


def slices(counts: Sequence[int]) -> list[slice]:
    ends = np.cumsum([0, *counts])
    return [slice(int(ends[i]), int(ends[i + 1])) for i in range(len(counts))]
