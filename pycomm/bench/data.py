# The data of a benchmark: different for each rank and element, with results known exactly.
"""Test data and its check.

Every value follows from (operation, type, rank, index). The index is taken modulo `PERIOD`, a
prime: one short row per rank describes a buffer of any size, and a result that has moved by any of
the usual amounts (powers of two, multiples of a slice) still differs. All values are whole numbers
(or powers of two for products) small enough that every partial result is exact in the type,
whatever the order of the reduction; so a result is right in all its bits or wrong.
"""

from __future__ import annotations

from functools import lru_cache

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

PERIOD = 65521
SENTINEL = 0xA5

DTYPES: dict[str, np.dtype[np.generic]] = {
    **{
        name: np.dtype(name)
        for name in (
            "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
            "float16", "float32", "float64", "complex64", "complex128",
        )
    },
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
DTYPE_ALIASES = {"half": "float16", "bf16": "bfloat16", "float": "float32", "double": "float64"}
REDUCE_OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")

# Whole numbers up to these are exact.
_EXACT_LIMIT = {"bfloat16": 1 << 8, "float16": 1 << 11}


def why_not(dtype: np.dtype[np.generic], op: str) -> str | None:
    """Says why a reduction does not exist for a type; None when it does."""
    kind = _kind(dtype)
    if op == "avg" and kind in "bi":
        return f"avg needs a floating-point type, not {dtype.name}"
    if op in ("min", "max") and kind == "c":
        return f"{op} needs an ordered type, not {dtype.name}"
    if op in ("band", "bor", "bxor") and kind in "fc":
        return f"{op} needs an integer type or bool, not {dtype.name}"
    return None


def _kind(dtype: np.dtype[np.generic]) -> str:
    """Returns b, i, f or c for bool, integers, floats and complex numbers."""
    if dtype == DTYPES["bfloat16"]:
        return "f"
    return {"u": "i"}.get(dtype.kind, dtype.kind)


@lru_cache(maxsize=8)
def _hash(salt: int) -> NDArray[np.uint64]:
    """Returns PERIOD well-mixed 64-bit numbers (the finaliser of MurmurHash3 over a counter)."""
    x = np.arange(1, PERIOD + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x ^= np.uint64((salt + 1) * 0xD6E8FEB86659FD93 & (1 << 64) - 1)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x ^= x >> np.uint64(33)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(33)
    x.flags.writeable = False  # shared by all callers
    return x


class Pattern:
    """The data of all ranks for one type and reduction.

    Args:
        dtype: Element type.
        op: Reduction, or None for operations that only move data.
        ranks: Number of ranks that take part.
    """

    def __init__(self, dtype: np.dtype[np.generic], op: str | None, ranks: int) -> None:
        self.dtype = dtype
        self.op = op
        self.ranks = ranks
        self.row = lru_cache(maxsize=64)(self._make_row)
        self.reduced = lru_cache(maxsize=1)(self._make_reduced)

    def _make_row(self, rank: int) -> Array:
        """Makes the PERIOD elements that `rank` contributes."""
        kind = _kind(self.dtype)
        values: Array
        if kind == "b":
            values = self._bools(rank)
        elif kind == "i":
            values = self._integers(rank)
        elif kind == "f":
            values = self._floats(rank, 0)
        elif self.op == "prod":
            quarter_turns = np.array([1, 1j, -1, -1j])[_hash(rank) % np.uint64(4)]
            values = quarter_turns * self._powers(rank)
        else:
            values = self._floats(rank, 0) + 1j * self._floats(rank, 1)
        return np.asarray(values).astype(self.dtype)

    def _bools(self, rank: int) -> Array:
        if self.op in (None, "bxor"):
            return _hash(rank) & np.uint64(1)
        # At most one rank stands out at an element, and at some elements none does.
        place: Array = (_hash(0) + np.uint64(rank)) % np.uint64(2 * self.ranks)
        values: Array = place != 0 if self.op in ("prod", "min", "band") else place == 0
        return values

    def _integers(self, rank: int) -> Array:
        if self.op in ("band", "bor"):
            bits = 8 * self.dtype.itemsize
            place = (_hash(0) + np.uint64(rank)) % np.uint64(max(bits, 2 * self.ranks))
            one = np.uint64(1) << np.minimum(place, np.uint64(bits - 1))
            one = np.where(place < bits, one, np.uint64(0))
            return one if self.op == "bor" else ~one
        # For products odd numbers, since a product of those never becomes 0.
        return _hash(rank) | np.uint64(self.op == "prod")

    def _floats(self, rank: int, part: int) -> NDArray[np.float64]:
        if self.op == "prod":
            sign = np.where(_hash(rank) & np.uint64(1), 1.0, -1.0)
            return sign * self._powers(rank)
        if self.op not in ("sum", "avg"):
            return (_hash(2 * rank + part) % np.uint64(251)).astype(np.float64) - 83.0
        # A common part plus a part that cancels within each pair of ranks: the sum is a multiple of
        # the number of ranks, so the average is exact too.
        limit = _EXACT_LIMIT.get(self.dtype.name, 1 << 24)
        room = min(251, max(2, limit // self.ranks - 2))
        common = (_hash(part) % np.uint64(room)).astype(np.float64)
        if rank == self.ranks - 1 and self.ranks % 2:
            return common
        own = (_hash(1000 + rank // 2) % np.uint64(3)).astype(np.float64)
        return common + (own if rank % 2 else -own)

    def _powers(self, rank: int) -> NDArray[np.float64]:
        """Returns factors 1/2, 1 and 2; at most 8 ranks give another one than 1 at an element."""
        groups = -(-self.ranks // 8)
        exponent = (_hash(rank) >> np.uint64(8)) % np.uint64(3)
        takes_part = (_hash(0) + np.uint64(rank)) % np.uint64(groups) == 0
        return np.where(takes_part, np.exp2(exponent.astype(np.float64) - 1.0), 1.0)

    def _make_reduced(self) -> Array:
        """Makes the PERIOD elements of the reduction over all ranks, with NumPy."""
        rows = np.stack([self.row(rank) for rank in range(self.ranks)])
        wide = {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}.get(
            _kind(self.dtype), self.dtype
        )
        function = {
            "sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum,
            "max": np.maximum, "band": np.bitwise_and, "bor": np.bitwise_or,
            "bxor": np.bitwise_xor,
        }[self.op or "sum"]  # fmt: skip
        result = np.asarray(rows.astype(wide))
        total = function.reduce(result, axis=0, dtype=wide)
        if self.op == "avg":
            # Real and imaginary parts on their own: a complex division rounds more than once.
            total = (total.view(np.float64) / self.ranks).view(wide)
        return np.asarray(total).astype(self.dtype)

    def fill(self, array: Array, rank: int) -> None:
        """Writes the data of `rank` into a one-dimensional array, from index 0 of the pattern."""
        row = self.row(rank)
        for start in range(0, len(array), PERIOD):
            part = array[start : start + PERIOD]
            part[:] = row[: len(part)]

    def count_wrong(self, array: Array, source: int | None, start: int) -> int:
        """Counts the elements of a one-dimensional array that are not as expected, bit by bit.

        Args:
            array: What arrived.
            source: The rank whose data it should be, or None for the reduction over all ranks.
            start: Index in the pattern of the first element.
        """
        expected = _bits(self.reduced() if source is None else self.row(source))
        actual = _bits(array)
        wrong = index = 0
        while index < len(actual):
            position = (start + index) % PERIOD
            length = min(PERIOD - position, len(actual) - index)
            part = actual[index : index + length] != expected[position : position + length]
            wrong += int(np.count_nonzero(part))
            index += length
        return wrong


def fill_sentinel(array: Array) -> None:
    """Overwrites an array with bytes that are no right result, so that a missing result shows."""
    array.view(np.uint8)[:] = SENTINEL


def _bits(array: Array) -> Array:
    # Complex numbers are compared as numbers: their products may hold a zero of either sign.
    if array.dtype.kind == "c":
        return array
    return array.view(f"u{array.dtype.itemsize}")
