# Large messages between arrays of every kind: in one copy where that is possible, else through the
# channel, and the same to see.
from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from core.values import check, sentinel, values
from ranks import run_ranks

import pycomm

KIB, MIB = 1 << 10, 1 << 20
# Around the sizes from which messages are offered, and with a last piece of one byte.
SIZES = [32 * KIB - 1, 32 * KIB, 65_537, 256 * KIB - 1, 256 * KIB, 256 * KIB + 1, MIB + 3]
SIZES += [2 * MIB + 1, 5_000_001, 17 * MIB + 5]
KINDS = ["private", "symmetric", "odd"]


class Arrays:
    """Sources and targets of every kind, large enough for every size."""

    def __init__(self, comm: Any) -> None:
        size = max(SIZES) + 64
        self.symmetric = [comm.empty(size, np.uint8) for _ in range(2)]
        self.private = [np.empty(size, np.uint8) for _ in range(2)]

    def get(self, kind: str, index: int, size: int) -> Any:
        if kind == "odd":  # starts and ends within a page, a line and a word
            return self.private[index][13 : 13 + size]
        return (self.symmetric if kind == "symmetric" else self.private)[index][:size]


def content(rank: int, size: int, salt: int = 0) -> Any:
    return np.random.default_rng([rank, size, salt]).integers(0, 256, size, dtype=np.uint8)


def everything(comm: Any) -> None:
    arrays = Arrays(comm)
    every_kind(comm, arrays)
    every_way(comm, arrays)
    tags_out_of_order(comm)
    wrong_receives(comm)
    many_at_once(comm)
    beside_collectives(comm)
    comm.barrier()


def every_kind(comm: Any, arrays: Arrays) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size, source, target in itertools.product(SIZES, KINDS, KINDS):
        if size > 5_000_001 and "odd" in (source, target):
            continue
        x, out = arrays.get(source, 0, size), arrays.get(target, 1, size)
        x[:] = content(comm.rank, size)
        out[:] = 0x5B
        before = arrays.private[1][size + 13], arrays.symmetric[1][size]
        if comm.rank == 0:  # one after the other, around the ring
            comm.send(x, right)
            comm.recv(out, left)
        else:
            comm.recv(out, left)
            comm.send(x, right)
        assert np.array_equal(out, content(left, size)), (size, source, target)
        assert np.array_equal(x, content(comm.rank, size)), (size, source, target)
        assert before == (arrays.private[1][size + 13], arrays.symmetric[1][size])


def every_way(comm: Any, arrays: Arrays) -> None:
    """All at once: sendrecv, group, and started operations; both directions of a pair."""
    size = 3 * MIB + 7
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for turn, (source, target) in enumerate(itertools.product(KINDS, KINDS)):
        x, out = arrays.get(source, 0, size), arrays.get(target, 1, size)
        x[:] = content(comm.rank, size, turn)
        for way in ("sendrecv", "group", "started", "submitted"):
            out[:] = 0x5B
            if way == "sendrecv":
                comm.sendrecv(x, right, out, left)
            elif way == "group":
                with comm.group():
                    comm.recv(out, left)
                    comm.send(x, right)
            else:
                receive = comm.recv(out, left, async_op=True)
                if way == "started":
                    comm.send(x, right)
                else:
                    comm.send(x, right, async_op=True).wait()
                receive.wait()
            assert np.array_equal(out, content(left, size, turn)), (way, source, target)


def tags_out_of_order(comm: Any) -> None:
    """What is set aside does not hold its sender."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sizes = [300_000, 10, 700_001, 40_000, 0, 2_000_000]
    parts = [values(comm.rank, size, "uint16", salt=tag) for tag, size in enumerate(sizes)]
    sends = [comm.send(part, right, tag, async_op=True) for tag, part in enumerate(parts)]
    for tag in (5, 2, 0, 4, 3, 1):
        out = sentinel(sizes[tag], "uint16")
        comm.recv(out, left, tag)
        check(out, values(left, sizes[tag], "uint16", salt=tag), f"tag {tag}")
        if tag == 5:
            for work in sends:
                work.wait(20)


def wrong_receives(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in (20_000, 700_001):
        x = values(comm.rank, count, "float32")
        for wrong_count, wrong_dtype in ((3, "float32"), (count + 1, "float32"), (count, "int32")):
            sends = [comm.send(part, right, 2, async_op=True) for part in (x, x)]
            out = sentinel(wrong_count, wrong_dtype)
            before = out.copy()
            with pytest.raises(pycomm.MismatchError, match=f"{count} elements of float32"):
                comm.recv(out, left, 2)
            check(out, before, "the wrong receive")
            assert sends[0].wait(10) is None
            out = sentinel(count, "float32")
            check(comm.recv(out, left, 2), values(left, count, "float32"), "the next")
            sends[1].wait()


def many_at_once(comm: Any) -> None:
    """Everyone with everyone, several messages of a pair under way, large beside small ones."""
    sizes = [1_000_003, 5, 70_000, 400_001]
    works, outs = [], []
    for step in range(comm.size):
        peer = (comm.rank + step) % comm.size
        for tag, size in enumerate(sizes):
            part = values(comm.rank, size, "int8", salt=peer * 7 + tag)
            works.append(comm.send(part, peer, tag, async_op=True))
    for step in range(comm.size):
        peer = (comm.rank - step) % comm.size
        for tag, size in enumerate(sizes):
            outs.append((peer, tag, sentinel(size, "int8")))
            works.append(comm.recv(outs[-1][2], peer, tag, async_op=True))
    for work in reversed(works):
        work.wait()
    for peer, tag, out in outs:
        check(out, values(peer, sizes[tag], "int8", salt=comm.rank * 7 + tag), f"{peer}, {tag}")


def beside_collectives(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for turn in range(10):
        x = values(comm.rank, 500_000 + turn, "float32", salt=turn)
        out = sentinel(x.size, "float32")
        total = np.full(200_000, comm.rank, dtype=np.int32)
        works = [
            comm.send(x, right, turn, async_op=True),
            comm.all_reduce(total, async_op=True),
            comm.recv(out, left, turn, async_op=True),
        ]
        for work in works:
            work.wait()
        check(out, values(left, x.size, "float32", salt=turn), f"turn {turn}")
        assert (total == comm.size * (comm.size - 1) // 2).all()


@pytest.mark.parametrize("cma", ["always", "auto", "off"])
@pytest.mark.parametrize("n", [2, 3])
def test_between_processes(n: int, cma: str) -> None:
    env = {"PYCOMM_TRANSPORT": "shm", "PYCOMM_CMA": cma}
    for outcome in run_ranks(n, everything, launcher="env", env=env):
        outcome.get()
        assert outcome.stderr == ""


def test_over_sockets() -> None:
    for outcome in run_ranks(2, everything, launcher="env", env={"PYCOMM_TRANSPORT": "tcp"}):
        outcome.get()


@pytest.mark.parametrize("transport", ["auto", "shm"])
def test_between_threads(transport: str) -> None:
    env = {"PYCOMM_TRANSPORT": transport, "PYCOMM_CMA": "always"}
    for outcome in run_ranks(3, everything, launcher="threads", env=env):
        outcome.get()


def test_settings() -> None:
    def refused(value: str) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYCOMM_CMA", value)
            with pytest.raises(pycomm.ArgumentError) as error:
                pycomm.thread_world(1)
        return str(error.value)

    assert refused("yes") == "PYCOMM_CMA=yes is not one of auto, always, off"
