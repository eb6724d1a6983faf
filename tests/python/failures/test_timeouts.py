# Deadlines: they fire in time, name who is missing, break the communicator, leave processes alive.
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rank_process import Report, call
from ranks import LAUNCHERS, run_ranks, run_script
from side_by_side import side_by_side

import pycomm

LIMIT = 1.5
EARLIEST, LATEST = 1.45, 3.5
TRANSPORTS = ["shm", "tcp", "threads"]


def over(transport: str) -> dict[str, Any]:
    """Arguments of run_ranks for a transport."""
    if transport == "threads":
        return {"launcher": "threads"}
    return {"launcher": "env", "env": {"PYCOMM_TRANSPORT": transport}}


def async_own_deadline(comm: Any, timeout: float | None) -> None:
    comm.all_reduce(np.ones(4), timeout=timeout, async_op=True).wait()


# Every way to wait for a peer that does nothing: name -> call on rank 0 of 2.
WAITS: dict[str, Callable[[Any, float | None], Any]] = {
    "barrier": lambda comm, timeout: comm.barrier(timeout=timeout),
    "all_reduce": lambda comm, timeout: comm.all_reduce(np.ones(1000), timeout=timeout),
    "large all_reduce": lambda comm, timeout: comm.all_reduce(np.ones(1 << 20), timeout=timeout),
    "broadcast": lambda comm, timeout: comm.broadcast(np.ones(9), root=1, timeout=timeout),
    "recv": lambda comm, timeout: comm.recv(np.ones(3), 1, timeout=timeout),
    "send": lambda comm, timeout: comm.send(np.ones(8 << 20), 1, timeout=timeout),  # 64 MiB
    "sendrecv": lambda comm, timeout: comm.sendrecv(np.ones(3), 1, np.ones(3), 1, timeout=timeout),
    "async": async_own_deadline,
    "object": lambda comm, timeout: comm.all_gather_object("x", timeout=timeout),
}


def time_out_everywhere(comm: Any, timeout: float | None) -> dict[str, list[Report]]:
    """Rank 0 waits in vain in all ways at once, each on a communicator of its own."""
    pairs = {name: comm.split(0) for name in WAITS}
    reports: dict[str, list[Report]] = {name: [] for name in WAITS}

    def attempt(name: str) -> None:
        reports[name].append(call(WAITS[name], pairs[name], timeout))

    if comm.rank == 0:
        threads = [threading.Thread(target=attempt, args=(name,)) for name in WAITS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    comm.barrier(timeout=20)
    # Broken on both ranks, and both say why.
    for name, pair in pairs.items():
        reports[name].append(call(pair.barrier))
        start = time.monotonic()
        pair.close()
        assert time.monotonic() - start < 1, name
    comm.barrier(timeout=20)  # the parent is intact
    return reports


def check_reports(outcomes: list[Any]) -> None:
    for name in WAITS:
        timed_out, again = outcomes[0].get()[name]
        assert timed_out.error == "CommTimeoutError", (name, timed_out)
        assert EARLIEST < timed_out.seconds < LATEST, (name, timed_out.seconds)
        assert timed_out.attributes["missing"] == [1], (name, timed_out.text)
        assert "TimeoutError" in timed_out.bases
        assert "rank 0 of 2 timed out after 1.5 s waiting for rank 1" in timed_out.text, name
        for report in (again, outcomes[1].get()[name][0]):
            assert report.error == "CommTimeoutError", (name, report)
            assert "broken by an earlier error" in report.text, (name, report.text)
            assert report.attributes["missing"] == [1] and report.seconds < 0.5, name
    assert "posted no receive" in outcomes[0].get()["send"][0].text
    assert "has not called this operation" in outcomes[0].get()["barrier"][0].text


def test_timeout_of_a_call_and_of_the_constructor() -> None:
    def check(name: str) -> None:
        if name == "constructor":
            outcomes = run_ranks(2, time_out_everywhere, None, launcher="env", init_timeout=LIMIT)
        else:
            outcomes = run_ranks(2, time_out_everywhere, LIMIT, **over(name))
        check_reports(outcomes)

    side_by_side(check, [*TRANSPORTS, "constructor"])


def test_timeout_of_the_environment() -> None:
    def check(launcher: str) -> None:
        env = {"PYCOMM_TIMEOUT": str(LIMIT)}
        check_reports(
            run_ranks(2, time_out_everywhere, None, launcher=launcher, env=env, init_timeout=None)
        )

    side_by_side(check, LAUNCHERS)


def one_is_late(comm: Any) -> tuple[Report, float, Report]:
    if comm.rank == 1:
        time.sleep(8)
    first = call(comm.all_reduce, np.ones(10))
    start = time.monotonic()
    again = call(comm.barrier)
    comm.close()
    return first, time.monotonic() - start, again


def test_late_rank_is_named() -> None:
    side_by_side(check_late, TRANSPORTS)


def check_late(transport: str) -> None:
    outcomes = run_ranks(3, one_is_late, init_timeout=2.0, **over(transport))
    for outcome in outcomes:
        first, seconds, again = outcome.get()
        assert first.error == again.error == "CommTimeoutError", first
        assert first.attributes["missing"] == [1], first.text
        assert "all_reduce #" in first.text and "rank 1" in first.text
        assert "broken by an earlier error" in again.text
        assert seconds < 1
        if outcome.rank == 1:  # the late one is told why
            assert "broken by an earlier error" in first.text and first.seconds < 8.5
        else:
            assert 1.95 < first.seconds < 4, first.seconds


def late_under_a_launcher(comm: Any) -> Report:
    if comm.rank == 1:
        time.sleep(3)
    return call(comm.barrier, timeout=LIMIT)


def test_late_rank_under_a_launcher() -> None:
    side_by_side(check_late_under, LAUNCHERS)


def check_late_under(launcher: str) -> None:
    for outcome in run_ranks(3, late_under_a_launcher, launcher=launcher):
        report = outcome.get()
        assert report.error == "CommTimeoutError" and report.attributes["missing"] == [1]
        assert outcome.exit_code == 0  # processes live on


def wait_then_again(comm: Any) -> list[Report]:
    x = np.full(5, comm.rank + 1.0)
    if comm.rank == 1:
        comm.recv(np.empty(1), 0)  # until rank 0 has seen its timeout
    work = comm.all_reduce(x, async_op=True)
    if comm.rank == 1:
        work.wait()
        return []
    first = call(work.wait, LIMIT)
    assert not work.done()
    comm.send(np.zeros(1), 1)
    return [first, call(work.wait, 20)]


def test_wait_may_time_out_and_be_repeated() -> None:
    side_by_side(check_repeated_wait, TRANSPORTS)


def check_repeated_wait(transport: str) -> None:
    outcomes = run_ranks(2, wait_then_again, **over(transport))
    first, again = outcomes[0].get()
    outcomes[1].get()
    assert first.error == "CommTimeoutError" and EARLIEST < first.seconds < LATEST
    assert first.attributes["missing"] == [1], first.text
    assert "may be waited for again" in first.text
    assert again.error == "" and again.value.tolist() == [3.0] * 5


def queued_behind(comm: Any) -> list[Report]:
    if comm.rank == 1:
        comm.recv(np.empty(1), 0)
        return [call(comm.barrier)]
    stuck = comm.all_reduce(np.ones(5), timeout=25, async_op=True)
    behind = comm.all_reduce(np.ones(7), timeout=25, async_op=True)
    reports = [call(behind.wait, 0.5), call(comm.barrier, timeout=LIMIT)]
    reports.append(call(stuck.wait))
    call(comm.send, np.zeros(1), 1)
    return reports


def test_deadline_of_a_queued_operation() -> None:
    outcomes = run_ranks(2, queued_behind, launcher="threads")
    waited, queued, stuck = outcomes[0].get()
    assert waited.error == "CommTimeoutError" and waited.attributes["missing"] == [1], waited.text
    assert queued.error == "CommTimeoutError" and EARLIEST < queued.seconds < LATEST
    assert queued.attributes["missing"] == [1] and "barrier" in queued.text, queued.text
    assert "all_reduce" in queued.text  # what it is queued behind
    assert stuck.error == "CommTimeoutError"


def late_init(by_environment: bool) -> Report:
    if by_environment:
        return call(pycomm.init)
    return call(pycomm.init, timeout=LIMIT)


def late_to_init(late: int, by_environment: bool) -> tuple[Report, Report | None]:
    import os

    rank = int(os.environ.get("RANK", os.environ.get("PMI_RANK", "-1")))
    if rank == late:
        time.sleep(5)
        return call(pycomm.init, timeout=LIMIT), None
    first = late_init(by_environment)
    time.sleep(0.2)
    again = late_init(by_environment)
    time.sleep(0.5)  # the store goes with rank 0
    return first, again


@pytest.mark.parametrize("kind", ["env", "run"])
def test_rank_late_to_init(kind: str) -> None:
    cases = [(late, by_environment) for late in (0, 1) for by_environment in (False, True)]
    side_by_side(lambda case: check_late_to_init(kind, *case), cases)


def check_late_to_init(kind: str, late: int, by_environment: bool) -> None:
    env = {"PYCOMM_TIMEOUT": str(LIMIT)} if by_environment else {}
    outcomes = run_ranks(3, late_to_init, late, by_environment, launcher=kind, env=env, init=False)
    for outcome in outcomes:
        if outcome.rank == late:
            assert outcome.get()[0].error in ("CommTimeoutError", "TransportError")
            continue
        for report in outcome.get():
            assert report.error == "CommTimeoutError", report
            assert EARLIEST < report.seconds < LATEST, report
            assert report.attributes["missing"] == [late], report.text


def late_to_init_under_mpirun() -> tuple[Report, ...]:
    import mpi4py.MPI

    if mpi4py.MPI.COMM_WORLD.Get_rank() == 1:
        time.sleep(3.5)
        return (call(pycomm.init, timeout=LIMIT),)
    reports = call(pycomm.init, timeout=LIMIT), call(pycomm.init, timeout=LIMIT)
    time.sleep(0.5)
    return reports


def test_rank_late_to_init_under_mpirun() -> None:
    outcomes = run_ranks(3, late_to_init_under_mpirun, launcher="mpirun", init=False)
    assert outcomes[1].get()[0].error == "CommTimeoutError"
    for outcome in outcomes[::2]:
        for report in outcome.get():
            assert report.error == "CommTimeoutError", report
            assert EARLIEST < report.seconds < LATEST, report
            assert report.attributes["missing"] == [1], report.text


def test_rank_late_to_mpi() -> None:
    """MPI starts when all have come: it is late, but nobody knows who."""
    text = f"""
        import os, sys, time
        import pycomm
        names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
        if "1" in [os.environ.get(name) for name in names]:
            time.sleep(5)
        start = time.monotonic()
        try:
            pycomm.init(timeout={LIMIT})
        except pycomm.CommTimeoutError as error:
            late = {EARLIEST} < time.monotonic() - start < {LATEST}
            sys.stdout.write(f"{{late}} {{'MPI did not start' in str(error)}}\\n")
        time.sleep(1)
    """
    job = run_script(3, text, launcher="mpirun", timeout=30)
    assert job.stdout[0].splitlines()[:2] == ["True True"] * 2, job
    assert job.seconds < 10
