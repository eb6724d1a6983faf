# Sizes in bytes as people write them, and the series of sizes that a benchmark goes through.
"""Sizes: ``4``, ``1K``, ``64M``, ``1G`` (powers of 1024), and series of them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Reads a number of bytes: digits and perhaps a K, M, G or T in either case.

    Raises:
        ValueError: `text` is nothing of that kind.
    """
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise ValueError(f"expected a size such as 4, 1K, 64M or 1G, got {text!r}")
    return int(match[1]) * _UNITS[match[2].upper()]


def size_series(
    begin: int, end: int, factor: int | None = None, step: int | None = None
) -> list[int]:
    """Lists the sizes from `begin` to at most `end`.

    Args:
        begin: First size in bytes.
        end: Largest size in bytes, at least `begin`.
        factor: Multiply by this from one to the next; at least 2.
        step: Or add this many bytes; at least 1. With neither, the factor is 2.

    Raises:
        ValueError: A value is out of its range, or both `factor` and `step` are given.
    """
    if begin < 1:
        raise ValueError(f"the first size must be at least 1 byte, got {begin}")
    if end < begin:
        raise ValueError(f"the last size ({end}) is below the first size ({begin})")
    if factor is not None and step is not None:
        raise ValueError("give a factor or a step, not both")
    if factor is not None and factor < 2:
        raise ValueError(f"the factor must be at least 2, got {factor}")
    if step is not None:
        if step < 1:
            raise ValueError(f"the step must be at least 1 byte, got {step}")
        return list(range(begin, end + 1, step))
    sizes = [begin]
    while sizes[-1] * (factor or 2) <= end:
        sizes.append(sizes[-1] * (factor or 2))
    return sizes
