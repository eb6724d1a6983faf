# Messages between pairs of ranks: tags, order, sizes, groups, self, wrong receives, timeouts.
from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
from core.on_threads import each_transport, on_threads
from core.values import DTYPES, check, sentinel, values
from ranks import run_ranks

import pycomm

MIB = 1 << 20


def everything(comm: Any) -> None:
    """All that needs no timeout, in one job."""
    every_dtype(comm)
    ring_of_sizes(comm)
    tags_in_any_order(comm)
    seven_sends_waited_in_reverse(comm)
    to_itself(comm)
    wrong_receives(comm)
    large_both_ways(comm, 64 * MIB if comm.size == 2 else 5 * MIB)
    groups(comm)
    unexpected(comm)
    many(comm)
    between_collectives(comm)
    comm.barrier()


@each_transport
def test_messages_between_threads(transport: str) -> None:
    for n in (1, 2, 3) if transport == "shm" else (2, 5):
        on_threads(n, everything, transport)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_messages_between_processes(launcher: str, transport: str) -> None:
    environment = {"PYCOMM_TRANSPORT": transport}
    for n in (2, 3):
        for outcome in run_ranks(n, everything, launcher=launcher, env=environment):
            outcome.get()


def every_dtype(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for name in DTYPES:
        x, expected = values(comm.rank, (5, 3), name), values(left, (5, 3), name)
        out = sentinel((5, 3), name)
        assert comm.sendrecv(x, right, out, left) is out
        check(out, expected, f"sendrecv {name}")
        check(x, values(comm.rank, (5, 3), name), f"sent {name}")


def ring_of_sizes(comm: Any) -> None:
    """Sizes around every internal limit; the transport's rings wrap many times."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in (0, 1, 15, 16, 17, 0, 4095, 65_536, 65_537, 262_144, 1_000_003, 4095, 2 * MIB + 1):
        x = values(comm.rank, size, "uint8", salt=size)
        out = sentinel(size, "uint8")
        work = comm.send(x, right, tag=size % 5, async_op=True)
        comm.recv(out, left, tag=size % 5)
        assert work.wait() is None
        check(out, values(left, size, "uint8", salt=size), f"{size} bytes")


def tags_in_any_order(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    tags = [0, 1, 2**31 - 1, 7]
    for order in itertools.permutations(tags):
        sends = [comm.send(values(tag % 97, 5, "int64"), right, tag, async_op=True) for tag in tags]
        for tag in order:
            out = sentinel(5, "int64")
            comm.recv(out, left, tag)
            check(out, values(tag % 97, 5, "int64"), f"tag {tag} of {order}")
        for work in sends:
            work.wait()


def seven_sends_waited_in_reverse(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in (3, 100_000):
        parts = [values(comm.rank, count, "float32", salt=tag) for tag in range(7)]
        sends = [comm.send(part, right, tag, async_op=True) for tag, part in enumerate(parts)]
        outs = [sentinel(count, "float32") for _ in range(7)]
        receives = [comm.recv(outs[tag], left, tag, async_op=True) for tag in (3, 1, 4, 0, 5, 6, 2)]
        for work in reversed(sends):
            work.wait()
        for work in reversed(receives):
            work.wait()
        for tag, out in enumerate(outs):
            check(out, values(left, count, "float32", salt=tag), f"tag {tag}, {count} elements")
    # The same tag keeps its order.
    sends = [
        comm.send(values(comm.rank, 4, "int32", salt=i), right, 9, async_op=True) for i in range(7)
    ]
    for i in range(7):
        out = sentinel(4, "int32")
        check(comm.recv(out, left, 9), values(left, 4, "int32", salt=i), f"message {i}")
    for work in sends:
        work.wait()


def to_itself(comm: Any) -> None:
    me = comm.rank
    for count in (0, 3, MIB):
        x = values(me, count, "uint8")
        comm.send(x, me, tag=4)  # is buffered
        comm.send(values(me, count, "uint8", salt=1), me, tag=5)
        out = sentinel(count, "uint8")
        check(comm.recv(out, me, tag=5), values(me, count, "uint8", salt=1), "self, tag 5")
        check(comm.recv(out, me, tag=4), x, "self, tag 4")
        receive = comm.recv(out, me, async_op=True)
        comm.send(x, me)
        check(receive.wait(), x, "self, receive first")
        check(comm.sendrecv(x, me, out, me), x, "self, sendrecv")


def wrong_receives(comm: Any) -> None:
    """A wrong size or dtype is an error at the receiver; the next message is intact."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    # The largest is beyond what a channel holds.
    for count in (5, 100_000, 3 * MIB if comm.size == 2 else 600_000):
        own = [values(comm.rank, count, "float32", salt=i) for i in range(2)]
        expected = values(left, count, "float32", salt=1)
        for wrong_count, wrong_dtype in ((3, "float32"), (count + 1, "float32"), (count, "int32")):
            sends = [comm.send(x, right, 2, async_op=True) for x in own]
            out = sentinel(wrong_count, wrong_dtype)
            before = out.copy()
            with pytest.raises(pycomm.MismatchError) as error:
                comm.recv(out, left, 2)
            text = str(error.value)
            assert f"{count} elements of float32" in text, text
            assert f"{wrong_count} elements of {wrong_dtype}" in text, text
            assert f"rank {left} sent" in text and error.value.ranks == (left,), text
            check(out, before, "out of the wrong receive")
            # Also in time: the sender of a dropped message does not wait for another receive.
            assert sends[0].wait(10) is None
            out = sentinel(count, "float32")
            check(comm.recv(out, left, 2), expected, "the next")
            sends[1].wait()
    # Behind other messages, and as a receive that was posted first.
    receive = comm.recv(sentinel(2, "int8"), left, 6, async_op=True)
    comm.barrier()
    sends = [comm.send(values(0, 3, "int8"), right, tag, async_op=True) for tag in (5, 6, 6)]
    with pytest.raises(pycomm.MismatchError, match="3 elements of int8.*2 elements of int8"):
        receive.wait()
    for tag in (6, 5):
        check(comm.recv(sentinel(3, "int8"), left, tag), values(0, 3, "int8"), f"tag {tag}")
    for work in sends:
        work.wait()


def large_both_ways(comm: Any, size: int) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x = np.random.default_rng(comm.rank).integers(0, 256, size, dtype=np.uint8)
    expected = np.random.default_rng(left).integers(0, 256, size, dtype=np.uint8)
    out = np.full(size, 0x5B, dtype=np.uint8)
    work = comm.send(x, right, async_op=True)
    comm.recv(out, left)
    work.wait()
    assert np.array_equal(out, expected)
    # An eighth is still more than what a channel holds.
    x, out, expected = x[: size // 8], out[: size // 8], expected[: size // 8]
    out[...] = 0x5B
    comm.sendrecv(x, right, out, left)
    assert np.array_equal(out, expected)
    out[...] = 0x5B
    with comm.group():  # any order completes
        if comm.rank % 2:
            comm.recv(out, left)
            comm.send(x, right)
        else:
            comm.send(x, right)
            comm.recv(out, left)
    assert np.array_equal(out, expected)


def groups(comm: Any) -> None:
    size, rank = comm.size, comm.rank
    # Everyone with everyone, receives in another order than sends.
    outs = [sentinel(1000 + src, "int32") for src in range(size)]
    with comm.group():
        for dst in range(size):
            assert comm.send(values(rank * 10 + dst, 1000 + rank, "int32"), dst, 3) is None
        for src in reversed(range(size)):
            assert comm.recv(outs[src], src, 3) is None
    for src, out in enumerate(outs):
        check(out, values(src * 10 + rank, 1000 + src, "int32"), f"from {src}")
    with comm.group():
        pass
    with pytest.raises(pycomm.ArgumentError, match="split inside group"), comm.group():
        comm.split(0)
    with pytest.raises(pycomm.ArgumentError, match="empty inside group"), comm.group():
        comm.empty(1)
    with pytest.raises(pycomm.ArgumentError, match="all_reduce inside group"), comm.group():
        comm.all_reduce(np.ones(2))
    out = sentinel(4, "int32")
    with comm.group():  # also with what is started at once, or both in one call
        work = comm.sendrecv(values(rank, 4, "int32"), rank, out, rank, 3, async_op=True)
        comm.sendrecv(values(rank, 9, "int32"), (rank + 1) % size, outs[0][:9], (rank - 1) % size)
    check(outs[0][:9], values((rank - 1) % size, 9, "int32"), "sendrecv in a group")
    assert work.wait() is out and work.done() and work.exception() is None
    check(out, values(rank, 4, "int32"), "sendrecv started in a group")
    with pytest.raises(pycomm.ArgumentError, match="group"), comm.group(), comm.group():
        pass
    # What raises inside starts nothing.
    with pytest.raises(ZeroDivisionError), comm.group():
        comm.send(np.ones(3), (rank + 1) % size, 8)
        raise ZeroDivisionError
    # An error of one receive leaves the others whole, strided outputs included.
    right, left = (rank + 1) % size, (rank - 1) % size
    wide = sentinel((4, 6), "float64")
    with pytest.raises(pycomm.MismatchError), comm.group():
        comm.send(np.ones(5), right, 8)
        comm.send(values(rank, (4, 3), "float64"), right, 9)
        comm.recv(np.empty(4), left, 8)
        comm.recv(wide[:, ::2], left, 9)
    check(wide[:, ::2], values(left, (4, 3), "float64"), "beside a wrong receive")


def unexpected(comm: Any) -> None:
    """Messages that arrive before their receive, behind others, and that take turns with it."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sends = [
        comm.send(values(tag, 20_000, "uint16"), right, tag, async_op=True) for tag in range(10)
    ]
    for tag in reversed(range(10)):
        out = sentinel(20_000, "uint16")
        check(comm.recv(out, left, tag), values(tag, 20_000, "uint16"), f"tag {tag}")
    for work in sends:
        work.wait()


def many(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    count = 500
    sends = [
        comm.send(np.full(1 + i % 7, i * 1000 + comm.rank), right, i % 3, async_op=True)
        for i in range(count)
    ]
    outs = [np.full(1 + i % 7, -1) for i in range(count)]
    receives = [comm.recv(out, left, i % 3, async_op=True) for i, out in enumerate(outs)]
    for i, work in enumerate(receives):
        assert work.wait() is outs[i]
        assert (outs[i] == i * 1000 + left).all(), (i, outs[i])
    for work in sends:
        work.wait()


def between_collectives(comm: Any) -> None:
    """Point-to-point operations run side by side with collectives, in any order."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for turn in range(20):
        count = (turn * 7919) % 50_000
        x = values(comm.rank, count, "float32", salt=turn)
        out = sentinel(count, "float32")
        total = np.full(count, comm.rank, dtype=np.int32)
        if comm.rank % 2:
            works = [
                comm.all_reduce(total, async_op=True),
                comm.recv(out, left, turn, async_op=True),
                comm.send(x, right, turn, async_op=True),
            ]
        else:
            works = [
                comm.send(x, right, turn, async_op=True),
                comm.all_reduce(total, async_op=True),
                comm.recv(out, left, turn, async_op=True),
            ]
        for work in works[:: 1 - 2 * (turn % 2)]:
            work.wait()
        check(out, values(left, count, "float32", salt=turn), f"turn {turn}")
        assert (total == comm.size * (comm.size - 1) // 2).all()
        # A receive that is matched only after several collectives.
        receive = comm.recv(out, left, 100, async_op=True)
        for _ in range(3):
            comm.barrier()
        comm.send(x, right, 100)
        check(receive.wait(), values(left, count, "float32", salt=turn), f"late send {turn}")


@each_transport
def test_blocking_sends_both_ways_time_out(transport: str) -> None:
    """send/send of 64 MiB: an error that says that no receive was posted."""
    for text, seconds in on_threads(2, both_send, transport):
        assert "posted no receive for it" in text and "send" in text, text
        assert 0.9 < seconds < 3.5


def test_blocking_sends_both_ways_time_out_in_processes(launcher: str) -> None:
    for outcome in run_ranks(2, both_send, launcher=launcher):
        text, seconds = outcome.get()
        assert "posted no receive for it" in text, text
        assert 0.9 < seconds < 3.5


def both_send(comm: Any) -> tuple[str, float]:
    start = time.monotonic()
    with pytest.raises(pycomm.CommTimeoutError) as error:
        comm.send(np.zeros(64 * MIB, np.uint8), 1 - comm.rank, timeout=1.0)
    assert error.value.missing in ([0], [1])
    return str(error.value), time.monotonic() - start


@each_transport
def test_a_receive_without_message_times_out(transport: str) -> None:
    for texts in on_threads(2, nothing_to_receive, transport):
        assert "tag 3" in texts[0] and "rank" in texts[0]


def nothing_to_receive(comm: Any) -> list[str]:
    other = 1 - comm.rank
    # A message of another tag is no answer, and stays.
    comm.send(np.ones(2), other, tag=4)
    work = comm.recv(np.zeros(2), other, 3, async_op=True)
    with pytest.raises(pycomm.CommTimeoutError) as first:
        work.wait(0.2)
    assert not work.done() and first.value.missing == [other]
    check(comm.recv(np.zeros(2), other, 4), np.ones(2), "another tag")
    with pytest.raises(pycomm.CommTimeoutError) as second:
        comm.recv(np.zeros(2), other, 3, timeout=0.5)
    return [str(second.value), str(first.value)]


def test_two_threads_of_a_rank_send_and_receive() -> None:
    import threading

    def body(comm: Any) -> list[str]:
        errors: list[str] = []

        def talk(tag: int) -> None:
            other = 1 - comm.rank
            try:
                for turn in range(50):
                    x = values(comm.rank, 100 * tag + turn, "int32", salt=tag)
                    out = np.zeros_like(x)
                    comm.sendrecv(x, other, out, other, tag)
                    check(out, values(other, x.size, "int32", salt=tag), f"{tag} {turn}")
            except BaseException as error:
                errors.append(repr(error))

        threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors

    for transport in ("auto", "tcp"):
        assert on_threads(2, body, transport) == [[], []]
