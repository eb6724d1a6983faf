"""Splits a row of layers into stages: contiguous, in order, none empty, balanced."""

from __future__ import annotations

from collections.abc import Sequence

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

    Dynamic programming over (parts, layers), the linear partition problem: the best split of the
    first j layers into p parts ends with a last part i..j, whose cost is compared with the best
    split of the first i layers into p - 1 parts. O(parts * layers^2). Among equal splits the one
    whose last parts are shortest is taken.

    Args:
        costs: One number >= 0 per layer, such as its parameters or its time.
        parts: Number of ranges.

    Raises:
        ArgumentError: there are fewer layers than parts, or a cost is negative or not a number.
    """
    count = len(costs)
    _check(count, parts)
    if not all(cost >= 0 for cost in costs):
        raise ArgumentError(f"costs must be numbers >= 0, not {list(costs)}")
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best = [0.0 if j == 0 else float("inf") for j in range(count + 1)]
    starts: list[list[int]] = []
    for part in range(1, parts + 1):
        row, start = [float("inf")] * (count + 1), [0] * (count + 1)
        for j in range(part, count + 1):
            for i in range(part - 1, j):
                dearest = max(best[i], sums[j] - sums[i])
                if dearest <= row[j]:
                    row[j], start[j] = dearest, i
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
