# The short way from a call to the core: that it is taken, and that it changes nothing.
from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from core.test_bad_arguments import CALLS
from core.values import DTYPES, check, combine, dtype_of, ops_of, sentinel, split_rows, values
from ranks import run_ranks, run_script

import pycomm
from pycomm import _core

QUICK = (
    "all_reduce",
    "reduce",
    "broadcast",
    "reduce_scatter",
    "all_gather",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
    "send",
    "recv",
    "sendrecv",
)


class Plain(pycomm.Communicator):
    """The functions without what stands in front of them."""


for _name in QUICK:
    setattr(Plain, _name, getattr(pycomm.Communicator, _name).__wrapped__)


def taken(call: Callable[[], Any]) -> tuple[Any, int]:
    """The result, and how many calls went the short way. For one thread of a process."""
    before = _core.quick_calls()
    result = call()
    return result, _core.quick_calls() - before


# ---- it is taken -----------------------------------------------------------------------------


def quick_results(comm: Any) -> None:
    """Every operation with plain arrays: one short call each, and the right result."""
    n, rank = comm.size, comm.rank
    rows = 2 * n + 1
    mine = split_rows(rows, n)
    for name in DTYPES:
        if name == "bfloat16":  # its type number is known after it came by once
            comm.all_reduce(np.zeros(1, dtype_of(name)))
        for op in ops_of(name):
            parts = [values(r, (rows, 3), name, op) for r in range(n)]
            total = combine(parts, op)
            x, out = parts[rank].copy(), sentinel((rows, 3), name)
            for call, target, expected in (
                (partial(comm.all_reduce, x, op, out), out, total),
                (partial(comm.all_reduce, x, op=op), x, total),
            ):
                result, count = taken(call)
                assert result is target and count == 1, (name, op, count)
                check(result, expected, f"all_reduce {name} {op}")
            x, out = parts[rank].copy(), sentinel((rows, 3), name)
            result, count = taken(partial(comm.reduce, x, n - 1, op, out=out))
            assert count == 1 and result is (out if rank == n - 1 else None)
            check(out, total if rank == n - 1 else sentinel((rows, 3), name), "reduce")
            out = sentinel((mine[rank], 3), name)
            result, count = taken(partial(comm.reduce_scatter, x, op, out=out))
            assert count == 1 and result is out
            first = sum(mine[:rank])
            check(out, total[first : first + mine[rank]], "reduce_scatter")
        quick_copies(comm, name)
    assert taken(comm.barrier) == (None, 1)


def quick_copies(comm: Any, name: str) -> None:
    n, rank = comm.size, comm.rank
    parts = [values(r, (n, 2), name) for r in range(n)]
    x = parts[rank].copy()
    if rank == n - 1:
        x.flags.writeable = False
    result, count = taken(lambda: comm.broadcast(x, root=n - 1, timeout=9))
    assert result is x and count == 1
    check(x, parts[n - 1], "broadcast")
    out = sentinel((n * n, 2), name)
    result, count = taken(lambda: comm.all_gather(parts[rank], out, timeout=9.5))
    assert result is out and count == 1
    check(out, np.concatenate(parts), "all_gather")
    out = sentinel((n, 2), name)
    result, count = taken(lambda: comm.all_to_all(parts[rank], out=out, timeout=None))
    assert result is out and count == 1
    check(out, np.stack([part[rank] for part in parts]), "all_to_all")
    quick_roots(comm, name)
    right, left = (rank + 1) % n, (rank - 1) % n
    result, count = taken(lambda: comm.send(parts[rank], right, tag=2**31 - 1, async_op=False))
    assert result is None and count == 1
    out = sentinel((n, 2), name)
    result, count = taken(lambda: comm.recv(out, left, 2**31 - 1))
    assert result is out and count == 1
    check(out, parts[left], "recv")
    out = sentinel((n, 2), name)
    result, count = taken(lambda: comm.sendrecv(parts[rank], left, out, right, 7, timeout=9.0))
    assert result is out and count == 1
    check(out, parts[right], "sendrecv")


def quick_roots(comm: Any, name: str) -> None:
    n, rank = comm.size, comm.rank
    parts = [values(r, (n, 2), name, salt=1) for r in range(n)]
    root = n // 2
    whole, none = np.concatenate(parts), sentinel((n * n, 2), name)
    out = none.copy()
    result, count = taken(lambda: comm.gather(parts[rank], root, out if rank == root else "junk"))
    assert result is (out if rank == root else None) and count == 1
    check(out, whole if rank == root else none, "gather")
    rows = 2 * n + 1
    whole, mine = values(root, (rows, 3), name, salt=2), split_rows(rows, n)
    out = sentinel((mine[rank], 3), name)
    result, count = taken(lambda: comm.scatter(whole if rank == root else None, root, out=out))
    assert result is out and count == 1
    first = sum(mine[:rank])
    check(out, whole[first : first + mine[rank]], "scatter")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_plain_arrays_go_the_short_way(n: int) -> None:
    for outcome in run_ranks(n, quick_results):
        outcome.get()


def test_sockets() -> None:
    for outcome in run_ranks(2, quick_results, env={"PYCOMM_TRANSPORT": "tcp"}):
        outcome.get()


def test_threads_do_not_wait_for_each_others_lock() -> None:
    for outcome in run_ranks(3, sums_of_threads, launcher="threads", timeout=60.0):
        outcome.get()


def sums_of_threads(comm: Any) -> None:
    for turn in range(200):
        x = np.array([comm.rank + turn, comm.rank * turn])
        comm.all_reduce(x)
        check(x, np.array([3 + 3 * turn, 3 * turn]), f"turn {turn}")


# ---- it changes nothing ----------------------------------------------------------------------


def words(call: Callable[[Any], Any], comm: Any) -> str:
    """What came of it, without the numbers of operations."""
    try:
        return f"the value {call(comm)!r}"
    except BaseException as error:
        text = re.sub(r"#\d+", "#n", str(error))
        return f"{type(error).__mro__} {getattr(error, 'ranks', None)} {text}"


def refused_alike(comm: Any) -> list[str]:
    plain = Plain(comm._core)
    before = _core.quick_calls()
    problems = []
    for name, call, _ in CALLS:
        quick, slow = words(call, comm), words(call, plain)
        if quick != slow or "ArgumentError" not in quick:
            problems.append(f"{name}: {quick}\n  plain: {slow}")
    if _core.quick_calls() != before:
        problems.append(f"{_core.quick_calls() - before} wrong calls went the short way")
    return problems


def test_wrong_arguments_are_refused_alike() -> None:
    for outcome in run_ranks(2, refused_alike, init_timeout=3.0):
        problems = outcome.get()
        assert not problems, f"{len(problems)} of {len(CALLS)}\n" + "\n".join(problems)


class Array(np.ndarray[Any, Any]):
    """A subclass, which the short way leaves alone."""


class Count(int):
    """An integer of another class."""


def strided(x: Any) -> Any:
    return np.repeat(x, 2, axis=0)[::2]


def misaligned(x: Any) -> Any:
    view = np.zeros(x.nbytes + 1, dtype=np.uint8)[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def f8(comm: Any, *shape: int) -> Any:
    return values(comm.rank, shape, "float64")


# Right, but not plain: each is a call that has to go the long way, and what it returns.
ODD: list[tuple[str, Callable[[Any], Any]]] = [
    ("strided", lambda c: c.all_reduce(strided(f8(c, 4, 3)))),
    ("Fortran order", lambda c: c.all_reduce(np.asfortranarray(f8(c, 4, 3)))),
    ("misaligned", lambda c: c.all_reduce(misaligned(f8(c, 4, 3)))),
    ("scatter of no axes", lambda c: c.scatter(np.array(7.0), 0, np.zeros(1 - c.rank))),
    ("scatter of nothing", lambda c: c.scatter(np.zeros((2, 0)), 1, np.zeros((1, 0)))),
    (
        "sendrecv of a column",
        lambda c: c.sendrecv(f8(c, 3, 2)[:, 0], 1 - c.rank, f8(c, 3), 1 - c.rank),
    ),
    (
        "sendrecv into a column",
        lambda c: c.sendrecv(f8(c, 3), 1 - c.rank, f8(c, 3, 2)[:, 1], 1 - c.rank),
    ),
    ("misaligned out", lambda c: c.all_reduce(f8(c, 3), out=misaligned(np.zeros(3)))),
    ("subclass", lambda c: c.all_reduce(f8(c, 4).view(Array))),
    ("subclass out", lambda c: c.all_gather(f8(c, 1), np.zeros(2).view(Array))),
    ("scalar", lambda c: c.all_reduce(np.float64(c.rank + 1), out=np.zeros(()))),
    ("no axes", lambda c: c.all_gather(np.array(c.rank + 1.0), np.zeros(2))),
    (
        "no axes, summed",
        lambda c: c.reduce_scatter(np.array(c.rank + 1.0), out=np.zeros(1 - c.rank)),
    ),
    ("no rows", lambda c: c.all_gather(np.zeros((0, 3)), np.zeros((0, 3)))),
    ("no columns", lambda c: c.all_to_all(np.zeros((3, 0)), np.zeros(((2 - c.rank) * 2, 0)))),
    ("allocates", lambda c: c.reduce_scatter(f8(c, 5, 2))),
    ("counts", lambda c: c.reduce_scatter(f8(c, 5, 2), "sum", None, [1, 4])),
    ("counts by name", lambda c: c.all_gather(f8(c, c.rank + 1), counts=[1, 2])),
    ("no counts", lambda c: c.all_gather(f8(c, 2), np.zeros(4), counts=None)),
    ("async", lambda c: c.all_reduce(f8(c, 3), async_op=True).wait()),
    ("async is 1", lambda c: c.all_reduce(f8(c, 3), async_op=1).wait()),
    ("async is 0", lambda c: c.all_reduce(f8(c, 3), async_op=0)),
    ("op is not interned", lambda c: c.all_reduce(f8(c, 3), "".join(["m", "ax"]))),
    ("op is a subclass", lambda c: c.all_reduce(f8(c, 3), op=np.str_("min"))),
    ("names are not interned", lambda c: c.all_reduce(f8(c, 3), **{"".join(["o", "p"]): "max"})),
    ("root is a NumPy integer", lambda c: c.broadcast(f8(c, 3), np.int8(1))),
    ("root is a subclass", lambda c: c.reduce(f8(c, 3), Count(1))),
    ("timeout is a Python integer", lambda c: c.all_reduce(f8(c, 3), timeout=10**12)),
    ("timeout is a NumPy float", lambda c: c.all_reduce(f8(c, 3), timeout=np.float32(9))),
]
# Plain enough for the short way, at its edges.
EDGES: list[tuple[str, Callable[[Any], Any]]] = [
    ("no elements", lambda c: c.all_reduce(np.zeros((2, 0, 3)))),
    ("no axes", lambda c: c.all_reduce(np.array(c.rank + 2.0))),
    ("a column", lambda c: c.all_reduce(f8(c, 4, 1)[::1])),
    ("x is out", lambda c: (lambda x: c.all_reduce(x, out=x))(f8(c, 3))),
    ("overlap", lambda c: (lambda x: c.all_reduce(x[1:], out=x[:-1]))(f8(c, 6))),
    ("long long", lambda c: c.all_reduce(np.arange(3, dtype="q") + c.rank)),
    ("long and long long", lambda c: c.all_reduce(np.arange(3, dtype="q"), out=np.zeros(3, "l"))),
    ("reduce ignores out", lambda c: c.reduce(f8(c, 3), c.size - 1, "sum", None)),
    ("junk away from root", lambda c: c.reduce(f8(c, 3), 0, "sum", [None, "junk"][c.rank])),
    ("scatter without x", lambda c: c.scatter(["junk", f8(c, 4)][c.rank], 1, f8(c, 2))),
    ("timeout None", lambda c: c.barrier(timeout=None)),
    ("timeout 1e300", lambda c: c.barrier(timeout=1e300)),
    ("long", lambda c: c.all_reduce(f8(c, 1 << 17))),
    ("order is not native name", lambda c: c.all_reduce(f8(c, 3).astype("=f4"))),
]
# The core refuses these.
REFUSED: list[tuple[str, Callable[[Any], Any]]] = [
    ("avg of integers", lambda c: c.all_reduce(np.arange(3), "avg")),
    ("max of complex", lambda c: c.reduce(np.ones(2, complex), 0, "max")),
    (
        "a message of another type",
        lambda c: c.sendrecv(f8(c, 3), 1 - c.rank, np.arange(3), 1 - c.rank),
    ),
    ("band of floats", lambda c: c.reduce_scatter(np.ones(2), "band", np.ones(1))),
]


def alike(comm: Any) -> list[str]:
    plain = Plain(comm._core)
    problems = []
    with np.printoptions(threshold=1000, precision=17):
        for name, call in ODD + EDGES + REFUSED:
            slow, none = taken(partial(words, call, plain))
            quick, count = taken(partial(words, call, comm))
            expected = 0 if (name, call) in ODD else 1
            refused = (name, call) in REFUSED
            if quick != slow or ("Error" in quick) is not refused:
                problems.append(f"{name}: {quick}\n  plain: {slow}")
            if none != 0 or count != expected:
                problems.append(f"{name}: {none} and {count} short calls, not 0 and {expected}")
    return problems


def test_odd_arguments_give_the_same() -> None:
    for outcome in run_ranks(2, alike):
        problems = outcome.get()
        assert not problems, "\n".join(problems)


def broken_alike(comm: Any) -> list[str]:
    """After an error that breaks the communicator, and after close()."""
    plain = Plain(comm._core)
    calls: list[Callable[[Any], Any]] = [
        lambda c: c.all_reduce(np.ones(2)),
        lambda c: c.barrier(),
        lambda c: c.send(np.ones(2), 0),
        lambda c: c.recv(np.ones(2), 0),
        lambda c: c.sendrecv(np.ones(2), 0, np.ones(2), 0),
    ]
    found = [words(lambda c: c.all_reduce(np.ones(2 + c.rank)), comm)]
    assert "MismatchError" in found[0]
    problems = []
    for expected in ("MismatchError", "closed"):
        for call in calls:
            quick, slow = words(call, comm), words(call, plain)
            if quick != slow or expected not in quick:
                problems.append(f"{quick}\n  plain: {slow}")
        comm.close()
    return problems


def test_a_broken_communicator_says_the_same() -> None:
    for outcome in run_ranks(2, broken_alike):
        problems = outcome.get()
        assert not problems, "\n".join(problems)


def group_of_messages(comm: Any) -> None:
    """Inside group() messages are collected; a communicator in use elsewhere is not disturbed."""
    other = 1 - comm.rank
    out = sentinel(3, "int64")
    mine, theirs = values(comm.rank, 3, "int64"), values(other, 3, "int64")
    before = _core.quick_calls()
    with comm.group():
        assert comm.recv(out, other) is None
        assert comm.send(mine, other) is None
        check(out, sentinel(3, "int64"), "nothing moves inside the block")
        with pytest.raises(pycomm.ArgumentError, match="inside group"):
            comm.all_reduce(mine)
    check(out, theirs, "after the block")
    with pytest.raises(ZeroDivisionError), comm.group():
        comm.recv(out, other)
        raise ZeroDivisionError
    assert _core.quick_calls() == before
    assert taken(comm.barrier)[1] == 1


def test_groups() -> None:
    for outcome in run_ranks(2, group_of_messages):
        outcome.get()


def test_a_group_of_another_thread_does_not_collect() -> None:
    comm: Any = pycomm.thread_world(1)[0]
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with comm.group():
            inside.set()
            assert done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert inside.wait(30)
        comm.send(np.arange(3.0), 0)
        check(comm.recv(np.zeros(3), 0), np.arange(3.0), "a message beside the group")
    finally:
        done.set()
        thread.join(30)
    assert not thread.is_alive()


def test_signals_between_short_calls() -> None:
    """Ctrl-C in a loop of calls that never wait long."""
    finished = run_script(
        2,
        """
        import os, signal, threading, time
        import numpy as np, pycomm

        comm = pycomm.init(timeout=20)
        x = np.zeros(1, np.float32)
        if comm.rank == 0:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            while True:
                comm.all_reduce(x)
        except KeyboardInterrupt:
            assert comm.rank == 0
            comm.abort("interrupted")
        except pycomm.AbortedError:
            assert comm.rank == 1
        print("ended", time.monotonic() - start < 3, flush=True)
        """,
        launcher="env",
        timeout=40.0,
    )
    assert finished.exit_codes == [0, 0], finished.stderr
    assert [text.split() for text in finished.stdout] == [["ended", "True"]] * 2
