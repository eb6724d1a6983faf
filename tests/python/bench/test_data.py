# The test data: different per rank and element, exact in every type and order, checked by bits.
from __future__ import annotations

import itertools
from functools import reduce
from typing import Any

import numpy as np
import pytest

from pycomm.bench.data import (
    DTYPES,
    PERIOD,
    REDUCE_OPS,
    Pattern,
    fill_sentinel,
    why_not,
)

POSSIBLE = [
    (name, op)
    for name, op in itertools.product(DTYPES, REDUCE_OPS)
    if not why_not(DTYPES[name], op)
]
FUNCTIONS = {
    "sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize(("name", "op"), POSSIBLE)
@pytest.mark.parametrize("ranks", [2, 3, 13])
def test_reduction_is_exact_in_any_order(name: str, op: str, ranks: int) -> None:
    pattern = Pattern(DTYPES[name], op, ranks)
    rows = [pattern.row(rank)[:500] for rank in range(ranks)]
    expected = pattern.reduced()[:500]
    assert expected.dtype == DTYPES[name]
    orders = [rows, rows[::-1], rows[ranks // 2 :] + rows[: ranks // 2]]
    for order in orders:
        # Rounded to the type after each step, which the communicator itself need not do.
        total: Any = reduce(FUNCTIONS[op], order)
        if op == "avg":
            parts = total.view(total.real.dtype) if total.dtype.kind == "c" else total
            total = (parts / ranks).astype(parts.dtype).view(total.dtype)
        assert total.dtype == DTYPES[name]
        assert np.array_equal(total, expected)
    assert len(np.unique(expected.astype(complex))) > 1  # a constant would hide errors


@pytest.mark.parametrize(("name", "op"), [*((name, None) for name in DTYPES), *POSSIBLE])
def test_ranks_and_elements_differ(name: str, op: str | None) -> None:
    pattern = Pattern(DTYPES[name], op, 4)
    rows = [pattern.row(rank) for rank in range(4)]
    for one, other in itertools.combinations(rows, 2):
        assert np.count_nonzero(one != other) > PERIOD // 10
    for row in rows:
        for shift in (1, 2, 16, 64, 1024, 4096):
            assert np.count_nonzero(row != np.roll(row, shift)) > PERIOD // 10


@pytest.mark.parametrize("name", DTYPES)
def test_fill_and_count(name: str) -> None:
    pattern = Pattern(DTYPES[name], None, 4)
    length = 2 * PERIOD + 1000
    array: Any = np.empty(length, DTYPES[name])
    fill_sentinel(array)
    assert pattern.count_wrong(array, 2, 0) > length // 3
    pattern.fill(array, 2)
    assert pattern.count_wrong(array, 2, 0) == 0
    assert pattern.count_wrong(array[777:], 2, 777) == 0
    assert pattern.count_wrong(array[777:], 2, 776) > 0
    assert pattern.count_wrong(array, 1, 0) > length // 10
    for index in (0, PERIOD, length - 1):
        array[index : index + 1].view(np.uint8)[0] ^= 1
    assert pattern.count_wrong(array, 2, 0) == 3


def test_a_missing_result_shows_in_bool_too() -> None:
    pattern = Pattern(DTYPES["bool"], None, 2)
    array: Any = np.empty(100, np.bool_)
    fill_sentinel(array)
    assert pattern.count_wrong(array, 1, 0) == 100


def test_nan_is_wrong() -> None:
    pattern = Pattern(DTYPES["complex64"], "sum", 2)
    array = pattern.reduced()[:10].copy()
    assert pattern.count_wrong(array, None, 0) == 0
    array[3] = np.nan
    assert pattern.count_wrong(array, None, 0) == 1


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("int32", "avg"),
        ("bool", "avg"),
        ("complex64", "min"),
        ("float32", "band"),
        ("bfloat16", "bor"),
    ],
)
def test_reductions_that_do_not_exist(name: str, op: str) -> None:
    assert op in str(why_not(DTYPES[name], op)) and name in str(why_not(DTYPES[name], op))
