"""Symmetric memory for NumPy's own arrays, through its allocator hook (NEP 49)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pycomm import _core
from pycomm._arrays import check_int
from pycomm.communicator import Communicator

__all__ = ["shared_allocator"]

_MAX_THRESHOLD = 2**63 - 1


@contextmanager
def shared_allocator(comm: Communicator, threshold: int = 65536) -> Iterator[None]:
    """Makes NumPy allocate new arrays in symmetric memory of ``comm`` within the block.

    Such arrays take part in operations of ``comm`` without copies, as those of
    :meth:`Communicator.empty` do, so an existing program gains by it without a change. Entering is
    collective and blocking; allocating is not. Only this thread (context) is concerned. Arrays
    live on after the block, and after the communicator, and give their memory back as usual.

    Args:
        comm: The communicator. Where it has no memory of its own to give (TCP; ranks as threads,
            whose memory is all within reach), the block changes nothing.
        threshold: Arrays of fewer bytes are allocated as always.

    Memory that ranks share is shared with forked children, too: what a child writes into such an
    array, its parent sees, as with :mod:`multiprocessing.shared_memory`.

    Arrays for which symmetric memory has no room are allocated as always, too; operations on them
    are right, but copy.

    Raises:
        ArgumentError: ``threshold`` is not an integer from 1 to 2^63 - 1.
    """
    limit = check_int(threshold, "threshold", 1, _MAX_THRESHOLD, "a number of bytes, 1 to 2^63 - 1")
    handler = _core.make_handler(comm._core, limit)
    if handler is None:
        yield
        return
    before = _core.set_handler(handler)
    try:
        yield
    finally:
        _core.set_handler(before)
