# Symmetric memory: arrays of empty() and of NumPy itself under shared_allocator.
from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

import pycomm
from pycomm import _core

LARGE = 300_000  # elements: past all copying


def symmetric(comm: Any, array: Any) -> bool:
    return _core.is_symmetric(comm._core, array)


def pattern(rank: int, count: int, dtype: Any = np.float32) -> Any:
    return ((np.arange(count) * 7 + rank * 13) % 61 - 20).astype(dtype)


def total(size: int, count: int, dtype: Any = np.float32) -> Any:
    return sum(pattern(rank, count, np.float64) for rank in range(size)).astype(dtype)


def everything(comm: Any, make: Any) -> None:
    """Every collective on arrays of make(count), with views of them, in place and not."""
    rank, size = comm.rank, comm.size
    for count in (5, 3000, LARGE):
        count -= count % size
        x, y = make(count), make(count)
        mine = pattern(rank, count)
        x[:], y[:] = mine, -99
        comm.all_reduce(x, out=y)
        np.testing.assert_array_equal(y, total(size, count))
        np.testing.assert_array_equal(x, mine)
        comm.all_reduce(x)
        np.testing.assert_array_equal(x, total(size, count))
        x[:] = mine
        comm.all_reduce(x[1:-1], op="max", out=y[1:-1])  # a view, not aligned to a line
        expected = np.max([pattern(r, count) for r in range(size)], axis=0)
        np.testing.assert_array_equal(y[1:-1], expected[1:-1])
        assert y[0] == total(size, count)[0], "wrote beside the view"
        y[:] = -99
        comm.reduce(x, root=size - 1, out=y)
        if rank == size - 1:
            np.testing.assert_array_equal(y, total(size, count))
        part = count // size
        piece = y[:part]
        comm.reduce_scatter(x, out=piece)
        own = slice(rank * part, (rank + 1) * part)
        np.testing.assert_array_equal(piece, total(size, count)[own])
        comm.reduce_scatter(x, out=x[own])  # in place
        np.testing.assert_array_equal(x[own], total(size, count)[own])
        x[:] = mine
        y[:] = -99
        comm.all_gather(x[own], out=y)
        joined = np.concatenate([pattern(r, count)[r * part : (r + 1) * part] for r in range(size)])
        np.testing.assert_array_equal(y, joined)
        y[:] = -99
        y[own] = mine[own]
        comm.all_gather(y[own], out=y)  # in place
        np.testing.assert_array_equal(y, joined)
        y[:] = -99
        comm.gather(x[own], root=0, out=y)
        np.testing.assert_array_equal(y, joined if rank == 0 else np.full(count, -99.0))
        comm.scatter(x if rank == 0 else None, root=0, out=piece)
        np.testing.assert_array_equal(piece, pattern(0, count)[own])
        comm.all_to_all(x, out=y)
        columns = [pattern(r, count)[own] for r in range(size)]
        np.testing.assert_array_equal(y, np.concatenate(columns))
        sends = [part - 1] * (size - 1) + [part + size - 1]
        receives = [sends[rank]] * size
        uneven = make(max(sends) * size)[: sum(receives)]
        comm.all_to_all(x, uneven, send_counts=sends, recv_counts=receives)
        start = sum(sends[:rank])
        columns = [pattern(r, count)[start : start + sends[rank]] for r in range(size)]
        np.testing.assert_array_equal(uneven, np.concatenate(columns))
        y[:] = mine
        comm.broadcast(y, root=1 % size)
        np.testing.assert_array_equal(y, pattern(1 % size, count))
        np.testing.assert_array_equal(x, mine)
        if rank == 0:
            comm.send(x, size - 1, tag=3)
        if rank == size - 1:
            np.testing.assert_array_equal(comm.recv(y, 0, tag=3), pattern(0, count))


def on_empty(comm: Any) -> None:
    def make(count: int) -> Any:
        array = comm.empty(count, np.float32)
        assert not array.any()
        assert symmetric(comm, array) and symmetric(comm, array[1:])
        return array

    everything(comm, make)


def on_mixtures(comm: Any) -> None:
    """Some arrays symmetric and some not, differently on each rank."""
    sub = comm.split(0)
    random = np.random.default_rng(comm.rank)

    def make(count: int) -> Any:
        here = comm.empty(count, np.float32)
        there = sub.empty(count, np.float32)  # of another communicator
        return (here, there, np.empty(count, np.float32))[random.integers(3)]

    for _ in range(4):
        everything(comm, make)


def under_allocator(comm: Any) -> None:
    with pycomm.shared_allocator(comm, threshold=10_000):

        def make(count: int) -> Any:
            array = np.empty(count, np.float32)
            assert symmetric(comm, array) == (array.nbytes >= 10_000 or comm.transport == "inproc")
            return array

        everything(comm, make)


@pytest.mark.parametrize("body", [on_empty, on_mixtures, under_allocator])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_collective(body: Any, n: int) -> None:
    for outcome in run_ranks(n, body, launcher="env"):
        outcome.get()


@pytest.mark.parametrize("body", [on_empty, on_mixtures, under_allocator])
def test_every_collective_on_threads(body: Any) -> None:
    for outcome in run_ranks(3, body, launcher="threads"):
        outcome.get()


def life_of_arrays(comm: Any) -> None:
    with pycomm.shared_allocator(comm):
        kept = np.arange(LARGE, dtype=np.int64)
        zeros = np.zeros(LARGE)
        grown = np.zeros(10)
        grown.resize(LARGE, refcheck=False)  # from ordinary memory
        grown[:] = 1
        grown.resize(2 * LARGE, refcheck=False)  # and on
        small = np.zeros(10)
        with pycomm.shared_allocator(comm, threshold=8):
            tiny = np.ones(3)
        computed = kept * 2 + 1
        other_thread: list[Any] = []
        thread = threading.Thread(target=lambda: other_thread.append(np.zeros(LARGE)))
        thread.start()
        thread.join()
        try:
            with pycomm.shared_allocator(comm):
                raise RuntimeError
        except RuntimeError:
            pass
        after = np.zeros(LARGE)
    outside = np.zeros(LARGE)
    for array in (kept, zeros, grown, tiny, computed, after):
        assert symmetric(comm, array)
    for array in (small, outside):
        assert not symmetric(comm, array)
    if not os.environ.get("PYTHON_THREADS_INHERIT_CONTEXT"):
        assert not symmetric(comm, other_thread[0])
    assert not zeros.any() and grown[:LARGE].all() and not grown[LARGE:].any()
    np.testing.assert_array_equal(computed, np.arange(LARGE) * 2 + 1)
    # Freed memory comes back zeroed where zeros are asked for.
    with pycomm.shared_allocator(comm):
        for _ in range(50):
            filled = np.full(LARGE, 7.0)
            del filled
            fresh = np.zeros(LARGE)
            assert not fresh.any()
            del fresh
    comm.barrier()
    comm.close()
    kept += 1  # arrays outlive their communicator
    np.testing.assert_array_equal(kept, np.arange(LARGE) + 1)
    del comm
    gc.collect()
    assert kept[-1] == LARGE
    child = os.fork()
    if child == 0:  # frees nothing of the parent's
        kept[0] = 12345
        del kept, zeros, grown, computed
        gc.collect()
        np.zeros(LARGE)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert kept[1] == 2 and not zeros.any()


def test_life_of_arrays() -> None:
    for outcome in run_ranks(2, life_of_arrays, launcher="env"):
        outcome.get()


def more_than_there_is(comm: Any) -> None:
    with pytest.raises(MemoryError) as error:
        comm.empty(1 << 50, np.uint8)
    assert isinstance(error.value, pycomm.OutOfMemoryError)
    assert "wanted" in str(error.value) and "empty" in str(error.value)
    with pycomm.shared_allocator(comm):
        with pytest.raises(MemoryError):
            np.empty(1 << 60, np.uint8)
        np.ones(LARGE)
    np.testing.assert_array_equal(comm.all_reduce(np.ones(3)), np.full(3, comm.size))


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_more_than_there_is(transport: str) -> None:
    env = {"PYCOMM_TRANSPORT": transport}
    for outcome in run_ranks(2, more_than_there_is, launcher="env", env=env):
        outcome.get()


def nothing_to_share(comm: Any) -> None:
    with pycomm.shared_allocator(comm):
        x = np.full(LARGE, comm.rank + 1.0)
    assert not symmetric(comm, x)
    assert comm.all_reduce(x)[0] == 3
    thresholds: list[Any] = [0, -1, 2.5, "8", 2**63, 2**70]
    for threshold in thresholds:
        with pytest.raises(pycomm.ArgumentError), pycomm.shared_allocator(comm, threshold):
            pass


def test_tcp_has_nothing_to_share() -> None:
    env = {"PYCOMM_TRANSPORT": "tcp"}
    for outcome in run_ranks(2, nothing_to_share, launcher="env", env=env):
        outcome.get()
