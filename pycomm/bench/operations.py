# One record per operation: its buffers, how to run it, what must come out, its bandwidth factor.
"""The operations that can be benchmarked.

Sizes are those of nccl-tests: the bytes of the larger buffer. For operations that split a buffer
among the ranks that is the total, and a rank's slice is the total divided by the number of ranks.

The factor turns algbw (size / time) into busbw, the load on the busiest link, which does not depend
on the number of ranks when the algorithm is the best possible; see `bandwidth`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pycomm.bench.data import Array

if TYPE_CHECKING:
    from pycomm.communicator import Communicator

OUT_OF_PLACE = "out_of_place"
IN_PLACE = "in_place"
PLACES = (OUT_OF_PLACE, IN_PLACE)


@dataclass(frozen=True)
class Case:
    """One run of an operation, as one rank sees it.

    Attributes:
        rank: This rank.
        ranks: Number of ranks.
        elements: Elements of the larger buffer (a multiple of `ranks` for operations that split).
        dtype: Element type.
        op: Reduction; ignored by operations that do not reduce.
        root: Root; ignored by operations without one.
        place: `OUT_OF_PLACE` or `IN_PLACE`.
        pair: The two ranks that talk, for point-to-point operations.
    """

    rank: int
    ranks: int
    elements: int
    dtype: np.dtype[np.generic]
    op: str
    root: int
    place: str
    pair: tuple[int, int] = (0, 0)

    @property
    def slice(self) -> int:
        """Elements of one rank's slice, for operations that split."""
        return self.elements // self.ranks

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.rank == self.root

    @property
    def other(self) -> int:
        """The rank to talk to, for point-to-point operations."""
        return self.pair[1] if self.rank == self.pair[0] else self.pair[0]


@dataclass(frozen=True)
class Buffers:
    """Input and output of one rank; one may be (a slice of) the other when run in place."""

    send: Array
    recv: Array


@dataclass(frozen=True)
class Block:
    """What a part of the output must hold: the data of rank `source` (None: of the reduction)."""

    source: int | None
    start: int
    length: int


@dataclass(frozen=True)
class Operation:
    """All that the benchmark knows about an operation.

    Attributes:
        name: Its name on the command line.
        factor: busbw / algbw for a number of ranks.
        lengths: Elements that a rank gives and gets.
        bind: Makes the call to time, with everything looked up beforehand.
        expected: What the output must hold, from its first element on.
        splits: Whether the larger buffer is split among the ranks.
        reduces: Whether it takes a reduction.
        rooted: Whether it takes a root.
        places: The ways it can run.
        pairwise: Whether two ranks run it, one pair after the other, while the rest waits.
        messages: Messages one after another in one call; the time is divided by it.
        sized: Whether it moves data at all.
    """

    name: str
    factor: Callable[[int], float]
    lengths: Callable[[Case], tuple[int, int]]
    bind: Callable[[Communicator, Case, Buffers], Callable[[], object]]
    expected: Callable[[Case], list[Block]]
    splits: bool = False
    reduces: bool = False
    rooted: bool = False
    places: tuple[str, ...] = PLACES
    pairwise: bool = False
    messages: int = 1
    sized: bool = True


def _out(case: Case, buffers: Buffers) -> Array | None:
    return None if case.place == IN_PLACE else buffers.recv


def _one(_ranks: int) -> float:
    return 1.0


def _share_of_others(ranks: int) -> float:
    return (ranks - 1) / ranks


# all_reduce: every rank gives and gets all elements.
def _bind_all_reduce(comm: Communicator, case: Case, buffers: Buffers) -> Callable[[], object]:
    return partial(comm.all_reduce, buffers.send, case.op, _out(case, buffers))


# reduce_scatter: every rank gives all elements and gets its slice of the reduction.
def _bind_reduce_scatter(comm: Communicator, case: Case, buffers: Buffers) -> Callable[[], object]:
    return partial(comm.reduce_scatter, buffers.send, case.op, buffers.recv)


# all_gather: every rank gives a slice and gets all of them.
def _bind_all_gather(comm: Communicator, case: Case, buffers: Buffers) -> Callable[[], object]:
    return partial(comm.all_gather, buffers.send, buffers.recv)


# broadcast: every rank gets what the root gives.
def _bind_broadcast(comm: Communicator, case: Case, buffers: Buffers) -> Callable[[], object]:
    return partial(comm.broadcast, buffers.recv, case.root)


# reduce: the root gets the reduction.
def _bind_reduce(comm: Communicator, case: Case, buffers: Buffers) -> Callable[[], object]:
    out = _out(case, buffers) if case.is_root else None
    return partial(comm.reduce, buffers.send, case.root, case.op, out)


# gather: the root gets a slice from every rank.
def _bind_gather(comm: Communicator, case: Case, buffers: Buffers) -> Callable[[], object]:
    return partial(comm.gather, buffers.send, case.root, buffers.recv if case.is_root else None)


# scatter: every rank gets a slice from the root.
def _bind_scatter(comm: Communicator, case: Case, buffers: Buffers) -> Callable[[], object]:
    return partial(comm.scatter, buffers.send if case.is_root else None, case.root, buffers.recv)


# all_to_all: every rank gets its slice of what every rank gives.
def _bind_all_to_all(comm: Communicator, case: Case, buffers: Buffers) -> Callable[[], object]:
    return partial(comm.all_to_all, buffers.send, buffers.recv)


def _bind_barrier(comm: Communicator, case: Case, buffers: Buffers) -> Callable[[], object]:
    return comm.barrier


# sendrecv: the first rank of the pair sends and waits for the answer, a message of the same size.
def _bind_sendrecv(comm: Communicator, case: Case, buffers: Buffers) -> Callable[[], object]:
    send = partial(comm.send, buffers.send, case.other)
    recv = partial(comm.recv, buffers.recv, case.other)
    first, second = (send, recv) if case.rank == case.pair[0] else (recv, send)

    def ping_pong() -> None:
        first()
        second()

    return ping_pong


def _all_slices(case: Case) -> list[Block]:
    return [Block(rank, 0, case.slice) for rank in range(case.ranks)]


_RECORDS = (
    Operation(
        "all_reduce",
        factor=lambda ranks: 2 * (ranks - 1) / ranks,
        lengths=lambda case: (case.elements, case.elements),
        bind=_bind_all_reduce,
        expected=lambda case: [Block(None, 0, case.elements)],
        reduces=True,
    ),
    Operation(
        "reduce_scatter",
        factor=_share_of_others,
        lengths=lambda case: (case.elements, case.slice),
        bind=_bind_reduce_scatter,
        expected=lambda case: [Block(None, case.rank * case.slice, case.slice)],
        splits=True,
        reduces=True,
    ),
    Operation(
        "all_gather",
        factor=_share_of_others,
        lengths=lambda case: (case.slice, case.elements),
        bind=_bind_all_gather,
        expected=_all_slices,
        splits=True,
    ),
    Operation(
        "broadcast",
        factor=_one,
        lengths=lambda case: (case.elements if case.is_root else 0, case.elements),
        bind=_bind_broadcast,
        expected=lambda case: [Block(case.root, 0, case.elements)],
        rooted=True,
        places=(IN_PLACE,),
    ),
    Operation(
        "reduce",
        factor=_one,
        lengths=lambda case: (case.elements, case.elements if case.is_root else 0),
        bind=_bind_reduce,
        expected=lambda case: [Block(None, 0, case.elements)] if case.is_root else [],
        reduces=True,
        rooted=True,
    ),
    Operation(
        "gather",
        factor=_share_of_others,
        lengths=lambda case: (case.slice, case.elements if case.is_root else 0),
        bind=_bind_gather,
        expected=lambda case: _all_slices(case) if case.is_root else [],
        splits=True,
        rooted=True,
    ),
    Operation(
        "scatter",
        factor=_share_of_others,
        lengths=lambda case: (case.elements if case.is_root else 0, case.slice),
        bind=_bind_scatter,
        expected=lambda case: [Block(case.root, case.rank * case.slice, case.slice)],
        splits=True,
        rooted=True,
    ),
    Operation(
        "all_to_all",
        factor=_share_of_others,
        lengths=lambda case: (case.elements, case.elements),
        bind=_bind_all_to_all,
        expected=lambda case: [
            Block(rank, case.rank * case.slice, case.slice) for rank in range(case.ranks)
        ],
        splits=True,
        places=(OUT_OF_PLACE,),
    ),
    Operation(
        "barrier",
        factor=_one,
        lengths=lambda case: (0, 0),
        bind=_bind_barrier,
        expected=lambda case: [],
        places=(OUT_OF_PLACE,),
        sized=False,
    ),
    Operation(
        "sendrecv",
        factor=_one,
        lengths=lambda case: (case.elements, case.elements),
        bind=_bind_sendrecv,
        expected=lambda case: [Block(case.other, 0, case.elements)],
        places=(OUT_OF_PLACE,),
        pairwise=True,
        messages=2,
    ),
)
OPERATIONS: dict[str, Operation] = {record.name: record for record in _RECORDS}
