# Every collective on mapped memory, each way its data goes, when a rank is killed, stopped or
# interrupted in the middle of it.
from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from failures.test_lost_peers import later
from rank_process import Report, call
from ranks import run_ranks
from side_by_side import side_by_side

PIECE_BYTES = 128 << 10
# Elements of float32: in the board line, staged, and of the size that has a way of its own.
ROUTES = {"line": 6, "staged": 2046, "symmetric": 600_000, "private": 600_000}
Call = Callable[[Any, Any, Any], Any]
CALLS: dict[str, Call] = {
    "all_reduce": lambda comm, x, y: comm.all_reduce(x, out=y),
    "in place": lambda comm, x, y: comm.all_reduce(y, op="max"),
    "reduce": lambda comm, x, y: comm.reduce(x, root=0, out=y),
    "reduce_scatter": lambda comm, x, y: comm.reduce_scatter(x, out=y[: x.size // comm.size]),
    "all_gather": lambda comm, x, y: comm.all_gather(x[: x.size // comm.size], out=y),
    "broadcast": lambda comm, x, y: comm.broadcast(y, root=1),
    "gather": lambda comm, x, y: comm.gather(x[: x.size // comm.size], root=0, out=y),
    "scatter": lambda comm, x, y: comm.scatter(
        x if comm.rank == 1 else None, root=1, out=y[: x.size // comm.size]
    ),
    "all_to_all": lambda comm, x, y: comm.all_to_all(x, out=y),
}
CASES = list(itertools.product(CALLS, ROUTES))


def arrays(comm: Any, route: str) -> tuple[Any, Any]:
    count = ROUTES[route]
    if route == "symmetric":
        x, y = comm.empty(count, np.float32), comm.empty(count, np.float32)
    else:
        x, y = np.empty(count, np.float32), np.empty(count, np.float32)
    x[:] = np.arange(count) % 100 + comm.rank
    y[:] = x
    return x, y


def for_ever(comm: Any, name: str, x: Any, y: Any, timeout: float) -> Report:
    """The report of the call that failed."""
    while True:
        report = call(CALLS[name], comm, x, y) if timeout == 0 else timed(comm, name, x, y, timeout)
        if report.error:
            report.value = None
            return report


def timed(comm: Any, name: str, x: Any, y: Any, timeout: float) -> Report:
    class Limited:
        rank, size = comm.rank, comm.size

        def __getattr__(self, operation: str) -> Any:
            return lambda *args, **words: getattr(comm, operation)(*args, timeout=timeout, **words)

    return call(CALLS[name], Limited(), x, y)


def survive(comm: Any, name: str, route: str) -> tuple[Report, float]:
    x, y = arrays(comm, route)
    comm.barrier()
    start = time.monotonic()
    if comm.rank == 1:
        later(0.4, os.kill, os.getpid(), signal.SIGKILL)
    report = for_ever(comm, name, x, y, 0)
    return report, time.monotonic() - start - 0.4


def test_killed() -> None:
    side_by_side(check_killed, CASES)


def check_killed(case: tuple[str, str]) -> None:
    outcomes = run_ranks(2, survive, *case, launcher="env", env={"PYCOMM_TRANSPORT": "shm"})
    assert outcomes[1].exit_code == -signal.SIGKILL
    report, seconds = outcomes[0].get()
    assert report.error == "PeerLostError" and report.attributes["rank"] == 1, (case, report)
    assert seconds < 5, (case, seconds)


def stopped(comm: Any, name: str, route: str) -> tuple[Report, int]:
    """Rank 1 is stopped for longer than the others wait, and goes on. Returns how many elements
    are not as their owner left them after the error."""
    x, y = arrays(comm, route)
    comm.barrier()
    if comm.rank == 1:
        command = f"sleep 0.3; kill -STOP {os.getpid()}; sleep 3; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", command])
    report = for_ever(comm, name, x, y, 1.0)
    if comm.rank == 1:
        time.sleep(0.5)
        return report, 0
    x[:], y[:] = -7, -8
    time.sleep(3.5)
    return report, int((x != -7).sum() + (y != -8).sum())


STOPPED = [(name, route) for name, route in CASES if route in ("staged", "symmetric")]
STOPPED += [("all_gather", "private"), ("all_to_all", "private")]  # read by the system


def test_stopped() -> None:
    side_by_side(check_stopped, STOPPED)


def check_stopped(case: tuple[str, str]) -> None:
    env = {"PYCOMM_TRANSPORT": "shm"}
    outcomes = run_ranks(3, stopped, *case, launcher="env", env=env)
    for outcome in outcomes:
        report, written = outcome.get()
        assert report.error == "CommTimeoutError", (case, report)
        assert report.attributes["missing"] == [1], (case, report.text)
        # A rank that was stopped in the middle of a piece for a mapped array ends that piece.
        most = PIECE_BYTES // 4 if case[1] == "symmetric" else 0
        assert written <= most, (case, written, "elements were written after the error")


def paused(comm: Any, name: str, route: str) -> None:
    """Rank 1 is stopped and goes on in time: every result is right."""
    x, y = arrays(comm, route)
    whole = [np.arange(x.size) % 100 + rank for rank in range(comm.size)]
    if comm.rank == 1:
        command = f"sleep 0.2; kill -STOP {os.getpid()}; sleep 0.6; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", command])
    end = time.monotonic() + 1.2
    more = True
    while more:
        comm.all_reduce(x, out=y)
        assert (y == sum(whole)).all()
        y[:] = x
        comm.all_reduce(y, op="max")
        assert (y == whole[-1]).all()
        y[:] = -1
        comm.broadcast(x if comm.rank == 0 else y, root=0)
        assert comm.rank == 0 or (y == whole[0]).all()
        more = bool(comm.all_reduce(np.array([time.monotonic() < end]), op="max")[0])


@pytest.mark.parametrize("route", ROUTES)
def test_paused(route: str) -> None:
    env = {"PYCOMM_TRANSPORT": "shm"}
    for outcome in run_ranks(3, paused, "", route, launcher="env", env=env):
        outcome.get()


def interrupted(comm: Any, name: str, route: str) -> Report:
    x, y = arrays(comm, route)
    comm.barrier()
    if comm.rank == 1:
        later(0.4, os.kill, os.getpid(), signal.SIGINT)
        try:
            return for_ever(comm, name, x, y, 0)
        except KeyboardInterrupt:
            return Report(error="KeyboardInterrupt")
    return for_ever(comm, name, x, y, 0)


@pytest.mark.parametrize("route", ["symmetric", "private"])
def test_interrupted(route: str) -> None:
    def check(name: str) -> None:
        outcomes = run_ranks(2, interrupted, name, route, launcher="env")
        assert outcomes[1].get().error == "KeyboardInterrupt", outcomes[1].get()
        assert outcomes[0].get().error in ("AbortedError", "PeerLostError"), outcomes[0].get()

    side_by_side(check, ["all_reduce", "reduce_scatter", "broadcast"])
