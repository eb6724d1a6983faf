# Measures which algorithm is fastest for which size, and writes the profile that init reads.
"""Tuning: ``python -m pycomm.bench --tune``."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pycomm import _core
from pycomm.bench.tune_calls import Call

if TYPE_CHECKING:
    from pycomm.communicator import Communicator

__all__ = ["Plan", "TuneError", "beats", "best_limit", "thresholds", "tune"]

KINDS = (
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "gather",
    "scatter",
    "all_to_all",
)
# What is to displace the built-in choice has to be faster by this, and in most rounds, twice.
MARGIN = 1.05
MOST = 0.75

# Seconds per call by each way, round by round.
Samples = dict[str, list[float]]


class TuneError(Exception):
    """A result was wrong, the ranks cannot be tuned, or the file cannot be written."""


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Attributes:
        sizes: Bytes of the whole buffer, growing.
        limit_sizes: Bytes of the inputs for which limits are measured, growing.
        rounds: How often the choices of a size take turns; the median counts.
        seconds: About how long one turn takes.
    """

    sizes: Sequence[int] = (64, *(4**power for power in range(5, 14)))
    limit_sizes: Sequence[int] = tuple(2**power for power in range(10, 23, 2))
    rounds: int = 9
    seconds: float = 0.01


QUICK = Plan(sizes=(4096, 262144), limit_sizes=(4096, 65536), rounds=3, seconds=0.002)


@dataclass(frozen=True)
class Limit:
    """A size at which operations on mapped memory change their way (base/size_limits.h).

    Attributes:
        name: Its name in profiles.
        kinds: The operations that show it.
        symmetric: Whether on symmetric memory.
    """

    name: str
    kinds: Sequence[str]
    symmetric: bool


LIMITS = (
    Limit("copied", ("all_reduce", "reduce_scatter"), True),
    Limit("staged", ("all_reduce",), False),
    Limit("claimed", ("all_reduce",), True),
    Limit("piped", ("all_gather", "all_to_all"), False),
)


def thresholds(sizes: Sequence[int], names: Sequence[str]) -> list[tuple[int | None, str]]:
    """Joins what is best for each size to (up to bytes, algorithm); None stands for any size.

    Between two sizes with different algorithms the limit is their geometric mean.
    """
    rows: list[tuple[int | None, str]] = []
    for index, name in enumerate(names):
        last = index + 1 == len(names)
        if not last and names[index + 1] == name:
            continue
        limit = None if last else _between(sizes[index], sizes[index + 1])
        rows.append((limit, name))
    return rows


def best_limit(
    sizes: Sequence[int],
    below: Sequence[float],
    above: Sequence[float],
    built_in: Sequence[float],
) -> int | None:
    """Returns the limit that makes all sizes together fastest; None to leave the built-in one.

    Args:
        sizes: Bytes, growing.
        below: Seconds for each size by the way that is taken up to a limit.
        above: The same by the way that is taken above it.
        built_in: The same by the built-in limit.
    """
    limits = [0, *(_between(a, b) for a, b in zip(sizes, sizes[1:], strict=False)), sizes[-1]]

    def gain(number: int) -> float:
        """By how much the first `number` sizes below and the others above gain, as a logarithm."""
        mixed = [*below[:number], *above[number:]]
        return sum(math.log(now / then) for now, then in zip(built_in, mixed, strict=True))

    best = max(range(len(limits)), key=gain)
    return limits[best] if gain(best) > math.log(MARGIN) else None


def beats(challenger: Sequence[float], holder: Sequence[float]) -> bool:
    """Whether a challenger is clearly faster; both in seconds, round by round."""
    won = sum(a < b for a, b in zip(challenger, holder, strict=True))
    faster = float(np.median(challenger)) * MARGIN < float(np.median(holder))
    return faster and won >= MOST * len(holder)


def _medians(samples: Samples) -> dict[str, float]:
    return {name: float(np.median(seconds)) for name, seconds in samples.items()}


def _between(size: int, next_size: int) -> int:
    return round(math.sqrt(size * next_size))


class _Tuner:
    """Lets rows of a profile compete on one communicator."""

    def __init__(self, comm: Communicator, plan: Plan) -> None:
        self._comm = comm
        self._plan = plan
        self._core = comm._core

    def use(self, rows: Iterable[str]) -> None:
        """From here on all ranks choose by these rows alone."""
        self._comm.barrier()
        self._core.use_profile(profile_text([self.place(row) for row in rows]))
        self._comm.barrier()

    def place(self, row: str) -> str:
        return f"{self._comm.transport} {self._comm.size} {row}"

    def choice(self, kind: str, size: int) -> str:
        return self._core.choice(_core.KINDS[kind], size)

    def race(self, call: Call, ways: dict[str, list[str]]) -> Samples:
        """Times a call by each way, which is some rows, in turns; checks all results."""
        for name, rows in ways.items():
            self.use(rows)
            call.clear()
            call.run()
            wrong = np.array([not call.is_right()], np.int32)
            if self._comm.all_reduce(wrong)[0]:
                raise TuneError(f"{call.kind} of {call.size} bytes by {name} gives a wrong result")
        calls = max(1, min(2000, int(self._plan.seconds / max(self._turn(call, 2), 1e-7))))
        calls = int(self._comm.broadcast(np.array([calls]))[0])
        times: Samples = {name: [] for name in ways}
        for turn in range(self._plan.rounds):
            for name in ways if turn % 2 == 0 else reversed(ways):
                self.use(ways[name])
                self._turn(call, 1)
                times[name].append(self._turn(call, calls))
        return times

    def _turn(self, call: Call, calls: int) -> float:
        """Seconds per call, of the slowest rank: so all ranks know the same."""
        self._comm.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call.run()
        seconds = np.array([(time.perf_counter() - start) / calls])
        return float(self._comm.all_reduce(seconds, op="max")[0])

    def best_algorithm(self, kind: str, size: int) -> tuple[str, str, dict[str, float]]:
        """Returns the built-in choice, the best one, and the seconds by each."""
        number = _core.KINDS[kind]
        self.use([])
        built_in = self.choice(kind, size)
        names = [name for name in _core.algorithms_for(number) if _core.keeps_order(number, name)]
        ways = {name: [f"{kind} any {name}"] for name in names}
        if self._comm.transport != "tcp":
            ways["direct"] = [f"{kind} any direct"]
        for name, rows in ways.items():
            self.use(rows)
            if self.choice(kind, size) != name:
                raise TuneError(f"PYCOMM_ALGO says how to {kind}; unset it")
        call = Call(self._comm, kind, size)
        samples = self.race(call, ways)
        times = _medians(samples)
        best = min(times, key=times.__getitem__)
        if beats(samples[best], samples[built_in]):
            # Of many, one is lucky; it has to win again.
            again = self.race(call, {name: ways[name] for name in (built_in, best)})
            if beats(again[best], again[built_in]):
                return built_in, best, _medians(again)
        return built_in, built_in, times

    def best_limit(self, limit: Limit) -> tuple[int | None, float]:
        """Returns the limit, None when the built-in one is as good, and how much faster it is."""
        sizes = self._plan.limit_sizes
        calls = [
            Call(self._comm, kind, size, limit.symmetric) for kind in limit.kinds for size in sizes
        ]
        ways: dict[str, list[str]] = {
            "built in": [],
            "below": [f"limit any {limit.name}"],
            "above": [f"limit 0 {limit.name}"],
        }
        races = [_medians(self.race(call, ways)) for call in calls]

        def joint(way: str) -> list[float]:
            """Geometric mean over the kinds, for each size."""
            times = np.array([race[way] for race in races]).reshape(len(limit.kinds), len(sizes))
            return [float(value) for value in np.exp(np.log(times).mean(axis=0))]

        best = best_limit(sizes, joint("below"), joint("above"), joint("built in"))
        if best is None:
            return None, 1.0
        ways = {"built in": [], "best": [f"limit {best} {limit.name}"]}
        again = [self.race(call, ways) for call in calls]
        wins = any(beats(samples["best"], samples["built in"]) for samples in again)
        ratios = [times["built in"] / times["best"] for times in map(_medians, again)]
        gain = math.prod(ratios) ** (1 / len(limit.kinds))
        return (best if wins and gain > MARGIN else None), max(ratios)


def profile_text(rows: Iterable[str]) -> str:
    """A profile of this machine."""
    return "\n".join(["pycomm-profile 1", f"machine {_core.machine_name()}", *rows]) + "\n"


def kept_rows(path: Path, transport: str, ranks: int) -> list[str]:
    """What a profile of this machine says about others than `ranks` ranks over `transport`."""
    try:
        head, machine, *rows = _core.read_profile(str(path)).splitlines()
    except ValueError:  # none, or one that init would not use, either
        return []
    if [head, machine] != profile_text([]).splitlines():
        return []
    return [row for row in rows if row.split()[:2] != [transport, str(ranks)]]


def _write(path: Path, text: str) -> None:
    """Writes the file whole, or leaves what was there."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _measure(tuner: _Tuner, plan: Plan, mapped: bool, say: Callable[[str], None]) -> list[str]:
    """Measures everything; returns the rows."""
    rows: list[str] = []
    say(f"{'operation':<15} {'bytes':>9} {'built in':>20} {'us':>10} {'best':>20} {'us':>10}")
    for kind in KINDS:
        best: list[str] = []
        for size in plan.sizes:
            built_in, chosen, times = tuner.best_algorithm(kind, size)
            best.append(chosen)
            say(
                f"{kind:<15} {size:>9} {built_in:>20} {times[built_in] * 1e6:>10.2f} "
                f"{chosen:>20} {times[chosen] * 1e6:>10.2f}"
            )
        for limit, name in thresholds(plan.sizes, best):
            rows.append(tuner.place(f"{kind} {'any' if limit is None else limit} {name}"))
    for entry in LIMITS if mapped else ():
        bytes_, gain = tuner.best_limit(entry)
        if bytes_ is None:
            say(f"limit {entry.name:<9} as built in")
            continue
        say(f"limit {entry.name:<9} {bytes_} bytes: up to {gain:.2f} times as fast")
        rows.append(tuner.place(f"limit {bytes_} {entry.name}"))
    return rows


def tune(comm: Communicator, path: Path, plan: Plan, say: Callable[[str], None]) -> None:
    """Measures all operations and writes a profile for this machine and number of ranks.

    What a profile at `path` says about other numbers of ranks or transports of this machine stays.
    Collective and blocking, for a minute or two with the default plan.

    Args:
        comm: A communicator of two ranks or more, on which nothing else is under way.
        path: The file; only rank 0 writes it.
        plan: How much to measure.
        say: Takes lines of progress, on rank 0.

    Raises:
        TuneError: An algorithm gave a wrong result, PYCOMM_ALGO is set, or the file cannot be
            written. The file is as it was.
    """
    tuner = _Tuner(comm, plan)
    try:
        rows = _measure(tuner, plan, comm.transport != "tcp", say)
    finally:
        comm._core.use_profile("")
    problem = ""
    if comm.rank == 0:
        kept = kept_rows(path, comm.transport, comm.size)
        try:
            _write(path, profile_text([*kept, *rows]))
        except OSError as error:
            problem = f"cannot write {path}: {error}"
        if kept:
            say(f"kept {len(kept)} rows about other jobs on this machine")
    problem = comm.broadcast_object(problem)
    if problem:
        raise TuneError(problem)
