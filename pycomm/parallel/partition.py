"""Splits a row of layers into stages: contiguous, in order, none empty, balanced."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pycomm.errors import ArgumentError


def split_evenly(count: int, parts: int) -> list[range]:
    """Split `count` layers into `parts` ranges whose sizes differ by at most one, larger ones
    first.

    Raises:
        ArgumentError: there are fewer layers than parts, or no part at all.
    """
    _check(count, parts)
    small, larger = divmod(count, parts)
    starts = [part * small + min(part, larger) for part in range(parts + 1)]
    return [range(a, b) for a, b in zip(starts, starts[1:], strict=False)]


def split_by_cost(costs: Sequence[float], parts: int) -> list[range]:
    """Split layers into `parts` ranges so that the dearest range is as cheap as it can be.

    Among such splits the one with the least sum of squared costs is taken, which evens out the
    ranges beside the dearest. O(parts * layers^2).

    Args:
        costs: One number >= 0 per layer, such as its parameters or its time.
        parts: Number of ranges.

    Raises:
        ArgumentError: there are fewer layers than parts, or a cost is negative or not a number.
    """
    _check(len(costs), parts)
    if not all(0 <= cost < float("inf") for cost in costs):
        raise ArgumentError(f"costs must be numbers >= 0, not {list(costs)}")
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)

    def cost_of(part: range) -> float:
        return sums[part.stop] - sums[part.start]

    dearest = _best_split(len(costs), parts, cost_of, max)
    limit = max(cost_of(part) for part in dearest)
    return _best_split(
        len(costs),
        parts,
        lambda part: cost_of(part) ** 2 if cost_of(part) <= limit else float("inf"),
        lambda before, cost: before + cost,
    )


def _best_split(
    count: int,
    parts: int,
    cost_of: Callable[[range], float],
    total: Callable[[float, float], float],
) -> list[range]:
    """Return the split whose parts' costs, joined by `total`, are least: dynamic programming.

    The best split of the first j layers into p parts ends with some part i..j, whose cost is
    joined with that of the best split of the first i layers into p - 1 parts.
    """
    best = [0.0] + [float("inf")] * count
    starts: list[list[int]] = []
    for part in range(1, parts + 1):
        row, start = [float("inf")] * (count + 1), [part - 1] * (count + 1)
        for j in range(part, count + 1):
            for i in range(part - 1, j):
                joined = total(best[i], cost_of(range(i, j)))
                if joined < row[j]:
                    row[j], start[j] = joined, i
        best = row
        starts.append(start)
    ranges, end = [], count
    for start in reversed(starts):
        ranges.append(range(start[end], end))
        end = start[end]
    return ranges[::-1]


def split_by_sizes(count: int, sizes: Sequence[int], parts: int) -> list[range]:
    """Split `count` layers into ranges of the given sizes.

    Raises:
        ArgumentError: the sizes are not `parts` positive numbers that add up to `count`.
    """
    if len(sizes) != parts or sum(sizes) != count or min(sizes, default=0) < 1:
        raise ArgumentError(
            f"the sizes of {parts} stages must be {parts} numbers >= 1 that add up to {count} "
            f"layers, not {list(sizes)}"
        )
    ends = [sum(sizes[: part + 1]) for part in range(parts)]
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _check(count: int, parts: int) -> None:
    if parts < 1:
        raise ArgumentError(f"the number of stages must be at least 1, not {parts}")
    if count < parts:
        raise ArgumentError(
            f"{count} layers cannot be split into {parts} stages: every stage needs at least "
            "one layer"
        )
