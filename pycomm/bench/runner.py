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
        peers: Other libraries to run on the same sizes.
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
    largest = max(element_counts(operation, options, ranks))
    return 2 * largest * DTYPES[options.dtype].itemsize


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
        needed = memory_needed(operation, options, comm.size) // 2
        self._pools = self._allocate(needed), self._allocate(needed)

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
        messages = self.operation.messages
        seconds: list[float] = []
        peer_seconds: list[list[float | None]] = []
        pairs_us: dict[str, float] = {}
        wrong = iterations = 0
        for case in cases:
            buffers = self._buffers(case)
            taking_part = not self.operation.pairwise or case.rank in case.pair
            own = self.operation.bind(self._comm, case, buffers) if taking_part else None
            able = [peer for peer in self._options.peers if peer.can(self.operation.name, case)]
            calls: list[Call | None] = [own]
            for peer in able:
                bound = peer.bind(self.operation.name, case, buffers) if taking_part else None
                calls.append(bound)
            self._reset(case, buffers)
            times = self._stopwatch.measure(calls, share=len(cases))
            iterations = times.iterations
            own_times, *peer_times = (by_rank / messages for by_rank in times.by_rank)
            if self.operation.pairwise:
                seconds.append(float(own_times[case.pair[0]]))
                pairs_us[f"{case.pair[0]}-{case.pair[1]}"] = seconds[-1] * 1e6
            else:
                seconds.extend(float(value) for value in own_times)
            found = dict(zip([peer.name for peer in able], peer_times, strict=True))
            peer_seconds.append([_mean(found.get(peer.name)) for peer in self._options.peers])
            if self._options.check:
                wrong += self._check(case, buffers, own)
        average = sum(seconds) / len(seconds)
        size = cases[0].elements * self._dtype.itemsize
        algbw, busbw = bandwidth(size, average, self.operation.factor(self._comm.size))
        return Measurement(
            time_us=average * 1e6,
            min_us=min(seconds) * 1e6,
            max_us=max(seconds) * 1e6,
            algbw=algbw,
            busbw=busbw,
            wrong=wrong if self._options.check else None,
            iterations=iterations,
            peers_us=self._peers_us(peer_seconds),
            pairs_us=pairs_us,
        )

    def _peers_us(self, seconds: list[list[float | None]]) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for peer, values in zip(self._options.peers, zip(*seconds, strict=True), strict=False):
            known = [value for value in values if value is not None]
            found[peer.name] = sum(known) / len(known) * 1e6 if known else None
        return found

    def _allocate(self, size: int) -> Array:
        """Allocates bytes from the start of a page on: an offset would change the speed."""
        size = max(size, 1)
        if self._options.symmetric:
            return np.asarray(self._comm.empty((size,), np.uint8))
        pool = np.empty(size + _PAGE, np.uint8)
        start = -pool.ctypes.data % _PAGE
        return pool[start : start + size]

    def _buffers(self, case: Case) -> Buffers:
        give, get = self.operation.lengths(case)

        def view(pool: Array, length: int) -> Array:
            return pool[: length * self._dtype.itemsize].view(self._dtype)

        if case.place != IN_PLACE:
            return Buffers(view(self._pools[0], give), view(self._pools[1], get))
        # In place, the smaller buffer is this rank's slice of the larger one.
        whole = view(self._pools[0], max(give, get))
        small = min(give, get)
        own = whole if small == len(whole) else whole[case.rank * small : (case.rank + 1) * small]
        return Buffers(own, whole) if give < get else Buffers(whole, own)

    def _reset(self, case: Case, buffers: Buffers) -> None:
        fill_sentinel(buffers.recv)
        self._pattern.fill(buffers.send, case.rank)

    def _check(self, case: Case, buffers: Buffers, call: Call | None) -> int:
        """Runs once more on fresh data; returns the wrong elements of all ranks together."""
        wrong = 0
        if call is not None:
            self._reset(case, buffers)
        self._comm.barrier()
        if call is not None:
            call()
            index = 0
            for block in self.operation.expected(case):
                part = buffers.recv[index : index + block.length]
                wrong += self._pattern.count_wrong(part, block.source, block.start)
                index += block.length
            if case.place != IN_PLACE:  # an input stays what it was
                wrong += self._pattern.count_wrong(buffers.send, case.rank, 0)
        return int(np.asarray(self._comm.all_gather(np.array([wrong], np.int64))).sum())


def _mean(times: NDArray[np.float64] | None) -> float | None:
    """Averages the ranks that took part."""
    if times is None:
        return None
    taking_part = times[times > 0]
    return float(taking_part.mean()) if len(taking_part) else None
