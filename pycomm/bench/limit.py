# What the machine's memory allows, measured beside the operations.
"""The machine's limit: how fast the ranks move the bytes that an ideal operation has to move.

Every rank moves its share at once, in a plain loop in C++, without a word between ranks; on one
node they work on memory that all of them have mapped. What is read and written for each operation,
and why that is the least, is in ``csrc/comm/memory_limit.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pycomm import _core

if TYPE_CHECKING:
    from pycomm.bench.operations import Case
    from pycomm.communicator import Communicator


class Limit:
    """Memory for measuring the limit of operations with up to `size` bytes. All ranks make it."""

    def __init__(self, comm: Communicator, size: int) -> None:
        self._memory = _core.MemoryLimit(comm._core, max(size, 1))

    def bind(self, operation: str, case: Case) -> list[Callable[[], object]]:
        """Makes the calls to time; the fastest is the limit.

        Args:
            operation: Name of the operation; one that moves no data has no limit.
            case: One run of it.

        Returns:
            A call with ordinary stores and one with stores past the caches, or nothing.
        """
        if operation == "barrier":
            return []
        size = case.elements * case.dtype.itemsize
        if operation != "sendrecv":
            kind = _core.KINDS[operation]
            return [
                self._memory.bind(kind, size, case.root, (0, 0), streaming)
                for streaming in (False, True)
            ]
        kind = _core.KINDS["send"]
        calls: list[Callable[[], object]] = []
        for streaming in (False, True):
            there = self._memory.bind(kind, size, 0, case.pair, streaming)
            back = self._memory.bind(kind, size, 0, case.pair[::-1], streaming)
            calls.append(_both(there, back))
        return calls


def _both(first: Callable[[], object], second: Callable[[], object]) -> Callable[[], object]:
    def call() -> None:
        first()
        second()

    return call
