# What is left after a failure: abort() reaches everyone, a broken communicator closes quickly, its
# children live on, and a new world can be made.
from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from rank_process import Report, call
from ranks import run_ranks
from side_by_side import side_by_side

import pycomm

TRANSPORTS = ("shm", "tcp", "threads")


def over(transport: str) -> dict[str, Any]:
    if transport == "threads":
        return {"launcher": "threads"}
    return {"launcher": "env", "env": {"PYCOMM_TRANSPORT": transport}}


def abort_on_one(comm: Any) -> list[Report]:
    reports = []
    if comm.rank == 0:
        time.sleep(0.5)
        comm.abort("the disk is full")
    elif comm.rank == 1:
        reports.append(call(comm.barrier))
    elif comm.rank == 2:
        work = comm.recv(np.empty(3), 1, async_op=True)
        later = comm.barrier(async_op=True)
        reports += [call(work.wait), call(later.wait)]
    else:
        time.sleep(1.5)  # computes meanwhile
    reports += [call(comm.all_reduce, np.ones(3)), call(comm.recv, np.ones(3), 0)]
    start = time.monotonic()
    comm.close()
    assert time.monotonic() - start < 1
    return reports


def test_abort_reaches_everyone() -> None:
    side_by_side(check_abort, TRANSPORTS)


def check_abort(transport: str) -> None:
    for outcome in run_ranks(4, abort_on_one, **over(transport)):
        for report in outcome.get():
            assert report.error == "AbortedError", (outcome.rank, report)
            assert "rank 0 aborted: the disk is full" in report.text
            assert report.seconds < 1.5, (outcome.rank, report.seconds)


def close_under_others(comm: Any) -> tuple[list[Report], float, Report]:
    """Another thread waits and work is in flight when the communicator is closed."""
    reports: list[Report] = []
    peer = 1 - comm.rank
    thread = threading.Thread(target=lambda: reports.append(call(comm.recv, np.empty(3), peer)))
    thread.start()
    work = comm.recv(np.empty(3), peer, 5, async_op=True)
    queued = comm.recv(np.empty(3), peer, 6, async_op=True)
    time.sleep(0.3)
    start = time.monotonic()
    comm.close()
    seconds = time.monotonic() - start
    thread.join()
    reports += [call(work.wait), call(queued.wait)]
    return reports, seconds, call(comm.barrier)


def test_close_ends_what_is_in_flight() -> None:
    side_by_side(check_close, TRANSPORTS)


def check_close(transport: str) -> None:
    for outcome in run_ranks(2, close_under_others, **over(transport)):
        reports, seconds, after = outcome.get()
        # The first to close sees its own close, the other may see that its peer has left.
        assert {report.error for report in reports} <= {"AbortedError", "PeerLostError"}, reports
        assert seconds < 1 and after.error == "ArgumentError" and "is closed" in after.text


def children_of_a_broken_parent(comm: Any) -> tuple[Report, float, float, Report]:
    child = comm.split(comm.rank % 2)
    other = comm.split(0, -comm.rank)
    arguments = [np.empty(1), 1] if comm.rank == 0 else []
    broken = call(comm.recv if arguments else comm.barrier, *arguments, timeout=0.5)
    x = child.all_reduce(np.full(10, comm.rank + 1.0))
    y = other.all_reduce(np.full(10, comm.rank + 1.0))
    comm.close()
    child.barrier()
    z = float(other.all_reduce(np.full(10, comm.rank + 1.0))[0])
    return broken, float(x[3]), float(y[4]) + z, call(comm.split, 0)


def test_children_of_a_broken_parent_live_on() -> None:
    side_by_side(check_children, TRANSPORTS)


def check_children(transport: str) -> None:
    for outcome in run_ranks(4, children_of_a_broken_parent, **over(transport)):
        broken, x, sums, again = outcome.get()
        assert broken.error == "CommTimeoutError"
        assert (x, sums) == (4.0 if outcome.rank % 2 == 0 else 6.0, 20.0)
        assert again.error == "ArgumentError"  # closed


def one_world_after_another() -> list[Any]:
    seen: list[Any] = []
    for turn in range(4):
        comm = pycomm.init(timeout=20)
        assert pycomm.init() is comm
        seen.append(float(comm.all_reduce(np.full(5, comm.rank + turn))[2]))
        time.sleep(0.2)  # a failure may overtake the end of an operation
        if turn == 0:
            pass
        elif turn == 1:  # late
            if comm.rank == 0:
                time.sleep(1)
            seen.append(call(comm.barrier, timeout=0.4).error)
        elif turn == 2:  # different calls
            seen.append(call(comm.all_reduce, np.ones(3 + comm.rank)).error)
        else:
            if comm.rank == 1:
                comm.abort()
            seen.append(call(comm.barrier).error)
        comm.close()
        assert repr(comm).endswith("closed>")
    return seen


def test_a_new_world_after_close() -> None:
    kinds = ("run", "mpirun", "env")
    side_by_side(check_new_world, kinds)


def check_new_world(kind: str) -> None:
    for outcome in run_ranks(3, one_world_after_another, launcher=kind, init=False):
        sums = [3.0, 6.0, "CommTimeoutError", 9.0, "MismatchError", 12.0, "AbortedError"]
        assert outcome.get() == sums


def world_of_one() -> list[Any]:
    comm = pycomm.init()
    reports = [call(comm.recv, np.empty(3), 0, timeout=0.3)]
    comm.close()
    return [comm.size, reports[0].error, pycomm.init().all_reduce(np.ones(2)).tolist()]


def test_world_of_one() -> None:
    outcome = run_ranks(1, world_of_one, launcher="run", init=False)[0]
    assert outcome.get() == [1, "CommTimeoutError", [1.0, 1.0]]
