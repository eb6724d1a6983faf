# Runs one operation over all sizes: buffers, measurement, check.
"""Running a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pycomm.bench.data import DTYPES, Array, Pattern, fill_sentinel, why_not
from pycomm.bench.limit import Limit
from pycomm.bench.operations import IN_PLACE, OPERATIONS, PLACES, Buffers, Case, Operation
from pycomm.bench.results import Measurement, Report, Row
from pycomm.bench.timing import Call, Effort, Stopwatch, bandwidth

if TYPE_CHECKING:
    from pycomm.bench.peers import Peer
    from pycomm.communicator import Communicator

_PAGE = 4096


@dataclass(frozen=True)
class BenchOptions:
    """What to run, the same on all ranks.

    Attributes:
        sizes: Sizes in bytes; each is rounded up to a whole number of elements, the same for all
            ranks. Sizes that become equal are run once.
        dtype: Name of the element type.
        op: Reduction.
        root: Root.
        places: Where the result may go: `operations.PLACES` or one of them.
        check: Whether to check the results.
        effort: How much to measure.
        symmetric: Whether the buffers are symmetric memory (`Communicator.empty`).
        peers: Other libraries to run on the same sizes, on ordinary memory.
        limit: Whether to measure what the machine's memory allows, too.
    """

    sizes: Sequence[int]
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    places: Sequence[str] = PLACES
    check: bool = True
    effort: Effort = field(default_factory=Effort)
    symmetric: bool = False
    peers: Sequence[Peer] = ()
    limit: bool = False


def problem(operation: Operation, options: BenchOptions, ranks: int) -> str | None:
    """Says why an operation cannot run with these options on so many ranks; None when it can."""
    if operation.pairwise and ranks < 2:
        return f"{operation.name} needs at least 2 ranks, this job has {ranks}"
    if operation.rooted and not 0 <= options.root < ranks:
        return f"the root must be from 0 to {ranks - 1}, got {options.root}"
    if not set(options.places) & set(operation.places):
        wanted = options.places[0].replace("_", " ")
        return f"{operation.name} cannot run {wanted}"
    if operation.reduces:
        return why_not(DTYPES[options.dtype], options.op)
    return None


def element_counts(operation: Operation, options: BenchOptions, ranks: int) -> list[int]:
    """Turns the sizes into numbers of elements of the larger buffer, each once."""
    if not operation.sized:
        return [0]
    unit = ranks if operation.splits else 1
    step = DTYPES[options.dtype].itemsize * unit
    return list(dict.fromkeys(-(-size // step) * unit for size in options.sizes))


def memory_needed(operation: Operation, options: BenchOptions, ranks: int) -> int:
    """Returns the bytes of buffers that one rank allocates."""
    pools = 2 + (2 if _peers_apart(options) else 0) + (2 if options.limit else 0)
    return pools * _largest(operation, options, ranks)


def _largest(operation: Operation, options: BenchOptions, ranks: int) -> int:
    return max(element_counts(operation, options, ranks)) * DTYPES[options.dtype].itemsize


def _peers_apart(options: BenchOptions) -> bool:
    """Other libraries have no symmetric memory, and use memory of their own then."""
    return options.symmetric and len(options.peers) > 0


def run_benchmark(
    comm: Communicator,
    operation: str,
    options: BenchOptions,
    on_row: Callable[[Report, Row], None] | None = None,
) -> Report:
    """Measures one operation over all sizes. All ranks call it, with the same arguments.

    Args:
        comm: The communicator to measure.
        operation: A name in `OPERATIONS`.
        options: What to run.
        on_row: Called on every rank after each size.

    Returns:
        The results, the same on every rank.

    Raises:
        ValueError: The operation cannot run with these options.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"unknown operation {operation!r}; there are {', '.join(OPERATIONS)}")
    if options.dtype not in DTYPES:
        raise ValueError(f"unknown dtype {options.dtype!r}; there are {', '.join(DTYPES)}")
    runner = _Runner(comm, OPERATIONS[operation], options)
    for elements in element_counts(runner.operation, options, comm.size):
        row = runner.run(elements)
        runner.report.rows.append(row)
        if on_row is not None:
            on_row(runner.report, row)
    return runner.report


@dataclass
class _Tally:
    """Seconds per call of one case on all ranks, and wrong elements."""

    iterations: int
    own: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    peers: dict[str, float | None] = field(default_factory=dict)
    limit: float | None = None
    wrong: int = 0
    peers_wrong: dict[str, int] = field(default_factory=dict)


class _Runner:
    """One operation with its buffers, which all sizes share."""

    def __init__(self, comm: Communicator, operation: Operation, options: BenchOptions) -> None:
        obstacle = problem(operation, options, comm.size)
        if obstacle is not None:
            raise ValueError(obstacle)
        self.operation = operation
        self.report = Report(
            operation.name,
            comm.size,
            options.dtype,
            options.op if operation.reduces else "none",
            options.root if operation.rooted else -1,
        )
        self._comm = comm
        self._options = options
        self._dtype = DTYPES[options.dtype]
        self._pattern = Pattern(self._dtype, options.op if operation.reduces else None, comm.size)
        self._stopwatch = Stopwatch(comm, options.effort)
        needed = _largest(operation, options, comm.size)
        self._pools = self._allocate(needed, options.symmetric)
        self._peer_pools = self._pools
        if _peers_apart(options):
            self._peer_pools = self._allocate(needed, False)
        self._limit = Limit(comm, needed) if options.limit and operation.sized else None

    def run(self, elements: int) -> Row:
        """Measures one size."""
        size = elements * self._dtype.itemsize
        count = elements // self._comm.size if self.operation.splits else elements
        places = [place for place in self.operation.places if place in self._options.places]
        return Row(size, count, {place: self._run_place(elements, place) for place in places})

    def _run_place(self, elements: int, place: str) -> Measurement:
        case = Case(
            rank=self._comm.rank,
            ranks=self._comm.size,
            elements=elements,
            dtype=self._dtype,
            op=self._options.op,
            root=self._options.root,
            place=place,
        )
        if not self.operation.pairwise:
            return self._measure([case])
        pairs = combinations(range(case.ranks), 2)
        return self._measure([replace(case, pair=pair) for pair in pairs])

    def _measure(self, cases: list[Case]) -> Measurement:
        """Measures one case, or one for each pair of ranks, and puts them together."""
        tallies = [self._measure_case(case, len(cases)) for case in cases]
        seconds = [float(value) for tally in tallies for value in tally.own]
        average = sum(seconds) / len(seconds)
        size = cases[0].elements * self._dtype.itemsize
        algbw, busbw = bandwidth(size, average, self.operation.factor(self._comm.size))
        checked = self._options.check
        peers = [peer.name for peer in self._options.peers]
        limit = _average([tally.limit for tally in tallies])
        pairs_us = {}
        if self.operation.pairwise:
            for case, value in zip(cases, seconds, strict=True):
                pairs_us[f"{case.pair[0]}-{case.pair[1]}"] = value * 1e6
        return Measurement(
            time_us=average * 1e6,
            min_us=min(seconds) * 1e6,
            max_us=max(seconds) * 1e6,
            algbw=algbw,
            busbw=busbw,
            wrong=sum(tally.wrong for tally in tallies) if checked else None,
            iterations=tallies[-1].iterations,
            peers_us={
                name: _micro(_average([tally.peers.get(name) for tally in tallies]))
                for name in peers
            },
            peers_wrong={
                name: sum(tally.peers_wrong.get(name, 0) for tally in tallies)
                for name in peers
                if checked and any(name in tally.peers_wrong for tally in tallies)
            },
            limit_us=_micro(limit),
            percent_of_limit=100 * limit / average if limit and average > 0 else None,
            pairs_us=pairs_us,
        )

    def _measure_case(self, case: Case, share: int) -> _Tally:
        """Measures one case: pycomm, the other libraries and the limit in turns."""
        operation = self.operation
        buffers = self._buffers(case, self._pools)
        peer_buffers = self._buffers(case, self._peer_pools)
        taking_part = not operation.pairwise or case.rank in case.pair
        own = operation.bind(self._comm, case, buffers) if taking_part else None
        able = [peer for peer in self._options.peers if peer.can(operation.name, case)]
        peers: dict[str, Call | None] = {
            peer.name: peer.bind(operation.name, case, peer_buffers) if taking_part else None
            for peer in able
        }
        limits: list[Call | None] = []
        if self._limit is not None:
            limits = [
                call if taking_part else None for call in self._limit.bind(operation.name, case)
            ]
        self._reset(case, buffers)
        self._reset(case, peer_buffers)
        times = self._stopwatch.measure([own, *peers.values(), *limits], share)
        own_times, *other_times = (by_rank / operation.messages for by_rank in times.by_rank)
        tally = _Tally(iterations=times.iterations)
        tally.own = own_times[[case.pair[0]]] if operation.pairwise else own_times
        tally.peers = {name: _mean(found) for name, found in zip(peers, other_times, strict=False)}
        limit_times = [_mean(found) for found in other_times[len(peers) :]]
        tally.limit = min([value for value in limit_times if value is not None], default=None)
        if self._options.check:
            tally.wrong = self._check(case, buffers, buffers.recv, own)
            for peer in able:
                result = peer.result(operation.name, case, peer_buffers)
                wrong = self._check(case, peer_buffers, result, peers[peer.name])
                tally.peers_wrong[peer.name] = wrong
        return tally

    def _allocate(self, size: int, symmetric: bool) -> tuple[Array, Array]:
        """Allocates two buffers from the start of a page on: an offset would change the speed."""

        def one() -> Array:
            if symmetric:
                return np.asarray(self._comm.empty((max(size, 1),), np.uint8))
            pool = np.empty(max(size, 1) + _PAGE, np.uint8)
            start = -pool.ctypes.data % _PAGE
            return pool[start : start + max(size, 1)]

        return one(), one()

    def _buffers(self, case: Case, pools: tuple[Array, Array]) -> Buffers:
        give, get = self.operation.lengths(case)

        def view(pool: Array, length: int) -> Array:
            return pool[: length * self._dtype.itemsize].view(self._dtype)

        if case.place != IN_PLACE:
            return Buffers(view(pools[0], give), view(pools[1], get))
        # In place, the smaller buffer is this rank's slice of the larger one.
        whole = view(pools[0], max(give, get))
        small = min(give, get)
        own = whole if small == len(whole) else whole[case.rank * small : (case.rank + 1) * small]
        return Buffers(own, whole) if give < get else Buffers(whole, own)

    def _reset(self, case: Case, buffers: Buffers) -> None:
        fill_sentinel(buffers.recv)
        self._pattern.fill(buffers.send, case.rank)

    def _check(self, case: Case, buffers: Buffers, result: Array, call: Call | None) -> int:
        """Runs once more on fresh data; returns the wrong elements of all ranks together."""
        wrong = 0
        if call is not None:
            self._reset(case, buffers)
        self._comm.barrier()
        if call is not None:
            call()
            index = 0
            for block in self.operation.expected(case):
                part = result[index : index + block.length]
                wrong += self._pattern.count_wrong(part, block.source, block.start)
                index += block.length
            if case.place != IN_PLACE:  # an input stays what it was
                wrong += self._pattern.count_wrong(buffers.send, case.rank, 0)
        return int(np.asarray(self._comm.all_gather(np.array([wrong], np.int64))).sum())


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def _mean(times: NDArray[np.float64]) -> float | None:
    """Averages the ranks that took part."""
    taking_part = times[times > 0]
    return float(taking_part.mean()) if len(taking_part) else None
