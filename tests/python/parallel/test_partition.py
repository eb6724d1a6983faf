"""Splitting layers into stages."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from pycomm.errors import ArgumentError
from pycomm.parallel import split_by_cost, split_by_sizes, split_evenly


def assert_covers(parts: list[range], count: int) -> None:
    assert [layer for part in parts for layer in part] == list(range(count))
    assert all(len(part) > 0 for part in parts)


@pytest.mark.parametrize("stages", range(1, 9))
def test_even_parts_are_disjoint_in_order_and_differ_by_one(stages: int) -> None:
    for count in range(stages, 41):
        parts = split_evenly(count, stages)
        assert len(parts) == stages
        assert_covers(parts, count)
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("stages", range(2, 9))
def test_fewer_layers_than_stages_is_an_error(stages: int) -> None:
    for count in range(stages):
        with pytest.raises(ArgumentError, match=f"{count} layers cannot .* {stages} stages"):
            split_evenly(count, stages)
        with pytest.raises(ArgumentError, match=f"{count} layers cannot .* {stages} stages"):
            split_by_cost([1.0] * count, stages)
    with pytest.raises(ArgumentError, match="at least 1, not 0"):
        split_evenly(3, 0)


def test_cost_split_is_the_best_of_all() -> None:
    rng = np.random.default_rng(5)
    for count in range(1, 9):
        for stages in range(1, count + 1):
            costs = rng.integers(0, 20, count).tolist()
            parts = split_by_cost(costs, stages)
            assert len(parts) == stages
            assert_covers(parts, count)
            of_splits = [
                [sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, count), strict=True)]
                for cuts in combinations(range(1, count), stages - 1)
            ]
            best = min((max(split), sum(cost**2 for cost in split)) for split in of_splits)
            mine = [sum(costs[i] for i in part) for part in parts]
            assert (max(mine), sum(cost**2 for cost in mine)) == best, (costs, stages)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_costs_must_be_numbers(bad: float) -> None:
    with pytest.raises(ArgumentError, match="costs must be numbers >= 0"):
        split_by_cost([1.0, bad, 2.0], 2)


def test_sizes_given() -> None:
    assert split_by_sizes(6, [3, 1, 2], 3) == [range(3), range(3, 4), range(4, 6)]
    for sizes in ([3, 3], [3, 2, 2], [6, 0, 0], [7, -2, 1]):
        with pytest.raises(ArgumentError, match="3 numbers >= 1 that add up to 6 layers"):
            split_by_sizes(6, sizes, 3)
