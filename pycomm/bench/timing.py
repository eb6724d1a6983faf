# Measuring: how many calls, how long they take on every rank, and what bandwidth that is.
"""Time and bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pycomm.communicator import Communicator

Call = Callable[[], object]

# How long the timed calls of one size should take, and the bounds to their number.
TARGET_S = 0.2
MIN_ITERATIONS = 3
MAX_ITERATIONS = 20000
WARMUP_CALLS = 5
# Warm-up stops early rather than taking longer than this.
WARMUP_LIMIT_S = 1.0
# With several calls to compare, those of one size run in this many turns; each turn has all of them
# one after the other, so that a disturbance of the machine meets all alike.
TURNS = 16


def bandwidth(size: int, seconds: float, factor: float) -> tuple[float, float]:
    """Computes the bandwidths as nccl-tests defines them.

    Args:
        size: Bytes of the operation.
        seconds: Time of one call.
        factor: busbw / algbw of the operation for its number of ranks.

    Returns:
        algbw and busbw in GB/s (1e9 bytes per second).
    """
    algbw = size / seconds / 1e9 if seconds > 0 else 0.0
    return algbw, algbw * factor


@dataclass(frozen=True)
class Effort:
    """How much to measure.

    Attributes:
        iterations: Timed calls; None to adapt them to the time of a call: as many as take about
            `TARGET_S` seconds, at least `MIN_ITERATIONS`, at most `MAX_ITERATIONS`.
        warmup: Untimed calls before; None for `WARMUP_CALLS`, fewer when they take too long.
        clock: Seconds from some point on.
    """

    iterations: int | None = None
    warmup: int | None = None
    clock: Callable[[], float] = field(default=time.perf_counter)


@dataclass(frozen=True)
class Times:
    """Seconds per call.

    Attributes:
        iterations: Timed calls of each.
        by_rank: One array with the time on every rank for each call that was measured; 0 for ranks
            that took no part.
    """

    iterations: int
    by_rank: list[NDArray[np.float64]]


class Stopwatch:
    """Measures calls that all ranks make at the same time."""

    def __init__(self, comm: Communicator, effort: Effort) -> None:
        self._effort = effort
        self._barrier = comm.barrier
        self._all_gather = comm.all_gather

    def measure(self, calls: Sequence[Call | None], share: int = 1) -> Times:
        """Measures calls, turn by turn.

        Args:
            calls: What to measure; None for a call in which this rank takes no part. Every rank
                gives as many.
            share: This many measurements share the time of one size.

        Returns:
            The times on all ranks, the same on each of them.
        """
        iterations = min([self._warm_up(call, share) for call in calls], default=MIN_ITERATIONS)
        turns = min(TURNS, iterations) if len(calls) > 1 else 1
        per_call: list[list[float]] = [[] for _ in calls]
        for turn in range(turns):
            count = iterations * (turn + 1) // turns - iterations * turn // turns
            # Each is first as often as last: none always finds the caches that another left.
            for index in range(len(calls)) if turn % 2 == 0 else reversed(range(len(calls))):
                seconds = self._time(calls[index], count, untimed=turns > 1 and count > 1)
                per_call[index].append(seconds / count)
        # Of the turns the middle one: what disturbs a few of them does not decide a comparison.
        return Times(iterations, [self._share_times(median(found)) for found in per_call])

    def _time(self, call: Call | None, count: int, untimed: bool = False) -> float:
        """Returns the seconds that `count` calls take on this rank; ranks start together.

        `untimed` adds a call before, for what the calls of others have done to the caches.
        """
        clock = self._effort.clock
        if untimed and call is not None:
            call()
        self._barrier()
        if call is None:
            return 0.0
        times = repeat(None, count)
        start = clock()
        for _ in times:
            call()
        return clock() - start

    def _warm_up(self, call: Call | None, share: int) -> int:
        """Makes the untimed calls, and returns how many timed ones are sensible."""
        fixed = self._effort.iterations
        warmup = self._effort.warmup
        if warmup is not None and fixed is not None:
            self._time(call, warmup)
            return fixed
        # The first call touches new memory and opens connections, so its time says little.
        first = self._slowest(self._time(call, 1))
        more = WARMUP_CALLS if warmup is None else max(1, warmup - 1)
        if warmup is None and first > 0:
            more = max(1, min(more, int(WARMUP_LIMIT_S / first)))
        seconds = self._slowest(self._time(call, more)) / more
        if fixed is not None:
            return fixed
        wanted = int(TARGET_S / share / seconds) if seconds > 0 else MAX_ITERATIONS
        return max(MIN_ITERATIONS, min(wanted, MAX_ITERATIONS))

    def _slowest(self, seconds: float) -> float:
        return float(self._share_times(seconds).max())

    def _share_times(self, seconds: float) -> NDArray[np.float64]:
        return np.asarray(self._all_gather(np.array([seconds], np.float64)), np.float64)
