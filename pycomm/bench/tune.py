# Measures which algorithm is fastest for which size, and writes the profile that init reads.
"""Tuning: ``python -m pycomm.bench --tune``."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pycomm import _core

if TYPE_CHECKING:
    from pycomm.communicator import Communicator

__all__ = ["Plan", "TuneError", "thresholds", "tune"]

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
# Another algorithm has to be faster by this before it displaces the built-in one.
MARGIN = 1.05

Array = NDArray[np.float32]


class TuneError(Exception):
    """A result was wrong, or the ranks cannot be tuned."""


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Attributes:
        sizes: Bytes of the whole buffer, growing.
        rounds: How often the algorithms of a size take turns; the median counts.
        seconds: About how long one turn takes.
    """

    sizes: Sequence[int] = tuple(4**power for power in range(5, 13))
    rounds: int = 7
    seconds: float = 0.01


QUICK = Plan(sizes=(4096, 262144), rounds=3, seconds=0.002)


def thresholds(sizes: Sequence[int], names: Sequence[str]) -> list[tuple[int | None, str]]:
    """Joins what is best for each size to (up to bytes, algorithm); None stands for any size.

    Between two sizes with different algorithms the limit is their geometric mean.
    """
    rows: list[tuple[int | None, str]] = []
    for index, name in enumerate(names):
        last = index + 1 == len(names)
        if not last and names[index + 1] == name:
            continue
        limit = None if last else round((sizes[index] * sizes[index + 1]) ** 0.5)
        rows.append((limit, name))
    return rows


def _bind(comm: Communicator, kind: str, size: int) -> tuple[Callable[[], Any], Array]:
    """A call of an operation on private arrays, and the array with its result."""
    ranks, rank = comm.size, comm.rank
    count = max(1, size // 4 // ranks) * ranks
    whole: Array = ((np.arange(count) * 3 + rank * 7) % 64).astype(np.float32)
    part = whole[: count // ranks].copy()
    out = np.full(count, -1, np.float32)
    out_part = np.full(count // ranks, -1, np.float32)
    root = 0
    calls: dict[str, tuple[Callable[[], Any], Array]] = {
        "all_reduce": (lambda: comm.all_reduce(whole, out=out), out),
        "reduce": (lambda: comm.reduce(whole, root, out=out), out),
        "reduce_scatter": (lambda: comm.reduce_scatter(whole, out=out_part), out_part),
        "all_gather": (lambda: comm.all_gather(part, out=out), out),
        "broadcast": (lambda: comm.broadcast(whole, root), whole),
        "gather": (lambda: comm.gather(part, root, out=out), out),
        "scatter": (
            lambda: comm.scatter(whole if rank == root else None, root, out=out_part),
            out_part,
        ),
        "all_to_all": (lambda: comm.all_to_all(whole, out=out), out),
    }
    return calls[kind]


class _Size:
    """The algorithms of one operation at one size, which take turns."""

    def __init__(self, comm: Communicator, kind: str, size: int, names: Sequence[str]) -> None:
        self._comm = comm
        self._kind = kind
        self._names = names
        self._call, self._result = _bind(comm, kind, size)

    def _use(self, name: str) -> None:
        self._comm.barrier()
        self._comm._core.force(f"{self._kind}:{name}")
        self._comm.barrier()

    def _turn(self, calls: int) -> float:
        """Seconds per call, of the slowest rank."""
        self._comm.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            self._call()
        seconds = np.array([(time.perf_counter() - start) / calls])
        return float(self._comm.all_reduce(seconds, op="max")[0])

    def measure(self, plan: Plan) -> dict[str, float]:
        """Returns the median time of each algorithm in seconds.

        Raises:
            TuneError: The algorithms disagree, by more than rounding.
        """
        expected: Array | None = None
        for name in self._names:
            self._use(name)
            if self._kind != "broadcast":
                self._result[...] = -1
            self._call()
            expected = self._result.copy() if expected is None else expected
            wrong = np.array([not np.allclose(self._result, expected, rtol=1e-5)], np.int32)
            if self._comm.all_reduce(wrong)[0]:
                raise TuneError(f"{self._kind} by {name} gives another result")
        calls = max(1, min(2000, int(plan.seconds / max(self._turn(2), 1e-7))))
        calls = int(self._comm.broadcast(np.array([calls]))[0])
        times: dict[str, list[float]] = {name: [] for name in self._names}
        for turn in range(plan.rounds):
            for name in self._names if turn % 2 == 0 else reversed(self._names):
                self._use(name)
                self._turn(1)
                times[name].append(self._turn(calls))
        return {name: float(np.median(samples)) for name, samples in times.items()}


def _choose(times: dict[str, float], built_in: str) -> str:
    best = min(times, key=times.__getitem__)
    return best if times[best] * MARGIN < times[built_in] else built_in


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


def tune(comm: Communicator, path: Path, plan: Plan, say: Callable[[str], None]) -> None:
    """Measures all operations and writes a profile for this machine and number of ranks.

    Collective and blocking, for about a minute with the default plan.

    Args:
        comm: A communicator of two ranks or more, on which nothing else is under way.
        path: The file; only rank 0 writes it.
        plan: How much to measure.
        say: Takes lines of progress, on rank 0.

    Raises:
        TuneError: An algorithm gave a wrong result; no file is written.
    """
    core = comm._core
    lines = ["pycomm-profile 1", f"machine {_core.machine_name()}"]
    mapped = comm.transport != "tcp"
    say(f"{'operation':<15} {'bytes':>9} {'built in':>20} {'us':>10} {'best':>20} {'us':>10}")
    try:
        for kind in KINDS:
            number = _core.KINDS[kind]
            names = [*(["direct"] if mapped else []), *_core.algorithms_for(number)]
            best: list[str] = []
            for size in plan.sizes:
                core.force("")
                built_in = core.choice(number, size)
                times = _Size(comm, kind, size, names).measure(plan)
                # All ranks measured the same, the slowest's time.
                best.append(_choose(times, built_in))
                say(
                    f"{kind:<15} {size:>9} {built_in:>20} {times[built_in] * 1e6:>10.2f} "
                    f"{best[-1]:>20} {times[best[-1]] * 1e6:>10.2f}"
                )
            for limit, name in thresholds(plan.sizes, best):
                shown = "any" if limit is None else limit
                lines.append(f"{comm.transport} {comm.size} {kind} {shown} {name}")
    finally:
        core.force("")
    if comm.rank == 0:
        _write(path, "\n".join(lines) + "\n")
    comm.barrier()
