# Ctrl-C ends a wait within a second with KeyboardInterrupt; the other ranks are told.
from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rank_process import Report, call
from ranks import LAUNCHERS, run_ranks
from side_by_side import side_by_side

import pycomm

DELAY = 0.6
WAITS: dict[str, Callable[[Any], Any]] = {
    "barrier": lambda comm: comm.barrier(),
    "all_reduce": lambda comm: comm.all_reduce(np.ones(1 << 20)),
    "recv": lambda comm: comm.recv(np.ones(3), 1),
    "send": lambda comm: comm.send(np.ones(8 << 20), 1),
    "group": lambda comm: comm.sendrecv(np.ones(8 << 20), 1, np.ones(3), 1),
    "split": lambda comm: comm.split(0),
    "object": lambda comm: comm.all_gather_object(1),
    # The worker drives, and the caller sleeps.
    "behind async": lambda comm: (comm.all_reduce(np.ones(3), async_op=True), comm.barrier()),
}


def interrupt_soon() -> None:
    timer = threading.Timer(DELAY, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()


def interrupted(comm: Any) -> dict[str, list[Report]]:
    reports = {}
    for name, wait in WAITS.items():
        pair = comm.split(0)
        if comm.rank == 0:
            interrupt_soon()
            reports[name] = [call(wait, pair), call(pair.barrier)]
        else:
            time.sleep(DELAY / 2)  # a peer that waits when it happens, for something else
            if name in ("send", "group"):  # which a receive would let finish
                time.sleep(DELAY)
            reports[name] = [call(pair.recv, np.ones(3), 0, 77), call(pair.barrier)]
        comm.barrier()
        pair.close()
    return reports


def test_interrupt_of_a_blocking_call() -> None:
    side_by_side(check_interrupt, ("shm", "tcp"))


def check_interrupt(transport: str) -> None:
    env = {"PYCOMM_TRANSPORT": transport}
    outcomes = run_ranks(2, interrupted, launcher="env", env=env)
    for name, (first, again) in outcomes[0].get().items():
        assert first.error == "KeyboardInterrupt", (name, first)
        assert first.seconds < DELAY + 1, (name, first.seconds)
        assert again.error == "AbortedError" and "interrupted" in again.text, (name, again.text)
    for name, reports in outcomes[1].get().items():
        for report in reports:
            assert report.error == "AbortedError", (name, report)
            assert "rank 0 was interrupted during" in report.text, (name, report.text)
        assert reports[0].seconds < DELAY + 1, name


def interrupted_wait(comm: Any) -> Any:
    x = np.full(4, comm.rank + 1.0)
    if comm.rank == 1:
        time.sleep(DELAY * 2.5)
    work = comm.all_reduce(x, async_op=True)
    first = None
    if comm.rank == 0:
        interrupt_soon()
        first = call(work.wait)
    value = work.wait()
    comm.barrier()
    return first, value.tolist()


def test_interrupt_of_work_wait_leaves_the_operation() -> None:
    side_by_side(check_interrupted_wait, ("shm", "tcp"))


def check_interrupted_wait(transport: str) -> None:
    env = {"PYCOMM_TRANSPORT": transport}
    outcomes = run_ranks(2, interrupted_wait, launcher="env", env=env)
    first, value = outcomes[0].get()
    assert first.error == "KeyboardInterrupt" and first.seconds < DELAY + 1
    assert value == outcomes[1].get()[1] == [3.0] * 4


def interrupted_init() -> Report | None:
    if os.environ["RANK"] == "1":
        time.sleep(2.5)
        return None
    interrupt_soon()
    return call(pycomm.init, timeout=30)


def test_interrupt_of_init() -> None:
    report = run_ranks(2, interrupted_init, launcher="env", init=False)[0].get()
    assert report.error == "KeyboardInterrupt" and report.seconds < DELAY + 1, report


def handler_that_goes_on(comm: Any) -> tuple[int, float]:
    """A signal handler that returns does not disturb the wait."""
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    if comm.rank == 0:
        for delay in (0.1, 0.3, 0.5):
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    else:
        time.sleep(1)
    comm.barrier()
    x = comm.all_reduce(np.ones(1000) * comm.rank)
    return len(seen), float(x.sum())


def test_harmless_signals() -> None:
    side_by_side(check_harmless, LAUNCHERS)


def check_harmless(launcher: str) -> None:
    values = [outcome.get() for outcome in run_ranks(2, handler_that_goes_on, launcher=launcher)]
    assert values == [(3, 1000.0), (0, 1000.0)]
