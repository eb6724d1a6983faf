# Calls that differ between ranks: an error on every rank that shows both sides, at once.
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from core.values import check
from ranks import run_ranks

import pycomm

# Well inside the 5 s that are allowed, and far from the timeout of 30 s.
AT_ONCE = 2.0


def zeros(count: int | tuple[int, ...], dtype: str = "float32") -> Any:
    return np.zeros(count, dtype=dtype)


@dataclass
class Case:
    """A wrong call: what each rank does, and words that every rank's error contains."""

    name: str
    # Rank r calls calls[r], the ranks beyond the last one calls[0].
    calls: Sequence[Callable[[Any], Any]]
    words: Sequence[str]


def two(name: str, a: Callable[[Any], Any], b: Callable[[Any], Any], *words: str) -> Case:
    return Case(name, (a, b), words)


CASES = [
    *(
        two(
            f"all_reduce of {a} and {b}",
            lambda comm, n=a: comm.all_reduce(zeros(n)),  # type: ignore[misc]
            lambda comm, n=b: comm.all_reduce(zeros(n)),  # type: ignore[misc]
            "all_reduce",
            f"{a} element",
            f"{b} element",
        )
        for a, b in ((1, 2), (100, 200), (4096, 4097), (0, 1), (1 << 20, 1 << 10))
    ),
    two(
        "float32 and float64",
        lambda comm: comm.all_reduce(zeros(4, "float32")),
        lambda comm: comm.all_reduce(zeros(4, "float64")),
        "float32",
        "float64",
    ),
    two(
        "float32 and int32 of the same bytes",
        lambda comm: comm.all_reduce(zeros(4, "float32")),
        lambda comm: comm.all_reduce(zeros(4, "int32")),
        "float32",
        "int32",
    ),
    two(
        "dtypes in a broadcast",
        lambda comm: comm.broadcast(zeros(4, "float32")),
        lambda comm: comm.broadcast(zeros(4, "int32")),
        "broadcast",
        "float32",
        "int32",
    ),
    two(
        "counts in a broadcast",
        lambda comm: comm.broadcast(zeros(4)),
        lambda comm: comm.broadcast(zeros(5)),
        "4 elements",
        "5 elements",
    ),
    two(
        "sum and max",
        lambda comm: comm.all_reduce(zeros(4), "sum"),
        lambda comm: comm.all_reduce(zeros(4), "max"),
        "sum",
        "max",
    ),
    two(
        "sum and avg in a reduce",
        lambda comm: comm.reduce(zeros(4), 0, "sum"),
        lambda comm: comm.reduce(zeros(4), 0, "avg"),
        "sum",
        "avg",
    ),
    two(
        "all_reduce and broadcast",
        lambda comm: comm.all_reduce(zeros(4)),
        lambda comm: comm.broadcast(zeros(4)),
        "all_reduce #1",
        "broadcast #1",
    ),
    two(
        "barrier and all_gather",
        lambda comm: comm.barrier(),
        lambda comm: comm.all_gather(zeros(4)),
        "barrier #1",
        "all_gather #1",
    ),
    two(
        "order of two operations",
        lambda comm: (comm.all_reduce(zeros(4)), comm.barrier()),
        lambda comm: (comm.barrier(), comm.all_reduce(zeros(4))),
        "all_reduce #1",
        "barrier #1",
    ),
    two(
        "one operation more",
        lambda comm: (comm.barrier(), comm.barrier(), comm.all_reduce(zeros(1))),
        lambda comm: (comm.barrier(), comm.all_reduce(zeros(1))),
        "barrier #2",
        "all_reduce #2",
    ),
    *(
        two(
            f"roots of {name}",
            lambda comm, name=name: getattr(comm, name)(zeros(4), root=0),  # type: ignore[misc]
            lambda comm, name=name: getattr(comm, name)(zeros(4), root=1),  # type: ignore[misc]
            name,
            "root 0",
            "root 1",
        )
        for name in ("broadcast", "reduce", "gather")
    ),
    two(
        "roots of scatter",
        lambda comm: comm.scatter(zeros(2 * comm.size), 0, zeros(2)),
        lambda comm: comm.scatter(zeros(2 * comm.size), 1, zeros(2)),
        "scatter",
        "root 0",
        "root 1",
    ),
    two(
        "rows of an all_gather without counts",
        lambda comm: comm.all_gather(zeros(4)),
        lambda comm: comm.all_gather(zeros(5)),
        "all_gather",
        "4 elements",
        "5 elements",
    ),
    two(
        "rows of a gather without counts",
        lambda comm: comm.gather(zeros((4, 2))),
        lambda comm: comm.gather(zeros((5, 2))),
        "gather",
        "8 elements",
        "10 elements",
    ),
    two(
        "counts of an all_gather",
        lambda comm: comm.all_gather(zeros(2), counts=[2, 3] + [2] * (comm.size - 2)),
        lambda comm: comm.all_gather(zeros(4), counts=[1, 4] + [2] * (comm.size - 2)),
        "all_gather",
        "counts",
    ),
    two(
        "counts on one rank only",
        lambda comm: comm.all_gather(zeros(2), counts=[2] * comm.size),
        lambda comm: comm.all_gather(zeros(2)),
        "all_gather",
        "counts",
    ),
    two(
        "counts of a reduce_scatter",
        lambda comm: comm.reduce_scatter(zeros(6), counts=[4, 2] + [0] * (comm.size - 2)),
        lambda comm: comm.reduce_scatter(zeros(6), counts=[3, 3] + [0] * (comm.size - 2)),
        "reduce_scatter",
        "counts",
    ),
    two(
        "row width of a reduce_scatter",
        lambda comm: comm.reduce_scatter(zeros((3, 2))),
        lambda comm: comm.reduce_scatter(zeros((2, 3))),
        "reduce_scatter",
        "rows of 2",
        "rows of 3",
    ),
    two(
        "row width of an all_to_all",
        lambda comm: comm.all_to_all(zeros((3, 2))),
        lambda comm: comm.all_to_all(zeros((2, 3))),
        "all_to_all",
        "rows of 2",
        "rows of 3",
    ),
    two(
        "counts of an all_to_all",
        lambda comm: comm.all_to_all(
            zeros(comm.size), send_counts=[1] * comm.size, recv_counts=[1] * comm.size
        ),
        lambda comm: comm.all_to_all(
            zeros(comm.size + 1),
            send_counts=[2] + [1] * (comm.size - 1),
            recv_counts=[1] * comm.size,
        ),
        "all_to_all",
        "rank 1 sends 2 elements to rank 0, which expects 1",
    ),
    two(
        "part of a scatter too short",
        lambda comm: comm.scatter(zeros(4 * comm.size), 0, zeros(4)),
        lambda comm: comm.scatter(None, 0, zeros(3)),
        "scatter",
        "rank 1",
        "4 rows",
    ),
    two(
        "row width of a scatter",
        lambda comm: comm.scatter(zeros((2 * comm.size, 3)), 0, zeros((2, 3))),
        lambda comm: comm.scatter(None, 0, zeros((3, 2))),
        "scatter",
    ),
    two(
        "dtype of a scatter",
        lambda comm: comm.scatter(zeros(2 * comm.size), 0, zeros(2)),
        lambda comm: comm.scatter(None, 0, zeros(2, "int32")),
        "scatter",
        "float32",
        "int32",
    ),
    two(
        "asynchronous call",
        lambda comm: comm.all_reduce(zeros(4), async_op=True).wait(),
        lambda comm: comm.all_reduce(zeros(5)),
        "4 elements",
        "5 elements",
    ),
    two(
        "the operation behind others in flight",
        lambda comm: [
            w.wait() for w in [comm.all_reduce(zeros(n), async_op=True) for n in (1, 2, 3)]
        ],
        lambda comm: [
            w.wait() for w in [comm.all_reduce(zeros(n), async_op=True) for n in (1, 2, 4)]
        ],
        "all_reduce #3",
        "3 elements",
        "4 elements",
    ),
    two(
        "roots of broadcast_object",
        lambda comm: comm.broadcast_object("x", root=0),
        lambda comm: comm.broadcast_object("y", root=1),
        "root 0",
        "root 1",
    ),
    two(
        "split and barrier",
        lambda comm: comm.split(0),
        lambda comm: comm.barrier(),
        "split #1",
        "barrier #1",
    ),
    two(
        "split and all_gather",
        lambda comm: comm.split(0),
        lambda comm: comm.all_gather(zeros(3, "int64")),
        "split #1",
        "all_gather #1",
    ),
    two(
        "sizes of symmetric memory",
        lambda comm: comm.empty(4),
        lambda comm: comm.empty(8),
        "empty #1",
        "16 bytes",
        "32 bytes",
    ),
    two(
        "symmetric memory and all_gather",
        lambda comm: comm.empty(4),
        lambda comm: comm.all_gather(zeros(4)),
        "empty #1",
        "all_gather #1",
    ),
]


def run_cases(comm: Any, names: Sequence[str]) -> list[str]:
    """Every case on a communicator of its own; returns what is wrong."""
    problems = []
    for case in CASES:
        if names and case.name not in names:
            continue
        sub = comm.split(0)
        comm.barrier()
        problem = run_case(sub, case)
        if problem:
            problems.append(f"{case.name}, rank {comm.rank} of {comm.size}: {problem}")
        sub.close()
        # The process lives on, and so does its other communicator.
        check(comm.all_reduce(np.ones(3)), np.full(3, float(comm.size)), case.name)
    return problems


def run_case(comm: Any, case: Case) -> str:
    call = case.calls[comm.rank] if comm.rank < len(case.calls) else case.calls[0]
    start = time.monotonic()
    try:
        value = call(comm)
    except pycomm.MismatchError as error:
        seconds = time.monotonic() - start
        text = str(error)
        missing = [word for word in case.words if word not in text]
        if missing:
            return f"{missing} not in: {text}"
        if "rank 1" not in text or (comm.size == 2 and "rank 0" not in text):
            return f"does not name the ranks: {text}"
        if not set(error.ranks) <= set(range(comm.size)) or not error.ranks:
            return f"ranks is {error.ranks}: {text}"
        if seconds > AT_ONCE:
            return f"took {seconds:.1f} s: {text}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    else:
        return f"no error, but {value!r}"
    return still_broken(comm, text)


def still_broken(comm: Any, text: str) -> str:
    """A broken communicator says so, and why, without waiting."""
    for call in (comm.barrier, lambda: comm.send(zeros(1), 0), lambda: comm.split(0)):
        try:
            call()
        except pycomm.MismatchError as error:
            # Which two ranks the first report was about may differ.
            if "broken by an earlier error" not in str(error) or "rank 1" not in str(error):
                return f"used again: {error}, earlier: {text}"
        except Exception as error:
            return f"used again: {type(error).__name__}: {error}"
        else:
            return "could be used again"
    return ""


def no_problems(outcomes: list[Any]) -> None:
    problems = [problem for outcome in outcomes for problem in outcome.get()]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("transport", ["auto", "shm", "tcp"])
@pytest.mark.parametrize("n", [2, 3])
def test_wrong_calls(n: int, transport: str) -> None:
    environment = {"PYCOMM_TRANSPORT": transport}
    no_problems(run_ranks(n, run_cases, (), launcher="threads", env=environment))


def test_wrong_calls_in_processes(launcher: str) -> None:
    no_problems(run_ranks(2, run_cases, (), launcher=launcher))


def test_wrong_calls_over_tcp(launcher: str) -> None:
    environment = {"PYCOMM_TRANSPORT": "tcp"}
    no_problems(run_ranks(2, run_cases, (), launcher=launcher, env=environment))


@pytest.mark.parametrize("operation", ["all_reduce", "reduce", "reduce_scatter", "all_gather"])
def test_wrong_calls_with_any_algorithm(operation: str) -> None:
    from core.values import ALGORITHMS

    for algorithm in ALGORITHMS[operation]:
        environment = {"PYCOMM_ALGO": f"{operation}:{algorithm}"}
        no_problems(run_ranks(2, run_cases, (), launcher="threads", env=environment))


def test_four_ranks_of_which_one_is_wrong(launcher: str) -> None:
    for outcome in run_ranks(4, one_of_four, launcher=launcher):
        text, ranks, seconds = outcome.get()
        assert "rank 2" in text and "7 elements" in text and "8 elements" in text
        assert seconds < AT_ONCE and set(ranks) <= {0, 1, 2, 3}


def one_of_four(comm: Any) -> tuple[str, tuple[int, ...], float]:
    start = time.monotonic()
    with pytest.raises(pycomm.MismatchError) as error:
        comm.all_reduce(zeros(7 if comm.rank == 2 else 8))
    return str(error.value), error.value.ranks, time.monotonic() - start


def test_works_that_wait_behind_a_wrong_call_fail_too() -> None:
    for outcome in run_ranks(2, queue_behind, launcher="threads"):
        outcome.get()


def queue_behind(comm: Any) -> None:
    x = [zeros(4 + (index == 1) * comm.rank) for index in range(4)]
    works = [comm.all_reduce(array, async_op=True) for array in x]
    receive = comm.recv(zeros(2), 1 - comm.rank, async_op=True)
    assert works[0].wait() is x[0]
    for work in (*works[1:], receive):
        for _ in range(2):
            with pytest.raises(pycomm.MismatchError, match="4 elements.*5 elements|5.*4"):
                work.wait()
        assert isinstance(work.exception(), pycomm.MismatchError)
        assert work.done()


def test_output_one_element_short() -> None:
    """An error before any traffic, on the rank that is wrong; the others are late, not wrong."""
    for outcome in run_ranks(2, short_outputs, launcher="threads"):
        outcome.get()


def short_outputs(comm: Any) -> None:
    n, size = 8, comm.size
    x = zeros(n)
    calls: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(x, out=zeros(n - 1)),
        lambda: comm.all_reduce(x, out=zeros(n + 1)),
        lambda: comm.reduce(x, comm.rank, out=zeros(n - 1)),
        lambda: comm.all_gather(x, zeros(n * size - 1)),
        lambda: comm.gather(x, comm.rank, zeros(n * size - 1)),
        lambda: comm.reduce_scatter(x, out=zeros(n // size - 1)),
        lambda: comm.scatter(x, comm.rank, zeros(n // size - 1)),
        lambda: comm.all_to_all(x, zeros(n - 1)),
        lambda: comm.all_reduce(x, out=zeros((2, 4))),
    ]
    for call in calls:
        with pytest.raises(pycomm.ArgumentError, match=r"shape.*expected"):
            call()
    assert not x.any()
    check(comm.all_reduce(np.ones(2)), np.full(2, float(size)), "intact")


def test_checks_can_be_left_out() -> None:
    """PYCOMM_CHECK=0 works for right calls; that is all it promises."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYCOMM_CHECK", "0")
        comm = pycomm.thread_world(1)[0]
    check(comm.all_reduce(np.ones(2)), np.ones(2), "alone")
