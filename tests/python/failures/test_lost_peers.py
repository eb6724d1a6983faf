# A peer that is killed is named within 5 seconds on every survivor; one that is stopped, by a
# timeout; and one that goes on in time is no problem. Nobody burns a core while waiting.
from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rank_process import Report, call
from ranks import run_ranks
from side_by_side import side_by_side

NAMED_WITHIN = 5.0
TRANSPORTS = ["shm", "tcp"]
LARGE = 24 << 20  # bytes; far beyond any internal buffer


def later(seconds: float, action: Callable[..., Any], *args: Any) -> None:
    timer = threading.Timer(seconds, action, args)
    timer.daemon = True
    timer.start()


def large_all_reduce_for_ever(comm: Any) -> None:
    x = np.ones(LARGE // 4, dtype=np.float32)
    while True:
        comm.all_reduce(x, op="max")


def async_for_ever(comm: Any) -> None:
    x = np.ones(1000, dtype=np.float32)
    while True:
        works = [comm.all_reduce(x.copy(), op="max", async_op=True) for _ in range(20)]
        for work in works:
            work.wait()


def split_for_ever(comm: Any) -> None:
    while True:
        comm.split(comm.rank % 2).close()


# What the ranks do when one of them is killed: name -> (call of the victim, of the others).
# "idle" is a victim that takes no part; None is one that does what the others do.
Action = Callable[[Any, int], Any]


def idle(comm: Any, victim: int) -> None:
    time.sleep(60)


ACTIONS: dict[str, tuple[Action | None, Action]] = {
    "barrier": (idle, lambda comm, victim: comm.barrier()),
    "all_reduce": (None, lambda comm, victim: large_all_reduce_for_ever(comm)),
    "ring": (None, lambda comm, victim: large_all_reduce_for_ever(comm)),
    "broadcast": (idle, lambda comm, victim: comm.broadcast(np.ones(LARGE // 8), root=victim)),
    "recv": (idle, lambda comm, victim: comm.recv(np.ones(3), victim)),
    "send": (idle, lambda comm, victim: comm.send(np.ones(LARGE // 8), victim)),
    "async": (idle, lambda comm, victim: comm.all_reduce(np.ones(9), async_op=True).wait()),
    "many async": (None, lambda comm, victim: async_for_ever(comm)),
    "split": (idle, lambda comm, victim: comm.split(0)),
    "splits": (None, lambda comm, victim: split_for_ever(comm)),
    "object": (idle, lambda comm, victim: comm.broadcast_object(None, root=victim)),
}


def die_while_needed(comm: Any, name: str, victim: int) -> tuple[Report, float, float, Report]:
    act, others = ACTIONS[name]
    comm.barrier()
    start = time.time()
    if comm.rank == victim:
        later(0.7, os.kill, os.getpid(), signal.SIGKILL)
        (act or others)(comm, victim)
    cpu = time.process_time()
    report = call(others, comm, victim)
    cpu = time.process_time() - cpu
    again = call(comm.barrier)
    begun = time.monotonic()
    comm.close()
    assert time.monotonic() - begun < 2
    # Seconds from the death to the error, and CPU seconds spent.
    return report, time.time() - start - 0.7, cpu, again


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_killed_peer_is_named(transport: str) -> None:
    side_by_side(lambda name: check_killed(name, transport), ACTIONS)


def check_killed(name: str, transport: str) -> None:
    n, victim = {"barrier": (4, 2), "ring": (4, 1), "recv": (3, 0), "split": (3, 1)}.get(
        name, (3, 2) if "s" in name else (2, 1)
    )
    env = {"PYCOMM_TRANSPORT": transport}
    if name == "ring":
        env["PYCOMM_ALGO"] = "all_reduce:ring"
    outcomes = run_ranks(n, die_while_needed, name, victim, launcher="env", env=env)
    assert outcomes[victim].exit_code == -signal.SIGKILL
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        report, seconds, cpu, again = outcome.get()
        assert report.error == "PeerLostError", (outcome.rank, report)
        assert report.attributes["rank"] == victim, report.text
        assert f"rank {victim}" in report.text and "ConnectionError" in report.bases
        assert seconds < NAMED_WITHIN, seconds
        if ACTIONS[name][0] is idle:
            assert cpu < 0.35, cpu
        assert again.error == "PeerLostError" and "broken by an earlier error" in again.text


def stopped_while_needed(comm: Any, name: str, limit: float, pause: float) -> list[Report]:
    """Rank 1 is stopped by SIGSTOP in the middle, and goes on after `pause` seconds."""
    comm.barrier()
    x = np.full(LARGE // 4, comm.rank + 1, dtype=np.float32)
    reports: list[Report] = []
    if comm.rank == 1:
        command = f"sleep 0.3; kill -STOP {os.getpid()}; sleep {pause}; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", command])
    end = time.monotonic() + 1.0
    while True:
        x[:] = comm.rank + 1
        if name == "all_reduce":
            report = call(comm.all_reduce, x, timeout=limit)
        elif name == "broadcast":
            report = call(comm.broadcast, x, root=1, timeout=limit)
        else:
            report = call(comm.barrier, timeout=limit)
        report.value = None if report.value is None else (float(x.min()), float(x.max()))
        reports = [*reports[-20:], report]
        # All ranks end with the same operation; it may be the one that was stopped.
        more = np.array([time.monotonic() < end])
        again = call(comm.all_reduce, more, op="max", timeout=limit)
        report.seconds = max(report.seconds, again.seconds)
        if report.error or again.error or not again.value[0]:
            return reports


@pytest.mark.parametrize("algorithm", ["", "all_reduce:ring"])
def test_stopped_rank_that_goes_on(algorithm: str) -> None:
    side_by_side(lambda kind: check_goes_on(kind, algorithm), TRANSPORTS)


def check_goes_on(transport: str, algorithm: str) -> None:
    env = {"PYCOMM_TRANSPORT": transport, "PYCOMM_ALGO": algorithm}
    outcomes = run_ranks(3, stopped_while_needed, "all_reduce", 20.0, 1.5, launcher="env", env=env)
    for outcome in outcomes:
        reports = outcome.get()
        assert all(report.error == "" and report.value == (6.0, 6.0) for report in reports)
        if outcome.rank != 1:  # rank 1 may have been stopped between two operations
            assert max(report.seconds for report in reports) > 1.0


def stop_in_the_middle(comm: Any, name: str, limit: float) -> Report:
    comm.barrier()
    x = np.ones(LARGE // 4, dtype=np.float32)
    if comm.rank == 1:
        command = f"sleep 0.4; kill -STOP {os.getpid()}; sleep 2.5; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", command])
    while True:
        if name == "broadcast":
            report = call(comm.broadcast, x, root=1, timeout=limit)
        elif name == "barrier":
            report = call(comm.barrier, timeout=limit)
        else:
            report = call(comm.all_reduce, x, op="max", timeout=limit)
        report.value = None
        if report.error:
            return report


@pytest.mark.parametrize("name", ["barrier", "all_reduce", "ring", "broadcast"])
def test_stopped_rank_is_named(name: str) -> None:
    side_by_side(lambda kind: check_stopped(name, kind), TRANSPORTS)


def check_stopped(name: str, transport: str) -> None:
    env = {"PYCOMM_TRANSPORT": transport}
    if name == "ring":
        env["PYCOMM_ALGO"] = "all_reduce:ring"
    outcomes = run_ranks(4, stop_in_the_middle, name, 1.5, launcher="env", env=env)
    for outcome in outcomes:
        report = outcome.get()
        assert report.error == "CommTimeoutError", report
        if transport == "shm":
            assert report.attributes["missing"] == [1], report.text
        else:  # over TCP a rank that waits for the stopped one may be named, too
            chained = name in ("barrier", "ring", "broadcast")
            assert 1 in report.attributes["missing"] or chained, report.text


def die_with_a_living_child(comm: Any) -> Report:
    """A worker process of the victim, made by fork, outlives it."""
    comm.barrier()
    if comm.rank == 1:
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    return call(comm.barrier)


def test_killed_peer_whose_forked_child_lives() -> None:
    def check(transport: str) -> None:
        env = {"PYCOMM_TRANSPORT": transport}
        outcomes = run_ranks(3, die_with_a_living_child, launcher="env", env=env)
        for outcome in outcomes[::2]:
            report = outcome.get()
            assert report.error == "PeerLostError" and report.attributes["rank"] == 1, report
            assert report.seconds < 2.5, report.seconds

    side_by_side(check, TRANSPORTS)
