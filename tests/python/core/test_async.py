# Started operations: arrays that nobody holds, waits of every kind, threads, errors, closing.
from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from core.on_threads import each_transport, on_threads
from core.values import check, combine, noise, sentinel, slices, split_rows, values
from ranks import run_ranks

import pycomm


def everything(comm: Any) -> None:
    every_operation(comm)
    nobody_holds_the_arrays(comm)
    waits(comm)
    strided_outputs(comm)
    many_in_flight(comm)
    mixed_with_blocking_calls(comm)
    many_threads(comm)
    comm.barrier()


@each_transport
def test_between_threads(transport: str) -> None:
    for n in (1, 2, 4) if transport == "auto" else (3,):
        on_threads(n, everything, transport)


def test_between_processes(launcher: str) -> None:
    for n in (2, 3):
        for outcome in run_ranks(n, everything, launcher=launcher):
            outcome.get()


def every_operation(comm: Any) -> None:
    """All started before any is waited for, and waited for in another order."""
    size, rank = comm.size, comm.rank
    parts = [values(r, (6, 2), "float32") for r in range(size)]
    total, joined, root = combine(parts, "sum"), np.concatenate(parts), size - 1
    mine = slices(split_rows(6, size))[rank]
    at_root = rank == root
    right, left = (rank + 1) % size, (rank - 1) % size

    def own() -> Any:
        return parts[rank].copy()

    cast = own() if at_root else sentinel((6, 2), "float32")
    started: list[tuple[Any, Any]] = [
        (comm.all_reduce(own(), async_op=True), total),
        (comm.reduce(own(), root, async_op=True), total if at_root else None),
        (comm.broadcast(cast, root, async_op=True), parts[root]),
        (comm.reduce_scatter(own(), async_op=True), total[mine]),
        (comm.all_gather(own(), async_op=True), joined),
        (comm.gather(own(), root, async_op=True), joined if at_root else None),
        (
            comm.scatter(
                own() if at_root else None,
                root,
                None if at_root else sentinel(total[mine].shape, "float32"),
                async_op=True,
            ),
            parts[root][mine],
        ),
        (comm.all_to_all(own(), async_op=True), np.concatenate([part[mine] for part in parts])),
        (comm.barrier(async_op=True), None),
        (
            comm.sendrecv(own(), right, sentinel((6, 2), "float32"), left, 3, async_op=True),
            parts[left],
        ),
        (comm.send(own(), right, async_op=True), None),
        (comm.recv(sentinel((6, 2), "float32"), left, async_op=True), parts[left]),
    ]
    order = np.random.default_rng(size).permutation(len(started))
    for index in order:
        work, expected = started[index]
        assert isinstance(work, pycomm.Work)
        result = work.wait() if index % 2 else work.result()
        assert work.done() and work.exception() is None, work
        if expected is None:
            assert result is None, work
        else:
            check(result, expected, repr(work))


def nobody_holds_the_arrays(comm: Any) -> None:
    """`tmp` is deleted and its memory would be used again while the operation runs."""
    for turn in range(5):
        count = 30_000 + turn
        expected = combine([noise(r, count, "float32", turn) for r in range(comm.size)], "sum")
        tmp = noise(comm.rank, count, "float32", turn)
        work = comm.all_reduce(tmp, async_op=True)
        del tmp
        gc.collect()
        churn = [np.full(count, np.float32(i)) for i in range(4)]
        check(work.wait(), expected, f"deleted input, turn {turn}")
        # Neither array nor Work is held; the result of the next shows that it went through.
        comm.all_reduce(noise(comm.rank, count, "float64", turn), async_op=True)
        comm.all_gather(noise(comm.rank, 10_000, "float32", turn), async_op=True)
        gc.collect()
        del churn
    check(comm.all_reduce(np.ones(3)), np.full(3, float(comm.size)), "after fire and forget")


def waits(comm: Any) -> None:
    x = np.ones(4)
    work = comm.all_reduce(x, async_op=True)
    assert work.wait() is x
    for again in (work.wait, work.result, lambda: work.wait(timeout=0.5)):
        assert again() is x
    assert (x == comm.size).all()
    assert work.exception() is None and work.done()
    assert "all_reduce" in repr(work) and "finished" in repr(work)
    if comm.size == 1:
        return
    # A wait that times out: the operation goes on.
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    receive = comm.recv(sentinel(3, "int64"), left, 50, async_op=True)
    start = time.monotonic()
    with pytest.raises(pycomm.CommTimeoutError) as error:
        receive.wait(timeout=0.3)
    assert 0.2 < time.monotonic() - start < 2.0
    assert not receive.done() and "in flight" in repr(receive)
    assert error.value.missing == [left] and "may be waited for again" in str(error.value)
    comm.barrier()  # intact
    comm.send(values(comm.rank, 3, "int64"), right, 50)
    check(receive.wait(), values(left, 3, "int64"), "the second wait")
    for bad in (0, -1, float("nan"), float("inf"), "1", True):
        with pytest.raises(pycomm.ArgumentError, match="timeout"):
            receive.wait(timeout=bad)


def strided_outputs(comm: Any) -> None:
    wide = sentinel((5, 8), "int32")
    out = wide[:, ::2]
    parts = [values(r, (5, 4), "int32") for r in range(comm.size)]
    work = comm.all_reduce(parts[comm.rank], out=out, async_op=True)
    assert work.wait() is out
    check(out, combine(parts, "sum"), "strided output")
    x = np.asfortranarray(parts[comm.rank])
    assert comm.all_reduce(x, async_op=True).wait() is x
    check(x, combine(parts, "sum"), "strided, in place")


def many_in_flight(comm: Any) -> None:
    works = [comm.all_reduce(np.full(1 + i % 13, i + comm.rank), async_op=True) for i in range(300)]
    for i in reversed(range(300)):
        expected = comm.size * i + comm.size * (comm.size - 1) // 2
        assert (works[i].wait() == expected).all(), i


def mixed_with_blocking_calls(comm: Any) -> None:
    """A blocking call runs after what was started before it."""
    for turn in range(20):
        x = np.full(70_001, comm.rank, dtype=np.int64)
        started = comm.all_reduce(x, async_op=True)
        y = comm.all_reduce(np.full(turn + 1, 2))
        assert started.done()
        assert (y == 2 * comm.size).all()
        assert (started.wait() == comm.size * (comm.size - 1) // 2).all()


def many_threads(comm: Any) -> None:
    """Several threads of one rank: works are waited for by all of them at once."""
    wide = sentinel((1000, 2), "int64")
    parts = [values(r, 1000, "int64") for r in range(comm.size)]
    works = [comm.all_reduce(parts[comm.rank], out=wide[:, i % 2], async_op=True) for i in range(2)]
    results: list[Any] = []
    errors: list[BaseException] = []

    def wait_for_all() -> None:
        try:
            results.extend(work.wait() for work in works)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=wait_for_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert len(results) == 16
    for result in results:
        check(result, combine(parts, "sum"), "waited for by many")


def test_a_work_has_its_result_before_any_thread_gets_it() -> None:
    """Two threads wait for one work while the first still copies the result out."""
    comm = pycomm.thread_world(1)[0]
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            wide = np.zeros((200, 4))
            work = comm.all_reduce(np.ones((200, 2)), out=wide[:, ::2], async_op=True)
            sums: list[float] = []
            threads = [
                threading.Thread(target=lambda w=work, s=sums: s.append(w.wait().sum()))
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sums == [400.0] * 4
    finally:
        sys.setswitchinterval(old)


def test_threads_with_communicators_of_their_own() -> None:
    """Communicators are independent: each thread of a rank uses another one."""
    on_threads(2, own_communicators)


def own_communicators(comm: Any) -> None:
    comms = [comm.split(0) for _ in range(4)]
    errors: list[BaseException] = []

    def use(index: int) -> None:
        try:
            own = comms[index]
            for turn in range(50):
                x = np.full(100 * index + 1, turn * 10 + index)
                assert (own.all_reduce(x) == 2 * (turn * 10 + index)).all()
                if turn % 5 == index:
                    own.barrier()
        except BaseException as error:
            errors.append(error)

    # In another order on each rank.
    threads = [threading.Thread(target=use, args=(i,)) for i in range(4)]
    for thread in threads[:: 1 - 2 * comm.rank]:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_threads_that_call_one_communicator() -> None:
    """Calls of several threads run one after the other; here all make the same call."""
    assert on_threads(3, same_call_by_all) == [400] * 3


def same_call_by_all(comm: Any) -> int:
    done: list[int] = []

    def use() -> None:
        for _ in range(100):
            x = np.full(50, comm.rank, dtype=np.int32)
            if (comm.all_reduce(x) == 3).all():
                done.append(1)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(done)


def test_arrays_are_released() -> None:
    """Nothing holds the arrays of a finished operation, waited for or not."""
    on_threads(2, releases)


def releases(comm: Any) -> None:
    x = np.ones(1000)
    alive = weakref.ref(x)
    work = comm.all_reduce(x, async_op=True)
    work.wait()
    del x, work
    gc.collect()
    assert alive() is None
    x = np.ones(1000)
    alive = weakref.ref(x)
    comm.all_reduce(x, async_op=True)
    del x
    comm.barrier()  # the operation before it is finished
    comm.all_reduce(np.ones(1), async_op=True).wait()
    gc.collect()
    assert alive() is None


def test_a_work_keeps_its_communicator() -> None:
    on_threads(2, work_only)


def work_only(comm: Any) -> None:
    def start() -> Any:
        return comm.split(0).all_reduce(np.full(200_000, comm.rank + 1.0), async_op=True)

    work = start()
    gc.collect()
    assert (work.wait() == 3.0).all()


def test_errors_reach_every_wait() -> None:
    on_threads(2, failing_works)


def failing_works(comm: Any) -> None:
    work = comm.all_reduce(np.ones(2 + comm.rank), async_op=True)
    behind = comm.barrier(async_op=True)
    assert isinstance(work.exception(), pycomm.MismatchError)
    for one in (work, behind):
        for call in (one.wait, one.result, lambda one=one: one.wait(1.0)):
            with pytest.raises(pycomm.MismatchError):
                call()
    assert work.done() and behind.done()
    with pytest.raises(pycomm.MismatchError, match="earlier error"):
        comm.all_reduce(np.ones(2), async_op=True)


@each_transport
def test_closing_with_work_in_flight(transport: str) -> None:
    start = time.monotonic()
    on_threads(2, close_in_flight, transport)
    assert time.monotonic() - start < 10


def close_in_flight(comm: Any) -> None:
    other = 1 - comm.rank
    sub = comm.split(0)
    works = [
        sub.recv(np.zeros(3), other, 1, async_op=True),
        sub.recv(np.zeros(9 << 20), other, 2, async_op=True),
    ]
    with pytest.raises(pycomm.CommTimeoutError):
        works[0].wait(0.1)
    comm.barrier()
    if comm.rank == 0:
        sub.close()
        for work in works:
            with pytest.raises(pycomm.AbortedError, match="closed"):
                work.wait()
    else:
        for work in works:
            with pytest.raises(pycomm.PeerLostError) as error:
                work.wait()
            assert error.value.rank == 0
        sub.close()
    sub.close()
    for call in (sub.barrier, lambda: sub.send(np.zeros(1), 0), lambda: sub.split(0)):
        with pytest.raises(pycomm.ArgumentError, match="closed"):
            call()
    comm.barrier()
    # Closed by another thread, while this one waits.
    sub = comm.split(comm.rank)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            sub.recv(np.zeros(3), 0)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    sub.close()
    thread.join(5)
    assert not thread.is_alive()
    assert isinstance(errors[0], pycomm.AbortedError), errors


def test_finished_work_survives_its_communicator() -> None:
    on_threads(2, close_after)


def close_after(comm: Any) -> None:
    sub = comm.split(0)
    work = sub.all_reduce(np.ones(3), async_op=True)
    wide = np.zeros((3, 2))
    strided = sub.all_reduce(np.ones(3), out=wide[:, 1], async_op=True)
    assert (work.wait() == 2).all()
    sub.barrier()
    sub.close()
    assert (work.wait() == 2).all()
    assert (strided.wait() == 2).all() and (wide[:, 1] == 2).all()


def test_timeouts_of_started_operations() -> None:
    on_threads(2, own_deadline)


def own_deadline(comm: Any) -> None:
    sub = comm.split(0)
    if comm.rank == 0:
        work = sub.all_reduce(np.ones(3), timeout=0.5, async_op=True)
        start = time.monotonic()
        with pytest.raises(pycomm.CommTimeoutError) as error:
            work.wait()
        assert 0.3 < time.monotonic() - start < 2.5
        assert error.value.missing == [1]
        comm.barrier()
    else:
        comm.barrier()
        with pytest.raises(pycomm.CommTimeoutError, match="earlier"):
            sub.barrier()
