# Arguments that cannot be right: ArgumentError that says what was expected and what came, before
# any traffic; the communicator stays intact.
from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from core.values import check
from numpy.lib.stride_tricks import as_strided
from ranks import run_ranks

import pycomm


def f4(*shape: int) -> Any:
    return np.ones(shape, dtype=np.float32)


def read_only(*shape: int) -> Any:
    x = f4(*shape)
    x.flags.writeable = False
    return x


def foreign() -> Any:
    return np.ones(3, dtype=np.dtype(np.float32).newbyteorder())


# Not arrays, or arrays of what cannot be moved.
NO_ARRAYS: list[Any] = [
    None,
    3,
    2.5,
    "text",
    b"bytes",
    [1.0, 2.0],
    (1, 2),
    memoryview(b"abc"),
    np.array([None, "x"], dtype=object),
    np.array(["a", "b"]),
    np.array([b"a"]),
    np.array(["2020-01-01"], dtype="datetime64[D]"),
    np.array([1], dtype="timedelta64[s]"),
    np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]),
    np.zeros(2, dtype=np.longdouble),
    np.zeros(2, dtype=np.clongdouble),
    np.zeros(2, dtype="V8"),
    foreign(),
    f4,
    object(),
]

# (call, parts of the message): the argument's name, what came, what was expected.
CALLS: list[tuple[str, Callable[[Any], Any], tuple[str, ...]]] = []


def case(*words: str) -> Callable[..., None]:
    def add(call: Callable[..., Any], *args: Any) -> None:
        CALLS.append((" ".join(words), lambda comm: call(comm, *args), words))

    return add


for bad_op in ("mean", "SUM", "", None, 3, b"sum", ["sum"], np.add):
    case("op is", repr(bad_op)[:20], "sum, prod")(
        lambda comm, op: comm.all_reduce(f4(2), op), bad_op
    )
    case("op is")(lambda comm, op: comm.reduce(f4(2), 0, op), bad_op)
    case("op is")(lambda comm, op: comm.reduce_scatter(f4(2), op), bad_op)
for bad_root in (-1, 2, 10**9, 2**63, 2**64, 1.0, "0", None, True, np.float64(0), [0]):
    text = str(bad_root) if isinstance(bad_root, (int, np.integer)) else repr(bad_root)
    for name in ("broadcast", "reduce", "gather"):
        case("root is", text, "expected a rank from 0 to 1")(
            lambda comm, name, root: getattr(comm, name)(f4(2), root=root), name, bad_root
        )
    case("root is", text)(lambda comm, root: comm.scatter(f4(2), root, f4(1)), bad_root)
    case("root is", text)(lambda comm, root: comm.broadcast_object(1, root), bad_root)
    case("dst is", text)(lambda comm, peer: comm.send(f4(2), peer), bad_root)
    case("src is", text)(lambda comm, peer: comm.recv(f4(2), peer), bad_root)
    case("dst is", text)(lambda comm, peer: comm.sendrecv(f4(2), peer, f4(2), 0), bad_root)
    case("src is", text)(lambda comm, peer: comm.sendrecv(f4(2), 0, f4(2), peer), bad_root)
for bad_tag in (-1, 2**31, 2**40, 1.5, "a", None, False):
    case("tag is")(lambda comm, tag: comm.send(f4(2), 0, tag), bad_tag)
    case("tag is", "0 to 2^31 - 1")(lambda comm, tag: comm.recv(f4(2), 0, tag), bad_tag)
    case("tag is")(lambda comm, tag: comm.sendrecv(f4(2), 0, f4(2), 0, tag), bad_tag)
for bad_timeout in (
    0,
    -1,
    -0.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    "3",
    b"3",
    True,
    [1],
    1j,
    10**400,
    decimal.Decimal("NaN"),
):
    for timed in (
        lambda comm, t: comm.all_reduce(f4(2), timeout=t),
        lambda comm, t: comm.reduce(f4(2), timeout=t),
        lambda comm, t: comm.broadcast(f4(2), timeout=t),
        lambda comm, t: comm.reduce_scatter(f4(2), timeout=t),
        lambda comm, t: comm.all_gather(f4(2), timeout=t),
        lambda comm, t: comm.gather(f4(2), timeout=t),
        lambda comm, t: comm.scatter(f4(2), 0, f4(1), timeout=t),
        lambda comm, t: comm.all_to_all(f4(2), timeout=t),
        lambda comm, t: comm.all_to_all(f4(2), send_counts=[1, 1], timeout=t),
        lambda comm, t: comm.barrier(timeout=t),
        lambda comm, t: comm.barrier(timeout=t, async_op=True),
        lambda comm, t: comm.send(f4(2), 0, timeout=t),
        lambda comm, t: comm.recv(f4(2), 0, timeout=t),
        lambda comm, t: comm.sendrecv(f4(2), 0, f4(2), 0, timeout=t),
        lambda comm, t: comm.broadcast_object(1, timeout=t),
        lambda comm, t: comm.all_gather_object(1, timeout=t),
        lambda comm, t: pycomm.thread_world(1, timeout=t),
        lambda comm, t: pycomm.init(timeout=t),
    ):
        case("timeout is", "positive number of seconds")(timed, bad_timeout)
for bad_counts in (
    [1],
    [1, 1, 1],
    [],
    2,
    "ab",
    None,
    [1.0, 1.0],
    [2, -1],
    [1, 2],
    [3, None],
    [2**63, 0],
    [2**70, -(2**70)],
):
    if bad_counts is not None:
        case("counts")(lambda comm, c: comm.reduce_scatter(f4(2), counts=c), bad_counts)
        case("counts")(lambda comm, c: comm.scatter(f4(2), comm.rank, None, c), bad_counts)
        case("send_counts")(lambda comm, c: comm.all_to_all(f4(2), None, c, [1, 1]), bad_counts)
        case("recv_counts")(
            lambda comm, c: comm.all_to_all(f4(2), None, [1, 1], c),
            [2] if bad_counts == [1, 2] else bad_counts,
        )
for bad_counts in (
    [1],
    [1, 1, 1],
    [],
    2,
    "ab",
    [1.0, 1.0],
    [2, -1],
    [-1, 2],
    [3, 3],
    [2, None],
    [2**63, 2**63],
):
    case("counts")(lambda comm, c: comm.all_gather(f4(2), counts=c), bad_counts)
    case("counts")(lambda comm, c: comm.gather(f4(2), comm.rank, None, c), bad_counts)
    case("counts")(lambda comm, c: comm.scatter(None, 1 - comm.rank, f4(2), c), bad_counts)
for bad in NO_ARRAYS:
    kind = "dtype" if isinstance(bad, np.ndarray) else type(bad).__name__
    if bad is not None:
        case("x", kind)(lambda comm, x: comm.scatter(x, comm.rank, f4(1)), bad)
        case("out", kind)(lambda comm, x: comm.all_reduce(f4(2), "sum", x), bad)
        case("out", kind)(lambda comm, x: comm.reduce(f4(2), comm.rank, "sum", x), bad)
        case("out", kind)(lambda comm, x: comm.reduce_scatter(f4(2), "sum", x), bad)
        case("out", kind)(lambda comm, x: comm.all_gather(f4(2), x), bad)
        case("out", kind)(lambda comm, x: comm.gather(f4(2), comm.rank, x), bad)
        case("out", kind)(lambda comm, x: comm.all_to_all(f4(2), x), bad)
    case("x", kind)(lambda comm, x: comm.all_reduce(x), bad)
    case("x", kind)(lambda comm, x: comm.all_reduce(x, out=f4(2)), bad)
    case("x", kind)(lambda comm, x: comm.reduce(x), bad)
    case("x", kind)(lambda comm, x: comm.broadcast(x, comm.rank), bad)
    case("x", kind)(lambda comm, x: comm.broadcast(x, 1 - comm.rank), bad)
    case("x", kind)(lambda comm, x: comm.reduce_scatter(x), bad)
    case("x", kind)(lambda comm, x: comm.all_gather(x), bad)
    case("x", kind)(lambda comm, x: comm.gather(x), bad)
    case("x", kind)(lambda comm, x: comm.all_to_all(x), bad)
    case("x", kind)(lambda comm, x: comm.send(x, 0), bad)
    case("out", kind)(lambda comm, x: comm.recv(x, 0), bad)
    case("out", "" if bad is None else kind)(
        lambda comm, x: comm.scatter(None, 1 - comm.rank, x), bad
    )
UNWRITABLE: list[Callable[[Any], Any]] = [
    lambda comm: comm.all_reduce(read_only(2)),
    lambda comm: comm.all_reduce(f4(2), out=read_only(2)),
    lambda comm: comm.reduce(read_only(2), comm.rank),
    lambda comm: comm.broadcast(read_only(2), 1 - comm.rank),
    lambda comm: comm.reduce_scatter(f4(2), out=read_only(1)),
    lambda comm: comm.all_gather(f4(2), read_only(4)),
    lambda comm: comm.gather(f4(2), comm.rank, read_only(4)),
    lambda comm: comm.scatter(f4(2), comm.rank, read_only(1)),
    lambda comm: comm.scatter(None, 1 - comm.rank, read_only(1)),
    lambda comm: comm.all_to_all(f4(2), read_only(2)),
    lambda comm: comm.all_to_all(f4(2), read_only(2), send_counts=[1, 1]),
    lambda comm: comm.recv(read_only(2), 0),
    lambda comm: comm.sendrecv(f4(2), 0, read_only(2), 0),
    lambda comm: comm.all_reduce(np.broadcast_to(np.float32(1), (3,))),
    lambda comm: comm.all_reduce(f4(2), out=read_only(2), async_op=True),
]
for call in UNWRITABLE:
    case("read-only")(call)
OVERLAPPING: list[Callable[[Any], Any]] = [
    lambda comm: comm.all_reduce(f4(3), out=as_strided(f4(1), (3,), (0,))),
    lambda comm: comm.all_reduce(as_strided(f4(9), (5, 5), (4, 4))),
    lambda comm: comm.all_reduce(as_strided(f4(9), (3, 3), (4, 8))),
    lambda comm: comm.all_reduce(as_strided(f4(9), (4,), (2,))),
    lambda comm: comm.recv(as_strided(f4(9), (2, 8), (4, 4)), 0),
]
for call in OVERLAPPING:
    case("on top of each other")(call)
case("got MaskedArray")(lambda comm: comm.all_reduce(np.ma.array(f4(3), mask=[False, True, False])))
case("got MaskedArray")(lambda comm: comm.recv(np.ma.array(f4(3), mask=[False, True, False]), 0))
OTHER_DTYPES: list[Callable[[Any], Any]] = [
    lambda comm: comm.all_reduce(f4(2), out=np.ones(2)),
    lambda comm: comm.reduce(f4(2), comm.rank, out=np.ones(2, np.int32)),
    lambda comm: comm.reduce_scatter(f4(2), out=np.ones(1)),
    lambda comm: comm.all_gather(f4(2), np.ones(4)),
    lambda comm: comm.gather(f4(2), comm.rank, np.ones(4)),
    lambda comm: comm.scatter(f4(2), comm.rank, np.ones(1)),
    lambda comm: comm.all_to_all(f4(2), np.ones(2)),
]
for call in OTHER_DTYPES:
    case("out has dtype", "x has dtype float32")(call)
case("NumPy scalar")(lambda comm: comm.all_reduce(np.float32(1)))
case("NumPy scalar")(lambda comm: comm.recv(np.float32(1), 0))
case("x is None at the root")(lambda comm: comm.scatter(None, comm.rank, f4(1)))
case("out is None")(lambda comm: comm.scatter(f4(2), 1 - comm.rank))
for bad_color in (1.5, "a", 2**31, -(2**31), 2**80, True, [1]):
    case("color is", "32-bit integer")(lambda comm, c: comm.split(c), bad_color)
    case("key is", "32-bit integer")(lambda comm, k: comm.split(0, k), bad_color)
for bad_shape in (-1, (2, -3), 1.5, "ab", (2.0,), None, [[2]], (True,), 2**63, (2**40, 2**40)):
    case("shape is")(lambda comm, s: comm.empty(s), bad_shape)
for bad_dtype in ("floating", object, "U3", "f16", 3.5, "M8[s]", ">f4", "longdouble"):
    case("dtype")(lambda comm, d: comm.empty(2, d), bad_dtype)
for bad_size in (0, -1, 4097, 2**40, 1.5, "2", None, True):
    case("size is", "a number of ranks from 1 to 4096")(
        lambda comm, n: pycomm.thread_world(n), bad_size
    )


def refused(comm: Any) -> list[str]:
    """Makes every call; returns those that did not fail as they should."""
    problems = []
    for name, call, words in CALLS:
        try:
            result = call(comm)
        except pycomm.ArgumentError as error:
            text = str(error)
            missing = [word for word in words if word not in text]
            if missing:
                problems.append(f"{name}: {missing} not in: {text}")
            if not isinstance(error, ValueError) or len(text) < 15:
                problems.append(f"{name}: {text}")
        except BaseException as error:
            problems.append(f"{name}: {type(error).__name__}: {error}")
        else:
            problems.append(f"{name}: no error but {result!r}")
    check(comm.all_reduce(np.ones(3)), np.full(3, float(comm.size)), "intact")
    return problems


def test_bad_arguments() -> None:
    # A call that was not refused would wait for its peer: the timeout is short.
    for outcome in run_ranks(2, refused, launcher="threads", init_timeout=3.0):
        problems = outcome.get()
        assert not problems, f"{len(problems)} of {len(CALLS)}\n" + "\n".join(problems)


def test_nothing_is_sent_before_the_error() -> None:
    """One rank is wrong, the other is not: the right call meets the next right one."""
    for outcome in run_ranks(2, wrong_then_right, launcher="threads"):
        outcome.get()


def wrong_then_right(comm: Any) -> None:
    for _, call, _ in CALLS[:: max(1, len(CALLS) // 60)]:
        if comm.rank == 0:
            with pytest.raises(pycomm.ArgumentError):
                call(comm)
        check(comm.all_reduce(np.ones(2)), np.full(2, 2.0), "after a wrong call")
    if comm.rank == 0:
        with pytest.raises(pycomm.ArgumentError):
            comm.send(object(), 1)
        comm.send(np.arange(3), 1)
    else:
        check(comm.recv(np.zeros(3, dtype=np.int64), 0), np.arange(3), "after a wrong send")


def test_arguments_that_are_fine() -> None:
    comm: Any = pycomm.thread_world(1)[0]
    for zero in (0, np.int8(0), np.uint64(0)):
        comm.broadcast(f4(2), zero)
        comm.send(f4(2), zero, zero)
        comm.recv(f4(2), zero, zero)
    for seconds in (1, 0.5, np.float32(2), np.int64(3), 1e9, 1e18, 1e300, 1e-3, decimal.Decimal(2)):
        comm.barrier(timeout=seconds)
        comm.all_reduce(f4(1), timeout=seconds, async_op=True).wait(timeout=seconds)
    comm.reduce_scatter(f4(3, 2), counts=np.array([3]))
    comm.all_gather(f4(3), counts=(3,))
    assert comm.split(-5, 2**31 - 1).size == 1
    assert comm.empty(0).shape == (0,) and comm.empty((), "int8").shape == ()
    assert comm.empty((2, 3), "bfloat16").dtype.name == "bfloat16"
    assert comm.empty(np.int64(2), np.complex64).shape == (2,)


def test_closed_communicator() -> None:
    comms = pycomm.thread_world(2)
    for comm in comms:
        comm.close()
        comm.close()
    comm = comms[0]
    x = f4(2)
    for call in (
        lambda: comm.all_reduce(x),
        lambda: comm.reduce(x),
        lambda: comm.broadcast(x),
        lambda: comm.reduce_scatter(x),
        lambda: comm.all_gather(x),
        lambda: comm.gather(x),
        lambda: comm.scatter(x, 0),
        lambda: comm.all_to_all(x),
        lambda: comm.all_to_all(x, send_counts=[1, 1]),
        lambda: comm.barrier(),
        lambda: comm.barrier(async_op=True),
        lambda: comm.send(x, 1),
        lambda: comm.recv(x, 1),
        lambda: comm.recv(x, 1, async_op=True),
        lambda: comm.sendrecv(x, 1, x, 1),
        lambda: comm.broadcast_object(1),
        lambda: comm.all_gather_object(1),
        lambda: comm.split(0),
        lambda: comm.split(None),
        lambda: comm.empty(3),
    ):
        with pytest.raises(pycomm.ArgumentError, match="closed"):
            call()
    comm.abort()  # of no effect
    assert "closed" in repr(comm) and comm.rank == 0 and comm.size == 2
    with pytest.raises(pycomm.ArgumentError, match="closed"), comm, comm.group():
        comm.send(x, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYCOMM_TIMEOUT", "nan"),
        ("PYCOMM_TIMEOUT", "-1"),
        ("PYCOMM_TIMEOUT", "soon"),
        ("PYCOMM_TIMEOUT", ""),
        ("PYCOMM_ALGO", "ring"),
        ("PYCOMM_ALGO", "all_reduce=ring"),
        ("PYCOMM_ALGO", "all_reduce:ring,all_reduce:tree"),
        ("PYCOMM_ALGO", "broadcast:ring"),
        ("PYCOMM_ALGO", "frobnicate:ring"),
        ("PYCOMM_TRANSPORT", "carrier_pigeon"),
        ("PYCOMM_BUFFER_BYTES", "-5"),
        ("PYCOMM_BUFFER_BYTES", "many"),
        ("PYCOMM_CHECK", "maybe"),
        ("PYCOMM_LOG", "loud"),
    ],
)
def test_malformed_settings(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    if value == "":
        pycomm.thread_world(1)  # as if unset
        return
    with pytest.raises(pycomm.ArgumentError, match=name) as error:
        pycomm.thread_world(1)
    assert value in str(error.value)


def test_unknown_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOMM_SIMD", "altivec")
    with pytest.raises(pycomm.ArgumentError, match=r"PYCOMM_SIMD.*altivec"):
        pycomm.thread_world(1)
