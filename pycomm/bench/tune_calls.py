# Calls that tuning times, with the results that NumPy expects.
"""One operation at one size, for tuning."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pycomm.communicator import Communicator

__all__ = ["Call"]

Array = NDArray[np.float32]

ROOT = 0
UNWRITTEN = -1.0


def _values(count: int, rank: int) -> Array:
    """Small integers, so that sums are exact in every order."""
    return ((np.arange(count) * 3 + rank * 7) % 64).astype(np.float32)


class Call:
    """One operation on arrays of one size.

    Attributes:
        kind: The operation.
        size: Bytes of the whole buffer, at least one element per rank.
        gets_result: Whether the call writes something on this rank.
    """

    def __init__(self, comm: Communicator, kind: str, size: int, symmetric: bool = False) -> None:
        self.kind = kind
        self.size = size
        self._rank = comm.rank
        self._ranks = comm.size
        count = max(1, size // 4 // comm.size) * comm.size

        def array(length: int) -> Array:
            if symmetric:
                memory: Array = comm.empty(length, np.float32)
                return memory
            return np.empty(length, np.float32)

        takes_part = kind in ("all_gather", "gather")
        gives_part = kind in ("reduce_scatter", "scatter")
        part = count // comm.size
        own = _values(count, comm.rank)
        self._input = array(part if takes_part else count)
        self._input[...] = own[: self._input.size]
        self._output = array(part if gives_part else count)
        self._expected = self._expect(count)
        self.gets_result = self._expected is not None and (kind, comm.rank) != ("broadcast", ROOT)
        self.run = self._bind(comm)

    def _bind(self, comm: Communicator) -> Callable[[], Any]:
        x, out, at_root = self._input, self._output, comm.rank == ROOT
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: comm.all_reduce(x, out=out),
            "reduce": lambda: comm.reduce(x, ROOT, out=out),
            "reduce_scatter": lambda: comm.reduce_scatter(x, out=out),
            "all_gather": lambda: comm.all_gather(x, out=out),
            "broadcast": lambda: comm.broadcast(out, ROOT),
            "gather": lambda: comm.gather(x, ROOT, out=out),
            "scatter": lambda: comm.scatter(x if at_root else None, ROOT, out=out),
            "all_to_all": lambda: comm.all_to_all(x, out=out),
        }
        return calls[self.kind]

    def _expect(self, count: int) -> Array | None:
        """This rank's result; None when it gets none."""
        if self.kind in ("reduce", "gather") and self._rank != ROOT:
            return None
        part = count // self._ranks
        own = slice(self._rank * part, (self._rank + 1) * part)
        if self.kind == "broadcast":
            return _values(count, ROOT)
        if self.kind == "scatter":
            return _values(count, ROOT)[own]
        if self.kind in ("all_gather", "gather"):
            return np.concatenate([_values(part, rank) for rank in range(self._ranks)])
        if self.kind == "all_to_all":
            return np.concatenate([_values(count, rank)[own] for rank in range(self._ranks)])
        total = np.zeros(count, np.float32)
        for rank in range(self._ranks):
            total += _values(count, rank)
        return total[own] if self.kind == "reduce_scatter" else total

    def clear(self) -> None:
        """Takes the last result away."""
        self._output[...] = UNWRITTEN
        if self.kind == "broadcast" and self._rank == ROOT:
            self._output[...] = self._input

    def is_right(self) -> bool:
        """Whether this rank has its result."""
        return self._expected is None or np.array_equal(self._output, self._expected)
