# Arrays that are not plain: strides, Fortran order, no elements, no axes, overlaps, misalignment.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from core.values import Array, check, combine, dtype_of, sentinel, slices, split_rows, values
from ranks import run_ranks

# A layout lays the given logical array out in memory and returns an equal view.
Layout = Callable[[Array], Array]


def c_order(x: Array) -> Array:
    return np.array(x, order="C")


def fortran(x: Array) -> Array:
    return np.array(x, order="F")


def transposed(x: Array) -> Array:
    return np.array(x.T, order="C").T


def every_second_column(x: Array) -> Array:
    base = sentinel((*x.shape[:-1], 2 * x.shape[-1]), x.dtype.name)
    base[..., ::2] = x
    return base[..., ::2]


def every_third_row(x: Array) -> Array:
    base = sentinel((3 * x.shape[0], *x.shape[1:]), x.dtype.name)
    base[::3] = x
    return base[::3]


def reversed_rows(x: Array) -> Array:
    return np.array(x[::-1], order="C")[::-1]


def reversed_everything(x: Array) -> Array:
    flip = (slice(None, None, -1),) * x.ndim
    return np.array(x[flip], order="C")[flip]


def misaligned(x: Array) -> Array:
    memory = np.zeros(x.nbytes + 1, dtype=np.uint8)
    view: Array = memory[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def inner(x: Array) -> Array:
    """A rectangle inside a larger array."""
    base = sentinel(tuple(n + 2 for n in x.shape), x.dtype.name)
    window = base[(slice(1, -1),) * x.ndim]
    window[...] = x
    return window


LAYOUTS: tuple[Layout, ...] = (
    c_order,
    fortran,
    transposed,
    every_second_column,
    every_third_row,
    reversed_rows,
    reversed_everything,
    misaligned,
    inner,
)


def frame(x: Array) -> Array:
    """All memory around a view, to see that nothing else was written."""
    base = x
    while isinstance(base.base, np.ndarray):
        base = base.base
    return base


@pytest.mark.parametrize("transport", ["auto", "shm", "tcp"])
def test_every_layout_in_every_operation(transport: str) -> None:
    environment = {"PYCOMM_TRANSPORT": transport}
    for outcome in run_ranks(3, all_layouts, launcher="threads", env=environment):
        outcome.get()


def test_every_layout_in_processes(launcher: str) -> None:
    for outcome in run_ranks(2, all_layouts, launcher=launcher):
        outcome.get()


def all_layouts(comm: Any) -> None:
    for index in range(len(LAYOUTS)):
        # Another layout on each rank, for input and for output.
        lay_in = LAYOUTS[(index + comm.rank) % len(LAYOUTS)]
        lay_out = LAYOUTS[(index + 2 * comm.rank + 1) % len(LAYOUTS)]
        for name in ("float32", "bfloat16", "complex128", "uint8"):
            one_layout(comm, lay_in, lay_out, name)


def one_layout(comm: Any, lay_in: Layout, lay_out: Layout, name: str) -> None:
    size, rank = comm.size, comm.rank
    shape = (7, 5)
    what = f"{lay_in.__name__} to {lay_out.__name__}, {name}, rank {rank} of {size}"
    parts = [values(r, shape, name) for r in range(size)]
    total = combine(parts, "sum")
    empty = sentinel(shape, name)

    def source() -> Array:
        return lay_in(parts[rank])

    out = lay_out(empty)
    assert comm.all_reduce(source(), out=out) is out
    check(out, total, f"all_reduce {what}")
    own = source()
    assert comm.all_reduce(own) is own
    check(own, total, f"all_reduce in place {what}")

    own = source()
    out = lay_out(empty)
    comm.reduce(own, root=1, out=out)
    check(out, total if rank == 1 else empty, f"reduce {what}")
    check(own, parts[rank], f"input of reduce {what}")

    own = source() if rank == 1 else lay_out(empty)
    assert comm.broadcast(own, root=1) is own
    check(own, parts[1], f"broadcast {what}")

    mine = slices(split_rows(7, size))[rank]
    out = lay_out(empty[mine])
    comm.reduce_scatter(source(), out=out)
    check(out, total[mine], f"reduce_scatter {what}")
    out = lay_out(empty[mine])
    comm.scatter(source() if rank == 1 else None, root=1, out=out)
    check(out, parts[1][mine], f"scatter {what}")

    joined = np.concatenate(parts)
    out = lay_out(sentinel(joined.shape, name))
    comm.all_gather(source(), out)
    check(out, joined, f"all_gather {what}")
    out = lay_out(sentinel(joined.shape, name))
    comm.gather(source(), 1, out)
    if rank == 1:
        check(out, joined, f"gather {what}")

    swapped = np.concatenate([parts[r][mine] for r in range(size)])
    out = lay_out(sentinel(swapped.shape, name))
    comm.all_to_all(source(), out)
    check(out, swapped, f"all_to_all {what}")

    right, left = (rank + 1) % size, (rank - 1) % size
    out = lay_out(empty)
    assert comm.sendrecv(source(), right, out, left) is out
    check(out, parts[left], f"sendrecv {what}")
    out = lay_out(empty)
    works = [comm.all_reduce(source(), out=out, async_op=True)]
    into = lay_out(empty)
    works.append(comm.recv(into, left, async_op=True))
    works.append(comm.send(source(), right, async_op=True))
    assert works[0].wait() is out
    assert works[1].wait() is into
    assert works[2].wait() is None
    check(out, total, f"asynchronous all_reduce {what}")
    check(into, parts[left], f"asynchronous recv {what}")


def test_nothing_around_a_view_is_written() -> None:
    for outcome in run_ranks(2, surroundings, launcher="threads"):
        outcome.get()


def surroundings(comm: Any) -> None:
    for layout in (every_second_column, every_third_row, inner):
        x = layout(values(comm.rank, (7, 5), "int32"))
        whole = frame(x)
        outside = whole.copy()
        marks = np.zeros(whole.shape, dtype=bool)
        marks_view = np.lib.stride_tricks.as_strided(
            marks.reshape(-1)[(x.ctypes.data - whole.ctypes.data) // 4 :],
            x.shape,
            tuple(stride // 4 for stride in x.strides),
        )
        marks_view[...] = True
        comm.all_reduce(x)
        assert np.array_equal(whole[~marks], outside[~marks]), layout.__name__


def test_axes_that_mesh_without_overlap() -> None:
    def body(comm: Any) -> None:
        base = np.zeros(8, np.int32)
        x = np.lib.stride_tricks.as_strided(base, (3, 2), (8, 12))
        x[...] = values(comm.rank, (3, 2), "int32")
        comm.all_reduce(x)
        assert np.array_equal(x, sum(values(rank, (3, 2), "int32") for rank in range(comm.size)))
        assert base[1] == base[6] == 0

    for outcome in run_ranks(2, body, launcher="threads"):
        outcome.get()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_shapes_without_elements_or_axes(transport: str) -> None:
    environment = {"PYCOMM_TRANSPORT": transport}
    for n in (1, 2, 3):
        for outcome in run_ranks(n, odd_shapes, launcher="threads", env=environment):
            outcome.get()


def test_shapes_in_processes(launcher: str) -> None:
    for outcome in run_ranks(3, odd_shapes, launcher=launcher):
        outcome.get()


def odd_shapes(comm: Any) -> None:
    shapes: list[tuple[int, ...]] = [(0,), (1, 0, 2), (0, 3), (), (1,), (1, 1, 1), (2, 0)]
    for shape in shapes:
        for name in ("float32", "float16", "bool"):
            odd_shape(comm, shape, name)
            # The next operation is right.
            check(
                comm.all_reduce(values(comm.rank, 5, "int64")),
                combine([values(r, 5, "int64") for r in range(comm.size)], "sum"),
                f"after {shape}",
            )


def odd_shape(comm: Any, shape: tuple[int, ...], name: str) -> None:
    size, rank = comm.size, comm.rank
    what = f"{shape} {name} on rank {rank} of {size}"
    parts = [values(r, shape, name) for r in range(size)]
    total = combine(parts, "sum")
    assert total.shape == shape
    check(comm.all_reduce(parts[rank].copy()), total, f"all_reduce {what}")
    check(comm.all_reduce(parts[rank], out=sentinel(shape, name)), total, f"all_reduce {what}")
    check(comm.all_reduce(parts[rank].copy(), async_op=True).wait(), total, f"all_reduce {what}")
    result = comm.reduce(parts[rank], 0, "sum", sentinel(shape, name))
    if rank == 0:
        check(result, total, f"reduce {what}")
    x = parts[0].copy() if rank == 0 else sentinel(shape, name)
    check(comm.broadcast(x), parts[0], f"broadcast {what}")
    # An array without axes is one row.
    rows = [part.reshape(1) if shape == () else part for part in parts]
    joined = np.concatenate(rows)
    check(comm.all_gather(parts[rank]), joined, f"all_gather {what}")
    result = comm.gather(parts[rank], root=size - 1)
    if rank == size - 1:
        check(result, joined, f"gather {what}")
    sizes = split_rows(len(rows[0]), size)
    mine = slices(sizes)[rank]
    total_rows = total.reshape(rows[0].shape)
    check(comm.reduce_scatter(parts[rank]), total_rows[mine], f"reduce_scatter {what}")
    out = sentinel(rows[0][mine].shape, name)
    check(comm.scatter(parts[0], 0, out), rows[0][mine], f"scatter {what}")
    swapped = np.concatenate([row[mine] for row in rows])
    check(comm.all_to_all(parts[rank]), swapped, f"all_to_all {what}")
    right, left = (rank + 1) % size, (rank - 1) % size
    out = sentinel(shape, name)
    check(comm.sendrecv(parts[rank], right, out, left), parts[left], f"sendrecv {what}")


def test_fortran_order_on_one_rank_only(launcher: str) -> None:
    for outcome in run_ranks(2, mixed_orders, launcher=launcher):
        outcome.get()


def mixed_orders(comm: Any) -> None:
    parts = [values(r, (4, 6), "float64") for r in range(2)]
    own = np.array(parts[comm.rank], order="C" if comm.rank == 0 else "F")
    check(comm.all_reduce(own), parts[0] + parts[1], "all_reduce")
    assert own.flags.c_contiguous == (comm.rank == 0)  # in place, and the layout stays
    own = np.array(parts[comm.rank], order="C" if comm.rank == 0 else "F")
    check(comm.broadcast(own, root=0), parts[0], "broadcast")


def test_read_only_inputs() -> None:
    for outcome in run_ranks(2, read_only, launcher="threads"):
        outcome.get()


def read_only(comm: Any) -> None:
    size, rank = comm.size, comm.rank
    parts = [values(r, (4, 3), "float32") for r in range(size)]
    own = parts[rank].copy()
    own.flags.writeable = False
    check(comm.all_reduce(own, out=np.empty_like(own)), parts[0] + parts[1], "all_reduce")
    check(comm.all_gather(own), np.concatenate(parts), "all_gather")
    check(comm.reduce_scatter(own), (parts[0] + parts[1])[2 * rank : 2 * rank + 2], "scatter")
    comm.all_to_all(own)
    comm.gather(own)
    comm.scatter(own if rank == 0 else None, 0, np.empty((2, 3), dtype=np.float32))
    check(comm.sendrecv(own, 1 - rank, np.empty_like(own), 1 - rank), parts[1 - rank], "sendrecv")
    # One row repeated without memory of its own, and a number.
    wide = np.broadcast_to(np.float32(rank + 1), (3, 4))
    check(comm.all_reduce(wide, out=np.empty((3, 4), np.float32)), np.full((3, 4), 3, "f4"), "wide")
    out = np.empty((), dtype=np.float64)
    assert comm.all_reduce(np.float64(rank + 0.5), out=out) is out
    assert out == 2.0


OVERLAPS: dict[str, Callable[[Array, int], tuple[Array, Array]]] = {
    "shifted up": lambda base, n: (base[:n], base[3 : n + 3]),
    "shifted down": lambda base, n: (base[3 : n + 3], base[:n]),
    "by one": lambda base, n: (base[:n], base[1 : n + 1]),
    "same": lambda base, n: (base[:n], base[:n]),
    "reversed": lambda base, n: (base[:n], base[:n][::-1]),
    "interleaved": lambda base, n: (base[0 : 2 * n : 2], base[1 : 2 * n : 2]),
    "every second": lambda base, n: (base[0 : 2 * n : 2], base[:n]),
}


@pytest.mark.parametrize("choice", ["", "all_reduce:ring", "all_reduce:recursive_doubling"])
def test_overlapping_input_and_output(choice: str) -> None:
    """The right result, as if they were apart."""
    environment = {"PYCOMM_ALGO": choice}
    for n in (1, 2, 3):
        for outcome in run_ranks(n, overlaps, launcher="threads", env=environment):
            outcome.get()


def overlapping(kind: str, n: int, name: str, apart: bool) -> tuple[Array, Array]:
    x, out = OVERLAPS[kind](sentinel(2 * n + 8, name), n)
    return x, (out.copy() if apart else out)


def overlaps(comm: Any) -> None:
    size, rank = comm.size, comm.rank
    for index, kind in enumerate(OVERLAPS):
        # Some ranks overlap, others do not.
        apart = (rank + index) % 3 == 2
        for n in (6, 24, 30_000):
            for name in ("float32", "float16", "int8"):
                parts = [values(r, n, name, salt=index) for r in range(size)]
                what = f"{kind} {n} {name} on rank {rank} of {size}"

                x, out = overlapping(kind, n, name, apart)
                x[...] = parts[rank]
                check(comm.all_reduce(x, out=out), combine(parts, "sum"), f"all_reduce {what}")
                x, out = overlapping(kind, n, name, apart)
                x[...] = parts[rank]
                result = comm.reduce(x, size - 1, "max", out)
                if rank == size - 1:
                    check(result, combine(parts, "max"), f"reduce {what}")
                x, out = overlapping(kind, n, name, apart)
                x[...] = parts[rank]
                if n % size == 0:
                    rows = n // size
                    expected = np.concatenate(
                        [part[rank * rows : (rank + 1) * rows] for part in parts]
                    )
                    check(comm.all_to_all(x, out), expected, f"all_to_all {what}")
                sliced_overlaps(comm, parts, name, what)


def sliced_overlaps(comm: Any, parts: list[Array], name: str, what: str) -> None:
    """One buffer is a part of the other, at any place of it."""
    size, rank = comm.size, comm.rank
    n = len(parts[0])
    for place in {0, min(1, (size - 1) * n), (size - 1) * n // 2, (size - 1) * n}:
        whole = sentinel(size * n, name)
        whole[place : place + n] = parts[rank]
        got = comm.all_gather(whole[place : place + n], whole)
        check(got, np.concatenate(parts), f"all_gather from {place} {what}")
    rows = split_rows(n, size)[rank]
    for place in {0, min(1, n - rows), n - rows}:
        x = parts[rank].copy()
        out = x[place : place + rows]
        mine = slices(split_rows(n, size))[rank]
        got = comm.reduce_scatter(x, out=out)
        check(got, combine(parts, "sum")[mine], f"reduce_scatter to {place} {what}")
        x = parts[rank].copy()
        out = x[place : place + rows]
        got = comm.scatter(x if rank == 0 else None, 0, out)
        check(got, parts[0][mine], f"scatter to {place} {what}")


def test_subclasses_and_dtype_of_results() -> None:
    class Tagged(np.ndarray):
        pass

    comm = __import__("pycomm").thread_world(1)[0]
    x = np.arange(6, dtype=dtype_of("bfloat16")).reshape(2, 3).view(Tagged)
    assert comm.all_reduce(x) is x
    assert comm.all_gather(x).dtype == dtype_of("bfloat16")
    assert comm.reduce_scatter(x).shape == (2, 3)
