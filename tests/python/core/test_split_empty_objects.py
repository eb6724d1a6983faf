# Groups within groups, symmetric memory, Python objects, abort, and what they leave behind.
from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.on_threads import each_transport, on_threads
from core.values import DTYPES, check, dtype_of, values
from ranks import run_ranks

import pycomm


def everything(comm: Any) -> None:
    splits(comm)
    splits_of_splits(comm)
    objects(comm)
    symmetric(comm)
    comm.barrier()


@each_transport
def test_between_threads(transport: str) -> None:
    for n in (1, 2, 4, 5):
        on_threads(n, everything, transport)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_between_processes(launcher: str, transport: str) -> None:
    environment = {"PYCOMM_TRANSPORT": transport}
    for outcome in run_ranks(4, everything, launcher=launcher, env=environment):
        outcome.get()


def splits(comm: Any) -> None:
    size, rank = comm.size, comm.rank
    # (color and key of each rank, the groups that follow, in their order)
    for color, key in (
        ([0] * size, None),
        ([0] * size, [-r for r in range(size)]),  # reversed
        ([0] * size, [7] * size),  # equal keys: by rank
        ([r % 2 for r in range(size)], None),
        ([r * 1000 - 5 for r in range(size)], None),  # each alone
        ([None if r == 0 else 3 for r in range(size)], None),
        ([r // 2 for r in range(size)], [(5 - r) ** 2 for r in range(size)]),
        ([None] * size, None),
    ):
        sub = comm.split(color[rank], None if key is None else key[rank])
        if color[rank] is None:
            assert sub is None
            continue
        keys = list(range(size)) if key is None else key
        members = sorted((r for r in range(size) if color[r] == color[rank]), key=lambda r: keys[r])
        assert (sub.rank, sub.size) == (members.index(rank), len(members))
        gathered = sub.all_gather(np.array([rank]))
        assert gathered.tolist() == members
        assert (sub.local_rank, sub.local_size) == (sub.rank, sub.size)
        assert (sub.node, sub.num_nodes) == (0, 1)
        assert sub.timeout == comm.timeout
        # Messages of the parent and the part do not mix.
        other = (sub.rank + 1) % sub.size
        before = (sub.rank - 1) % sub.size
        parent = comm.send(np.array([1, rank]), members[other], 5, async_op=True)
        child = sub.send(np.array([2, rank]), other, 5, async_op=True)
        assert sub.recv(np.zeros(2, int), before, 5).tolist() == [2, members[before]]
        assert comm.recv(np.zeros(2, int), members[before], 5).tolist() == [1, members[before]]
        parent.wait()
        child.wait()
        sub.close()
    assert (comm.all_reduce(np.ones(1)) == size).all()


def splits_of_splits(comm: Any) -> None:
    """Several communicators of the same ranks live side by side, and outlive their parent."""
    first = comm.split(0)
    second = first.split(first.rank % 2)
    third = second.split(0, -second.rank)
    expected = len(range(comm.rank % 2, comm.size, 2))
    works = [
        c.all_reduce(np.full(3000, 1.0), async_op=True) for c in (third, comm, second, first, third)
    ]
    sums = [work.wait()[0] for work in works]
    assert sums == [expected, comm.size, expected, comm.size, expected]
    first.barrier()
    first.close()
    third.barrier()
    assert (third.all_reduce(np.ones(2)) == expected).all()
    third.close()
    second.close()


def objects(comm: Any) -> None:
    size, rank = comm.size, comm.rank
    for root in range(size):
        for obj in (None, 0, "text", {"a": [1, 2, {root}]}, b"", b"x" * 300_000, range(9)):
            given = (obj, root) if rank == root else "not taken"
            got = comm.broadcast_object(given, root)
            assert got == (obj, root)
            assert rank != root or got is given
    array = comm.broadcast_object(values(0, (3, 4), "bfloat16") if rank == 0 else None)
    check(array, values(0, (3, 4), "bfloat16"), "an array as object")
    for count in (0, 1, 50_000):
        got = comm.all_gather_object({"rank": rank, "list": list(range(rank * count))})
        assert got == [{"rank": r, "list": list(range(r * count))} for r in range(size)]
    assert comm.all_gather_object(None) == [None] * size
    assert comm.broadcast_object(pycomm.CommTimeoutError("x", [3]), 0).missing == [3]
    # An object that cannot be pickled: an error everywhere, and the communicator stays intact.
    with pytest.raises(pycomm.CommError, match=f"rank {size - 1} cannot pickle") as error:
        comm.broadcast_object(threading.Lock() if rank == size - 1 else None, size - 1)
    if rank == size - 1:
        assert isinstance(error.value.__cause__, (TypeError, pickle.PicklingError))
    with pytest.raises(pycomm.CommError, match="rank 0 cannot pickle") as error:
        comm.all_gather_object(threading.Lock() if rank == 0 else rank)
    assert error.value.ranks == (0,)
    assert comm.all_gather_object(rank) == list(range(size))


def symmetric(comm: Any) -> None:
    size, rank = comm.size, comm.rank
    for name in DTYPES:
        array = comm.empty((3, 5), name)
        assert array.shape == (3, 5) and array.dtype == dtype_of(name)
        assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned
        assert not array.view(np.uint8).any()
        array[...] = values(rank, (3, 5), name)
        comm.all_reduce(array, "max" if "complex" not in name else "sum")
    # Several at once, of all kinds of sizes, with other memory between them; none touches another.
    arrays = [comm.empty(n, "uint16") for n in (0, 1, 2047, 2048, 2049, 1_000_000, 3)]
    for index, array in enumerate(arrays):
        assert not array.any()
        array[...] = 1000 * rank + index
    comm.barrier()
    for index, array in enumerate(arrays):
        assert (array == 1000 * rank + index).all()
        comm.all_reduce(array)
        assert (array == 1000 * size * (size - 1) // 2 + size * index).all()
    assert comm.empty(()).shape == () and comm.empty([2, 0]).shape == (2, 0)
    # It lives as long as a reference to it, longer than its communicator.
    sub = comm.split(0)
    view = sub.empty(10, "int64")[3:5]
    view[...] = rank
    sub.close()
    del sub, arrays
    gc.collect()
    assert (comm.all_reduce(view.copy()) == size * (size - 1) // 2).all()
    assert (view == rank).all()


def test_ranks_and_nodes() -> None:
    comms = pycomm.thread_world(3)
    assert [comm.rank for comm in comms] == [0, 1, 2]
    assert [comm.local_rank for comm in comms] == [0, 1, 2]
    assert {(c.size, c.local_size, c.node, c.num_nodes, c.transport) for c in comms} == {
        (3, 3, 0, 1, "inproc")
    }
    assert repr(comms[1]) == "<pycomm.Communicator rank 1 of 3, inproc>"
    comms[1].close()
    assert "closed" in repr(comms[1])


@each_transport
def test_abort(transport: str) -> None:
    for seconds in on_threads(3, aborting, transport):
        assert seconds < 2.0


def aborting(comm: Any) -> float:
    sub = comm.split(0)
    work = sub.recv(np.zeros(3), (comm.rank + 1) % comm.size, async_op=True)
    comm.barrier()
    if comm.rank == 2:
        time.sleep(0.3)
        sub.abort("that is enough")
    start = time.monotonic()
    for call in (sub.barrier, lambda: sub.all_reduce(np.ones(3)), work.wait):
        with pytest.raises(pycomm.AbortedError, match="rank 2 aborted: that is enough"):
            call()
    seconds = time.monotonic() - start
    comm.barrier()  # of the parent: not broken
    return seconds - (0 if comm.rank == 2 else 0.3)


@each_transport
def test_leaving_a_block_by_an_exception_aborts(transport: str) -> None:
    on_threads(2, failing_block, transport)


def failing_block(comm: Any) -> None:
    sub = comm.split(0)
    if comm.rank == 0:
        with pytest.raises(ZeroDivisionError), sub:
            raise ZeroDivisionError("planted")
    else:
        with pytest.raises(pycomm.AbortedError, match="ZeroDivisionError: planted"):
            sub.barrier()
        sub.close()
    comm.barrier()
    with comm.split(0) as sub:
        assert (sub.all_reduce(np.ones(1)) == 2).all()
    assert "closed" in repr(sub)


@each_transport
def test_a_peer_that_closed(transport: str) -> None:
    on_threads(2, closing, transport)


def closing(comm: Any) -> None:
    sub = comm.split(0)
    big = np.arange(100_000)
    if comm.rank == 0:
        # What was sent before stays receivable.
        sub.send(np.arange(5), 1, 1)
        work = sub.send(big, 1, 2, async_op=True)
        work.wait(5)
        sub.close()
        comm.barrier()
    else:
        receive = sub.recv(np.zeros_like(big), 0, 2, async_op=True)
        comm.barrier()
        check(sub.recv(np.zeros(5, int), 0, 1), np.arange(5), "sent before")
        check(receive.wait(), big, "sent before")
        start = time.monotonic()
        with pytest.raises(pycomm.PeerLostError) as error:
            sub.barrier()
        assert error.value.rank == 0 and time.monotonic() - start < 2
        assert "closed" in str(error.value)


# ---- nothing is left behind ----------------------------------------------------------------------


def held() -> tuple[int, int, int]:
    """Open files, mappings and threads of this process."""
    gc.collect()
    return (
        len(os.listdir("/proc/self/fd")),
        len(Path("/proc/self/maps").read_text().splitlines()),
        len(os.listdir("/proc/self/task")),
    )


def cycles(comm: Any, count: int) -> list[tuple[int, int, int]]:
    """Makes, uses and closes communicators and memory; what the process holds now and then."""
    seen = []
    for turn in range(count + 1):
        if turn % (count // 4) == 0:
            comm.barrier()
            seen.append(held())
            comm.barrier()
        with comm.split(0) as sub:
            sub.all_reduce(np.ones(10))
            sub.all_reduce(np.ones(1000), async_op=True).wait()
            memory = sub.empty(1000)
            sub.sendrecv(memory, (sub.rank + 1) % sub.size, memory, (sub.rank - 1) % sub.size)
            del memory
            if turn % 10 == 0:
                sub.recv(np.zeros(3), sub.rank, async_op=True)  # still in flight
    return seen


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_200_communicators_leave_nothing(launcher: str, transport: str) -> None:
    environment = {"PYCOMM_TRANSPORT": transport}
    for outcome in run_ranks(2, cycles, 200, launcher=launcher, env=environment):
        bounded(outcome.get())


@each_transport
def test_thread_worlds_leave_nothing(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOMM_TRANSPORT", transport)
    seen = []
    turns = 24 if transport == "tcp" else 100  # closing sockets takes its time
    for turn in range(turns + 1):
        if turn % (turns // 4) == 0:
            seen.append(held())
        comms = pycomm.thread_world(3)
        works = [comm.all_reduce(np.ones(5), async_op=True) for comm in comms]
        for work in works:
            assert (work.wait() == 3).all()
        if turn % 2:
            for comm in comms:
                comm.close()
    del comms, works, comm, work
    seen.append(held())
    bounded(seen)


def test_failures_leave_nothing() -> None:
    seen = []
    for turn in range(41):
        if turn % 10 == 0:
            seen.append(held())
        on_threads(2, mismatch)
    bounded(seen)


def mismatch(comm: Any) -> None:
    with pytest.raises(pycomm.MismatchError):
        comm.all_reduce(np.ones(100_000 + comm.rank))


def bounded(seen: list[tuple[int, int, int]]) -> None:
    # The first sample comes before anything was used once; a few more mappings are the allocator's.
    files, maps, threads = zip(*seen[1:], strict=True)
    assert max(files) <= files[0] and max(threads) <= threads[0], seen
    assert max(maps) <= maps[0] + 8, seen
