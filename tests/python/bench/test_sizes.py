# Reading sizes, and the series of sizes.
from __future__ import annotations

from typing import Any

import pytest

from pycomm.bench.sizes import parse_size, size_series


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4", 4),
        ("1K", 1024),
        ("64M", 64 << 20),
        ("1G", 1 << 30),
        ("8g", 8 << 30),
        ("3KiB", 3072),
        ("2MB", 2 << 20),
        (" 5 ", 5),
        ("0", 0),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-4", "1.5M", "4X", "1K2", "four", "１K", "1 K"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as"):
        parse_size(text)


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ({"begin": 4, "end": 256, "factor": 4}, [4, 16, 64, 256]),
        ({"begin": 4, "end": 255, "factor": 4}, [4, 16, 64]),
        ({"begin": 8, "end": 8}, [8]),
        ({"begin": 1, "end": 8}, [1, 2, 4, 8]),
        ({"begin": 10, "end": 35, "step": 10}, [10, 20, 30]),
    ],
)
def test_series(arguments: dict[str, Any], sizes: list[int]) -> None:
    assert size_series(**arguments) == sizes


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"begin": 0, "end": 8}, "at least 1 byte, got 0"),
        ({"begin": 8, "end": 4}, r"last size \(4\) is below the first size \(8\)"),
        ({"begin": 4, "end": 8, "factor": 1}, "at least 2, got 1"),
        ({"begin": 4, "end": 8, "step": 0}, "at least 1 byte, got 0"),
        ({"begin": 4, "end": 8, "factor": 2, "step": 4}, "not both"),
    ],
)
def test_bad_series(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        size_series(**arguments)
