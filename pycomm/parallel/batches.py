"""Batches: arrays, or tuples of arrays, whose axis 0 counts rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycomm.errors import ArgumentError
from pycomm.nn.arrays import array_module


def row_count(batch: Any) -> int:
    """Return the number of rows.

    Raises:
        ArgumentError: an entry is no array with rows, or entries of a tuple differ in their number.
    """
    entries = batch if isinstance(batch, tuple) else (batch,)
    if not entries or not all(getattr(entry, "ndim", 0) for entry in entries):
        raise ArgumentError("a batch is an array with rows along axis 0, or a tuple of such arrays")
    counts = [entry.shape[0] for entry in entries]
    if len(set(counts)) != 1:
        raise ArgumentError(f"the arrays of a batch differ in their number of rows: {counts}")
    return int(counts[0])


def share(rows: int, part: int, parts: int) -> slice:
    """Return the rows of one of `parts` nearly equal parts, larger ones first."""
    small, larger = divmod(rows, parts)
    start = part * small + min(part, larger)
    return slice(start, start + small + (part < larger))


def split_rows(batch: Any, parts: int) -> list[Any]:
    """Split a batch into `parts` nearly equal parts (8 rows in 3: 3, 3, 2), as views."""
    rows = row_count(batch)
    slices = [share(rows, part, parts) for part in range(parts)]
    if isinstance(batch, tuple):
        return [tuple(entry[rows] for entry in batch) for rows in slices]
    return [batch[rows] for rows in slices]


def join(parts: Sequence[Any]) -> Any:
    """Join parts along axis 0: the reverse of `split_rows`."""
    if isinstance(parts[0], tuple):
        return tuple(join(entries) for entries in zip(*parts, strict=True))
    return array_module(parts[0]).concatenate(parts)
