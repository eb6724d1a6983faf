"""Calls of every operation in every form, checked against NumPy; run on each rank by the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from core.values import (
    DTYPES,
    Array,
    check,
    constant,
    constants,
    ops_of,
    sentinel,
    slices,
    split_rows,
)

# One element of each kind of size: none, fewer than ranks, odd, a vector register and its
# neighbours, more than a cache line.
COUNTS = (0, 1, 3, 16, 17, 1000)


def reductions(comm: Any, dtypes: Sequence[str] = DTYPES, counts: Sequence[int] = COUNTS) -> int:
    """all_reduce, reduce and reduce_scatter of every op; returns the number of checks."""
    done = 0
    for name in dtypes:
        for op in ops_of(name):
            for count in counts:
                parts, expected = constants(comm.size, count, name, op, done)
                root = done % comm.size
                what = f"{name} {op} {count} on rank {comm.rank} of {comm.size}"
                _all_reduce(comm, parts, expected, op, what)
                _reduce(comm, parts, expected, op, root, what)
                _reduce_scatter(comm, parts, expected, op, done, what)
                done += 1
    return done


def _all_reduce(comm: Any, parts: list[Array], expected: Array, op: str, what: str) -> None:
    own = parts[comm.rank].copy()
    out = sentinel(own.shape, own.dtype.name)
    result = comm.all_reduce(own, op=op, out=out)
    assert result is out, what
    check(out, expected, f"all_reduce {what}")
    check(own, parts[comm.rank], f"input of all_reduce {what}")
    # Some ranks in place, others not.
    if comm.rank % 2:
        check(comm.all_reduce(own, op), expected, f"all_reduce in place {what}")
        check(own, expected, f"all_reduce in place {what}")
    else:
        out = sentinel(own.shape, own.dtype.name)
        check(comm.all_reduce(own, op, out), expected, f"all_reduce beside in place {what}")
        check(own, parts[comm.rank], f"input of all_reduce beside in place {what}")


def _reduce(comm: Any, parts: list[Array], expected: Array, op: str, root: int, what: str) -> None:
    own = parts[comm.rank].copy()
    out = sentinel(own.shape, own.dtype.name)
    before = out.copy()
    result = comm.reduce(own, root=root, op=op, out=out)
    check(own, parts[comm.rank], f"input of reduce {what}")
    if comm.rank == root:
        assert result is out, what
        check(out, expected, f"reduce {what}")
    else:
        assert result is None, what
        check(out, before, f"out of reduce away from root {what}")
    result = comm.reduce(own, root=root, op=op)
    if comm.rank == root:
        assert result is own, what
        check(own, expected, f"reduce in place {what}")
    else:
        check(own, parts[comm.rank], f"input of reduce in place {what}")


def _reduce_scatter(
    comm: Any, parts: list[Array], expected: Array, op: str, salt: int, what: str
) -> None:
    own = parts[comm.rank].copy()
    rows = len(own)
    counts = uneven(rows, comm.size, salt)
    for explicit in (None, counts):
        sizes = split_rows(rows, comm.size) if explicit is None else counts
        mine = slices(sizes)[comm.rank]
        text = f"reduce_scatter counts={explicit} {what}"
        check(comm.reduce_scatter(own, op=op, counts=explicit), expected[mine], text)
        check(own, parts[comm.rank], f"input of {text}")
        out = sentinel(sizes[comm.rank], own.dtype.name)
        assert comm.reduce_scatter(own, op, out, explicit) is out, text
        check(out, expected[mine], text)
    # In place: the output is the own slice of the input. On odd ranks only.
    mine = slices(counts)[comm.rank]
    target = own[mine] if comm.rank % 2 else None
    result = comm.reduce_scatter(own, op=op, out=target, counts=counts)
    check(result, expected[mine], f"reduce_scatter in place {what}")


def uneven(rows: int, parts: int, salt: int) -> list[int]:
    """Row counts that add up to `rows`, with zeros and one large part among them."""
    counts = [(salt + 3 * part) % 4 * (rows // (4 * parts)) for part in range(parts)]
    counts[salt % parts] += rows - sum(counts)
    return counts


def movements(comm: Any, dtypes: Sequence[str] = DTYPES, widths: Sequence[int] = (1, 3)) -> int:
    """broadcast, all_gather, gather, scatter and all_to_all; returns the number of checks."""
    done = 0
    for name in dtypes:
        for width in widths:
            for rows in (0, 1, 2, 5, 64, 1500):
                root = done % comm.size
                what = f"{name} ({rows}, {width}) on rank {comm.rank} of {comm.size}"
                broadcast(comm, rows, width, name, root, what)
                joins(comm, rows, width, name, root, done, what)
                scatters(comm, rows, width, name, root, done, what)
                all_to_alls(comm, rows, width, name, done, what)
                done += 1
    return done


def broadcast(comm: Any, rows: int, width: int, name: str, root: int, what: str) -> None:
    expected = constant(root, (rows, width), name, salt=3)
    own = expected.copy() if comm.rank == root else sentinel((rows, width), name)
    if comm.rank == root:
        own.flags.writeable = False  # only read
    assert comm.broadcast(own, root=root) is own, what
    check(own, expected, f"broadcast from {root} {what}")


def joins(comm: Any, rows: int, width: int, name: str, root: int, salt: int, what: str) -> None:
    equal = [rows] * comm.size
    unequal = [(rows * (salt + 2 * rank)) % (rows + 2) for rank in range(comm.size)]
    for sizes, counts in ((equal, None), (equal, equal), (unequal, unequal)):
        parts = [constant(rank, (n, width), name, salt=5) for rank, n in enumerate(sizes)]
        expected = np.concatenate(parts)
        own = parts[comm.rank].copy()
        text = f"counts={counts} {what}"
        check(comm.all_gather(own, counts=counts), expected, f"all_gather {text}")
        out = sentinel(expected.shape, name)
        assert comm.all_gather(own, out, counts) is out, text
        check(out, expected, f"all_gather {text}")
        check(own, parts[comm.rank], f"input of all_gather {text}")

        out = sentinel(expected.shape, name)
        before = out.copy()
        result = comm.gather(own, root, out, counts)
        if comm.rank == root:
            assert result is out, text
            check(out, expected, f"gather at {root} {text}")
            check(comm.gather(own, root=root, counts=counts), expected, f"gather {text}")
        else:
            assert result is None, text
            check(out, before, f"out of gather away from root {text}")
            assert comm.gather(own, root=root, counts=counts) is None, text

        # In place: the input is the own slice of the output. On even ranks, and at the root.
        whole = sentinel(expected.shape, name)
        whole[slices(sizes)[comm.rank]] = own
        mine = whole[slices(sizes)[comm.rank]] if comm.rank % 2 == 0 else own
        check(comm.all_gather(mine, whole, counts), expected, f"all_gather in place {text}")
        whole = sentinel(expected.shape, name)
        whole[slices(sizes)[comm.rank]] = own
        if comm.rank == root:
            mine = whole[slices(sizes)[comm.rank]]
            check(comm.gather(mine, root, whole, counts), expected, f"gather in place {text}")
        else:
            comm.gather(own, root, None, counts)


def scatters(comm: Any, rows: int, width: int, name: str, root: int, salt: int, what: str) -> None:
    whole = constant(root, (rows, width), name, salt=7)
    for counts in (None, uneven(rows, comm.size, salt)):
        sizes = split_rows(rows, comm.size) if counts is None else counts
        mine = slices(sizes)[comm.rank]
        text = f"scatter from {root} counts={counts} {what}"
        out = sentinel((sizes[comm.rank], width), name)
        source = whole.copy() if comm.rank == root else None
        assert comm.scatter(source, root, out, counts) is out, text
        check(out, whole[mine], text)
        if comm.rank == root:
            assert source is not None
            check(source, whole, f"input of {text}")
            check(comm.scatter(source, root=root, counts=counts), whole[mine], text)
            # In place: the output is the own slice of the input.
            check(comm.scatter(source, root, source[mine], counts), whole[mine], text)
            check(source, whole, f"input of {text} in place")
        else:
            for _ in range(2):
                out = sentinel((sizes[comm.rank], width), name)
                check(comm.scatter(None, root, out, counts), whole[mine], text)


def all_to_alls(comm: Any, rows: int, width: int, name: str, salt: int, what: str) -> None:
    size, rank = comm.size, comm.rank
    equal = [split_rows(rows, size)] * size
    unequal = [
        [(salt + 2 * src + 5 * dst + src * dst) % 4 * (rows // 4) for dst in range(size)]
        for src in range(size)
    ]
    forms: list[tuple[list[list[int]], bool, bool]] = [
        (equal, False, False),
        (equal, True, True),
        (unequal, True, True),
    ]
    if rows <= 5:
        forms.append((unequal, True, False))
    for table, send, recv in forms:
        inputs = [constant(src, (sum(table[src]), width), name, salt=9) for src in range(size)]
        expected = np.concatenate([inputs[src][slices(table[src])[rank]] for src in range(size)])
        own = inputs[rank].copy()
        options: dict[str, Any] = {}
        if send:
            options["send_counts"] = table[rank]
        if recv:
            options["recv_counts"] = [table[src][rank] for src in range(size)]
        text = f"all_to_all {options} {what}"
        check(comm.all_to_all(own, **options), expected, text)
        check(own, inputs[rank], f"input of {text}")
        out = sentinel(expected.shape, name)
        assert comm.all_to_all(own, out, **options) is out, text
        check(out, expected, text)


def large(comm: Any, name: str = "float32") -> int:
    """Every operation on several MiB, beyond any internal buffer, odd in size."""
    size, rank = comm.size, comm.rank
    count = 1_000_003
    what = f"large {name} on rank {rank} of {size}"
    for op in ("sum", "max"):
        parts, expected = constants(size, count, name, op)
        _all_reduce(comm, parts, expected, op, what)
        _reduce(comm, parts, expected, op, size - 1, what)
        _reduce_scatter(comm, parts, expected, op, 1, what)
    rows = count // size
    broadcast(comm, rows, size, name, size - 1, what)
    joins(comm, rows, 1, name, size - 1, 1, what)
    scatters(comm, count, 1, name, size - 1, 1, what)
    all_to_alls(comm, rows, 1, name, 1, what)
    return count


def everything(comm: Any, dtypes: Sequence[str] = ("float32", "bfloat16", "uint8")) -> int:
    """A sample of all of it, in one job."""
    done = reductions(comm, dtypes, (0, 1, 17, 5000)) + movements(comm, dtypes, (2,))
    large(comm)
    for _ in range(20):
        comm.barrier()
    return done
