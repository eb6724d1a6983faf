# Arithmetic at its edges: order of a sum, rounding, wrapping, NaN, bool, determinism.
from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from core.values import (
    ALGORITHMS,
    DTYPES,
    FLOATS,
    HALVES,
    OPS,
    Array,
    check,
    combine,
    dtype_of,
    noise,
    ops_of,
    slices,
    split_rows,
    values,
)
from ranks import run_ranks

import pycomm

# (operation, algorithm) of everything that reduces.
REDUCING = [
    (operation, algorithm)
    for operation in ("all_reduce", "reduce", "reduce_scatter")
    for algorithm in ALGORITHMS[operation]
]
each_reduction = pytest.mark.parametrize(("operation", "algorithm"), REDUCING)


def on_threads(
    n: int, operation: str, algorithm: str, body: Callable[..., Any], *args: Any
) -> list[Any]:
    environment = {"PYCOMM_ALGO": f"{operation}:{algorithm}"}
    outcomes = run_ranks(n, body, operation, *args, launcher="threads", env=environment)
    return [outcome.get() for outcome in outcomes]


def reduced(comm: Any, operation: str, x: Array, op: str) -> Array:
    """The whole result on every rank, whatever the operation."""
    if operation == "all_reduce":
        return np.asarray(comm.all_reduce(x, op, np.empty_like(x)))
    if operation == "reduce":
        root = comm.size - 1
        result = comm.reduce(x, root, op, np.empty_like(x))
        return np.asarray(comm.broadcast(np.empty_like(x) if result is None else result, root))
    part = comm.reduce_scatter(x, op)
    return np.asarray(comm.all_gather(part, counts=split_rows(len(x), comm.size)))


@each_reduction
def test_order_of_a_sum(operation: str, algorithm: str) -> None:
    """((x0+x1)+(x2+x3))+x4, bit for bit; the ring adds in another order, the same on all ranks."""
    for n in (2, 3, 4, 5, 8):
        on_threads(n, operation, algorithm, sum_in_order, algorithm == "ring")


def sum_in_order(comm: Any, operation: str, ring: bool) -> None:
    for name, count, op in itertools.product(
        ("float32", "float64", "float16", "bfloat16", "complex64"), (1, 7, 10_001), ("sum", "avg")
    ):
        parts = [noise(rank, count, name) for rank in range(comm.size)]
        got = reduced(comm, operation, parts[comm.rank], op)
        expected = combine(parts, op)
        what = f"{operation} {op} {name} {count} on {comm.size}"
        if not ring:
            check(got, expected, what)
            continue
        scale = np.sum([np.abs(part.astype(np.complex128)) for part in parts], axis=0)
        wide = np.complex128
        error = np.abs(got.astype(wide) - expected.astype(wide)) / scale
        epsilon = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-14}.get(name, 1e-6)
        assert error.max() < epsilon, (what, error.max())


TREE_ORDER = ("direct", "recursive_doubling", "recursive_halving", "pairwise")


def test_the_order_written_out() -> None:
    """The documented order once more, without the reference of the other tests."""
    x = [noise(rank, 1000, "float32", salt=4) for rank in range(7)]
    four = (x[0] + x[1]) + (x[2] + x[3])
    five = four + x[4]
    seven = four + ((x[4] + x[5]) + x[6])
    # The order matters here.
    assert not np.array_equal(four, ((x[0] + x[1]) + x[2]) + x[3])
    assert not np.array_equal(seven, (five + x[5]) + x[6])
    ways = [("all_reduce", algorithm) for algorithm in TREE_ORDER]
    ways += [("reduce", algorithm) for algorithm in ("direct", "tree", "pairwise", "linear")]
    for operation, algorithm in ways:
        for n, expected in ((4, four), (5, five), (7, seven)):
            for got in on_threads(n, operation, algorithm, sum_of_given, x):
                check(got, expected, f"{operation}:{algorithm} on {n}")


def sum_of_given(comm: Any, operation: str, parts: list[Array]) -> Array:
    return reduced(comm, operation, parts[comm.rank], "sum")


def test_the_same_bits_on_any_power_of_two() -> None:
    """Eight contributions give the same bits on 1, 2, 4 and 8 ranks that add their own first."""
    parts = [noise(index, 3000, "float32", salt=8) for index in range(8)]
    expected = combine(parts, "sum")
    for n in (1, 2, 4, 8):
        for algorithm in TREE_ORDER:
            for got in on_threads(n, "all_reduce", algorithm, own_share_first, parts):
                check(got, expected, f"on {n} ranks")


def own_share_first(comm: Any, operation: str, parts: list[Array]) -> Array:
    share = len(parts) // comm.size
    own = combine(parts[comm.rank * share : (comm.rank + 1) * share], "sum")
    return reduced(comm, operation, own, "sum")


@each_reduction
def test_halves_round_once(operation: str, algorithm: str) -> None:
    on_threads(4, operation, algorithm, halves)


def halves(comm: Any, operation: str) -> None:
    for count in (1, 5, 1000):
        # bfloat16 has 8 bits: 256 + 1 alone rounds back to 256.
        for place in range(4):
            x = np.full(count, 256 if comm.rank == place else 1, dtype=dtype_of("bfloat16"))
            got = reduced(comm, operation, x, "sum").astype(np.float32)
            assert (got == 259).sum() == 0 and (got == 260).all(), (place, got)
        # The sum of four, 120000, is beyond float16.
        x = np.full(count, 30000, dtype=np.float16)
        assert (reduced(comm, operation, x, "avg") == 30000).all()
        assert np.isinf(reduced(comm, operation, x, "sum")).all()
        # 2048 + 1 is between two float16; twice it is not.
        x = np.full(count, 2048 if comm.rank == 0 else 1, dtype=np.float16)
        assert (reduced(comm, operation, x, "sum") == 2052).all()  # 2051: tie to even
        x = np.full(count, 1 + comm.rank, dtype=np.float16)
        assert (reduced(comm, operation, x, "avg") == 2.5).all()


@each_reduction
def test_integers_wrap(operation: str, algorithm: str) -> None:
    on_threads(2, operation, algorithm, wraps)


def wraps(comm: Any, operation: str) -> None:
    for count in (1, 15, 16, 17, 1000):
        x = np.full(count, 120 if comm.rank == 0 else 100, dtype=np.int8)
        assert (reduced(comm, operation, x, "sum") == -36).all()
        x = np.full(count, 2**63 - 1 if comm.rank == 0 else 1, dtype=np.int64)
        assert (reduced(comm, operation, x, "sum") == -(2**63)).all()
        x = np.full(count, 2**64 - 1 if comm.rank == 0 else 3, dtype=np.uint64)
        assert (reduced(comm, operation, x, "sum") == 2).all()
        x = np.full(count, 300 if comm.rank == 0 else 400, dtype=np.uint16)
        assert (reduced(comm, operation, x, "prod") == 300 * 400 % 65536).all()
        x = np.full(count, 2**64 - 1 if comm.rank == 0 else 2**63, dtype=np.uint64)
        assert (reduced(comm, operation, x, "max") == np.uint64(2**64 - 1)).all()
        assert (reduced(comm, operation, x, "min") == np.uint64(2**63)).all()


@each_reduction
def test_nan_on_any_rank_shows(operation: str, algorithm: str) -> None:
    for n in (2, 3, 4):
        on_threads(n, operation, algorithm, nans)


def nans(comm: Any, operation: str) -> None:
    count = 37
    for name, op in itertools.product(FLOATS, ("min", "max", "sum", "prod", "avg")):
        for bad in range(comm.size):
            x = values(comm.rank, count, name, op)
            places = np.arange(count) % comm.size == bad
            if comm.rank == bad:
                x[places] = np.nan
            got = reduced(comm, operation, x, op)
            assert np.array_equal(np.isnan(got), places), (name, op, bad, got)
    for name in FLOATS:
        signs = np.full(count, 0.0 if comm.rank else -0.0, dtype=dtype_of(name))
        assert np.signbit(reduced(comm, operation, signs, "min")).all(), name
        assert not np.signbit(reduced(comm, operation, signs, "max")).any(), name
        limits = np.full(count, np.inf if comm.rank else -np.inf, dtype=dtype_of(name))
        assert (reduced(comm, operation, limits, "max") == np.inf).all(), name
        assert (reduced(comm, operation, limits, "min") == -np.inf).all(), name
        assert np.isnan(reduced(comm, operation, limits, "sum")).all(), name


@each_reduction
def test_bool_results_are_0_or_1(operation: str, algorithm: str) -> None:
    for n in (1, 3):
        on_threads(n, operation, algorithm, bools)


def bools(comm: Any, operation: str) -> None:
    for count in (1, 33, 1000):
        # Memory that is no proper bool: any byte but 0 is true.
        raw = [
            ((np.arange(count) * 7 + rank * 5) % 4 * 85).astype(np.uint8)
            for rank in range(comm.size)
        ]
        for op in ops_of("bool"):
            x = raw[comm.rank].copy().view(np.bool_)
            got = reduced(comm, operation, x, op).view(np.uint8)
            expected = combine([part != 0 for part in raw], op).view(np.uint8)
            if comm.size > 1:
                assert np.array_equal(got, expected), (op, count)
            else:
                assert np.array_equal(got != 0, expected != 0), (op, count)


@each_reduction
def test_results_are_the_same_on_all_ranks_and_in_all_runs(operation: str, algorithm: str) -> None:
    for n in (3, 4):
        digests = set(itertools.chain(*on_threads(n, operation, algorithm, twenty_runs)))
        assert len(digests) == 1


def twenty_runs(comm: Any, operation: str) -> list[str]:
    digests = []
    for turn in range(20):
        # Sizes on both sides of any internal limit, one after the other.
        hash_ = hashlib.sha256()
        for name, count in (("float32", 5), ("float16", 1000), ("float32", 70_001)):
            x = noise(comm.rank, count, name)
            if turn % 2:
                pad = np.zeros(1, dtype=x.dtype)
                x = np.concatenate([pad, x])[1:]  # at another alignment
            hash_.update(reduced(comm, operation, x, "sum").tobytes())
        digests.append(hash_.hexdigest())
    return digests


def test_ops_that_a_dtype_does_not_have() -> None:
    comm = pycomm.thread_world(1)[0]
    for name, op in itertools.product(DTYPES, OPS):
        x = values(0, 3, name)
        if op in ops_of(name):
            comm.all_reduce(x.copy(), op)
            continue
        calls: list[Callable[[], Any]] = [
            lambda x=x, op=op: comm.all_reduce(x, op),  # type: ignore[misc]
            lambda x=x, op=op: comm.reduce(x, 0, op),  # type: ignore[misc]
            lambda x=x, op=op: comm.reduce_scatter(x, op),  # type: ignore[misc]
            lambda x=x, op=op: comm.all_reduce(x, op, async_op=True),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(pycomm.ArgumentError, match=f"{op}.*{name}"):
                call()
    comm.barrier()  # intact


def test_avg_divides_by_ranks() -> None:
    for outcome in run_ranks(3, averages, launcher="threads"):
        outcome.get()


def averages(comm: Any) -> None:
    for name in (*FLOATS, "complex64", "complex128"):
        for count in (1, 2, 3, 100):
            parts = [values(rank, count, name) for rank in range(comm.size)]
            expected = combine(parts, "avg")
            got = comm.all_reduce(parts[comm.rank].copy(), "avg")
            check(got, expected, name)
            mine = slices(split_rows(count, comm.size))[comm.rank]
            check(comm.reduce_scatter(parts[comm.rank], "avg"), expected[mine], name)
            if name not in HALVES:
                wide = np.mean([part.astype(np.complex128) for part in parts], axis=0)
                assert np.allclose(got, wide)
