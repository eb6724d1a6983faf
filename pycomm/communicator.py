"""The Communicator: argument checks and documentation of every operation; the core does the work.

Common to all operations:

* Arrays are NumPy arrays of a supported dtype (bool, int8 to int64, uint8 to uint64, float16,
  bfloat16, float32, float64, complex64, complex128) with any strides; the result is the one NumPy
  would give on the logical array.
* ``timeout`` (seconds) limits the whole operation; None takes the communicator's default. The error
  comes up to two seconds later when a rank was stopped in the middle of writing into this rank's
  symmetric array, which it is given time to leave.
* ``async_op=True`` starts the operation and returns a :class:`~pycomm.work.Work`; otherwise the
  call blocks until the result is there. Collectives run in the order they were issued, which must
  be the same on all ranks; point-to-point operations run side by side.
* Ranks' numbers of elements and dtypes are compared, their shapes are not.
* ArgumentError is raised before anything is sent. MismatchError, CommTimeoutError, PeerLostError
  and AbortedError break the communicator on all ranks; a point-to-point message of the wrong size
  or dtype does not.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from pycomm import _core
from pycomm._arrays import (
    Array,
    check_array,
    check_elements,
    check_int,
    check_output,
    check_rows,
    check_same_dtype,
    check_timeout,
    packed,
    row_shape,
)
from pycomm._objects import all_gather_object, broadcast_object
from pycomm._operations import OperationBase, op_number
from pycomm.errors import ArgumentError, CommError

__all__ = ["Communicator", "close_all"]

_MAX_INT = 2**31 - 1
_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator(OperationBase):
    """A group of ranks and the operations among them. Made by :func:`pycomm.init`, ``split`` or
    ``thread_world``.

    Attributes:
        rank, size: This process's number in the group and how many there are.
        local_rank, local_size: The same among the ranks of this node.
        node, num_nodes: Number of this rank's node and how many there are.
        transport: "shm", "inproc" or "tcp".
        timeout: Default timeout of operations, in seconds.
    """

    def __init__(self, core: _core.Communicator) -> None:
        super().__init__(core)
        self.local_rank: int = core.local_rank
        self.local_size: int = core.local_size
        self.node: int = core.node
        self.num_nodes: int = core.num_nodes
        self.transport: str = core.transport
        self.timeout: float = core.timeout
        self._closed = False
        _open.add(self)

    # ---- collectives -------------------------------------------------------------------------

    @_core.quick("all_reduce")
    def all_reduce(
        self,
        x: Array,
        op: str = "sum",
        out: Array | None = None,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Combines the ``x`` of all ranks element by element; every rank gets the result.

        Args:
            x: Array of the same shape and dtype on all ranks.
            op: sum, prod, min, max, avg (sum divided by ``size``; floating point only), band, bor,
                bxor.
            out: Array of x's shape and dtype for the result; None puts it into ``x``.

        Returns:
            The array with the result (``out`` or ``x``), or a Work.
        """
        number = op_number(op)
        source = check_array(x, "x")
        target = self._target(source, out, x)
        return self._collective(
            "all_reduce", source, target, op=number, timeout=timeout, async_op=async_op
        )

    @_core.quick("reduce")
    def reduce(
        self,
        x: Array,
        root: int = 0,
        op: str = "sum",
        out: Array | None = None,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """As :meth:`all_reduce`, but only ``root`` gets the result; ``out`` is ignored elsewhere.

        Returns:
            At root the array with the result, None elsewhere; or a Work of that.
        """
        number = op_number(op)
        root = self._check_root(root)
        source = check_array(x, "x")
        target = self._target(source, out, x) if self.rank == root else None
        return self._collective(
            "reduce", source, target, op=number, root=root, timeout=timeout, async_op=async_op
        )

    @_core.quick("broadcast")
    def broadcast(
        self, x: Array, root: int = 0, *, timeout: float | None = None, async_op: bool = False
    ) -> Any:
        """Copies ``x`` of ``root`` into ``x`` of all ranks, which have the same shape and dtype.

        Returns:
            ``x``, or a Work.
        """
        root = self._check_root(root)
        if self.rank == root:
            source, target = check_array(x, "x"), None
        else:
            source, target = None, check_output(x, "x")
        return self._collective(
            "broadcast", source, target, root=root, timeout=timeout, async_op=async_op, result=x
        )

    @_core.quick("reduce_scatter")
    def reduce_scatter(
        self,
        x: Array,
        op: str = "sum",
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Combines the ``x`` of all ranks and gives every rank its slice of rows (axis 0) of the
        result.

        Args:
            x: Array of the same shape and dtype on all ranks.
            counts: Rows per rank, the same list on all ranks; None splits as ``numpy.array_split``.
            out: Array of shape ``(counts[rank], *x.shape[1:])``; None allocates it.

        Returns:
            ``out``, or a Work.
        """
        number = op_number(op)
        source = check_array(x, "x")
        rows, tail, width = row_shape(source)
        parts = self._parts(counts, rows, "x")
        target = self._result(out, (parts[self.rank], *tail), source)
        return self._collective(
            "reduce_scatter",
            source,
            target,
            op=number,
            counts=[part * width for part in parts],
            explicit=counts is not None,
            rows=(rows, width),
            timeout=timeout,
            async_op=async_op,
        )

    @_core.quick("all_gather")
    def all_gather(
        self,
        x: Array,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Joins the ``x`` of all ranks along axis 0, in rank order, on every rank.

        Args:
            x: Array of the same dtype and row shape on all ranks; an array without axes counts as
                one row.
            counts: Rows of each rank, the same list on all ranks; None when all have as many.
            out: Array of shape ``(sum of rows, *x.shape[1:])``; None allocates it.

        Returns:
            ``out``, or a Work.
        """
        source = check_array(x, "x")
        parts, shape, width = self._joined(source, counts)
        target = self._result(out, shape, source)
        return self._collective(
            "all_gather",
            source,
            target,
            counts=[part * width for part in parts],
            explicit=counts is not None,
            timeout=timeout,
            async_op=async_op,
        )

    @_core.quick("gather")
    def gather(
        self,
        x: Array,
        root: int = 0,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """As :meth:`all_gather`, but only ``root`` gets the result; ``out`` is ignored elsewhere.

        Returns:
            At root ``out``, None elsewhere; or a Work of that.
        """
        root = self._check_root(root)
        source = check_array(x, "x")
        parts, shape, width = self._joined(source, counts)
        target = self._result(out, shape, source) if self.rank == root else None
        return self._collective(
            "gather",
            source,
            target,
            root=root,
            counts=[part * width for part in parts],
            explicit=counts is not None,
            timeout=timeout,
            async_op=async_op,
        )

    @_core.quick("scatter")
    def scatter(
        self,
        x: Array | None,
        root: int = 0,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Splits ``x`` of ``root`` along axis 0 and gives every rank its rows.

        Args:
            x: The whole, at root; ignored elsewhere (None).
            out: This rank's rows, ``(counts[rank], *x.shape[1:])``; required except at root.
            counts: Rows per rank, the same list on all ranks; None splits as ``numpy.array_split``.

        Returns:
            ``out``, or a Work.
        """
        root = self._check_root(root)
        source: Array | None = None
        if self.rank == root:
            if x is None:
                raise ArgumentError("x is None at the root of a scatter, expected the whole array")
            source = check_array(x, "x")
            rows, tail, width = row_shape(source)
            parts = self._parts(counts, rows, "x")
            target = self._result(out, (parts[self.rank], *tail), source)
        else:
            if out is None:
                raise ArgumentError(
                    "out is None, expected an array: only root knows what is scattered"
                )
            target = check_output(out, "out")
            rows, _, width = row_shape(target)
            parts = check_rows(counts, "counts", self.size, width) if counts is not None else []
            if parts and parts[self.rank] != rows:
                raise ArgumentError(f"out has {rows} rows, but counts gives {parts[self.rank]}")
        return self._collective(
            "scatter",
            source,
            target,
            root=root,
            counts=[part * width for part in parts],
            explicit=counts is not None,
            rows=(rows, width),
            timeout=timeout,
            async_op=async_op,
        )

    @_core.quick("all_to_all")
    def all_to_all(
        self,
        x: Array,
        out: Array | None = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Sends slice r of the rows (axis 0) of ``x`` to rank r and joins what comes, in rank
        order.

        Args:
            x: Array of the same dtype and row shape on all ranks.
            send_counts: Rows for each rank; None splits as ``numpy.array_split``.
            recv_counts: Rows from each rank; None is right when ``send_counts`` is None, and is
                asked from the peers otherwise (one more small message each, blocking).
            out: Array of shape ``(sum(recv_counts), *x.shape[1:])``; None allocates it.

        Returns:
            ``out``, or a Work.
        """
        source = check_array(x, "x")
        rows, tail, width = row_shape(source)
        explicit = send_counts is not None or recv_counts is not None
        sends = self._parts(send_counts, rows, "x", "send_counts")
        if out is not None:  # before anything is sent; its shape is checked when it is known
            check_same_dtype(check_output(out, "out"), "out", source, "x")
        if recv_counts is not None:
            receives = check_rows(recv_counts, "recv_counts", self.size, width)
        elif send_counts is not None:
            announced = self.all_to_all(np.asarray(sends, dtype=np.int64), timeout=timeout)
            receives = [int(count) for count in announced]
        else:
            receives = [sends[self.rank]] * self.size
        target = self._result(out, (sum(receives), *tail), source)
        return self._collective(
            "all_to_all",
            source,
            target,
            counts=[count * width for count in sends],
            recv_counts=[count * width for count in receives],
            explicit=explicit,
            rows=(rows, width),
            timeout=timeout,
            async_op=async_op,
        )

    @_core.quick("barrier")
    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Any:
        """Returns when all ranks have called it. None, or a Work."""
        return self._collective("barrier", None, None, timeout=timeout, async_op=async_op)

    # ---- point-to-point ----------------------------------------------------------------------

    @_core.quick("send")
    def send(
        self,
        x: Array,
        dst: int,
        tag: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Sends ``x`` to rank ``dst``. Returns when ``x`` may be changed again, which for large
        messages means that the receive was posted. None, or a Work.

        Raises:
            CommTimeoutError: ``dst`` posted no matching receive in time.
        """
        peer = self._check_peer(dst, "dst")
        tag = check_int(tag, "tag", 0, _MAX_INT, "an integer from 0 to 2^31 - 1")
        array = packed(check_array(x, "x"))
        task = self._core.make_message(True, array, peer, tag, check_timeout(timeout))
        return self._message(task, lambda: None, async_op, f"send to rank {peer}, tag {tag}")

    @_core.quick("recv")
    def recv(
        self,
        out: Array,
        src: int,
        tag: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Receives the next message of rank ``src`` with ``tag`` into ``out``. Returns ``out``, or
        a Work.

        Raises:
            MismatchError: The message has another count or dtype than ``out``. It is dropped; later
                ones are intact.
        """
        peer = self._check_peer(src, "src")
        tag = check_int(tag, "tag", 0, _MAX_INT, "an integer from 0 to 2^31 - 1")
        target = check_output(out, "out")
        landing = self._landing(target)
        task = self._core.make_message(False, landing, peer, tag, check_timeout(timeout))
        finish = self._finisher(target, landing, out)
        return self._message(task, finish, async_op, f"recv from rank {peer}, tag {tag}")

    @_core.quick("sendrecv")
    def sendrecv(
        self,
        x: Array,
        dst: int,
        out: Array,
        src: int,
        tag: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Sends ``x`` to ``dst`` and receives ``out`` from ``src`` at the same time.

        Returns:
            ``out``, or a Work.
        """
        if self._pending() is not None and not async_op:
            self.send(x, dst, tag, timeout=timeout)
            return self.recv(out, src, tag, timeout=timeout)
        with self._postponed() as calls:
            self.send(x, dst, tag, timeout=timeout)
            self.recv(out, src, tag, timeout=timeout)
        if async_op:
            return self._start_pair(calls, f"sendrecv to rank {dst}, from rank {src}, tag {tag}")
        self._run_together(calls)
        return out

    @contextmanager
    def group(self) -> Iterator[None]:
        """Point-to-point calls of this thread inside the block start together when it ends, which
        then waits for all of them: their order cannot deadlock. Results are there after the block.
        Collectives are not allowed inside.
        """
        if self._pending() is not None:
            raise ArgumentError("group() inside group(); expected one level")
        with self._postponed() as calls:
            yield
        self._run_together(calls)

    # ---- objects -----------------------------------------------------------------------------

    def broadcast_object(self, obj: Any, root: int = 0, *, timeout: float | None = None) -> Any:
        """Returns the object that ``root`` passed, on all ranks. It travels pickled; ranks must
        trust each other.

        Raises:
            CommError: The object cannot be pickled (on all ranks).
        """
        return broadcast_object(self, obj, self._check_root(root), timeout)

    def all_gather_object(self, obj: Any, *, timeout: float | None = None) -> list[Any]:
        """Returns the objects of all ranks, in rank order. They travel pickled; ranks must trust
        each other.

        Raises:
            CommError: An object cannot be pickled (on all ranks).
        """
        return all_gather_object(self, obj, timeout)

    # ---- the group itself --------------------------------------------------------------------

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        """Ranks that give the same ``color`` form a new communicator, ordered by (``key``, rank).
        Collective.

        Args:
            color: An integer, or None to stay out.
            key: An integer; None orders by rank.

        Returns:
            The new communicator; None for ranks with color None.
        """
        self._check_outside_group("split")
        if color is not None:
            color = check_int(color, "color", -_MAX_INT, _MAX_INT, "None or a 32-bit integer")
        if key is None:
            key = self.rank
        key = check_int(key, "key", -_MAX_INT, _MAX_INT, "None or a 32-bit integer")
        core = self._core.split(color, key)
        return None if core is None else Communicator(core)

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
        """Symmetric memory: an array that every rank of the node has mapped. Collective; zeroed.

        All ranks pass the same shape and dtype; the bytes are compared. On transports without
        shared memory it is ordinary memory. It is released with the last reference to the array. A
        forked child shares it with its parent: neither has a copy of its own.
        """
        self._check_outside_group("empty")
        if isinstance(dtype, str) and dtype == "bfloat16":
            import ml_dtypes

            dtype = ml_dtypes.bfloat16
        try:
            template = np.empty(0, dtype=dtype)
        except TypeError as error:
            raise ArgumentError(f"dtype is {dtype!r}: {error}") from None
        check_array(template, "the array")
        expected = "integers of 0 or more"
        if isinstance(shape, (int, np.integer)):
            shape = [shape]
        elif not isinstance(shape, Sequence):
            raise ArgumentError(f"shape is {shape!r}, expected {expected}")
        extents = [check_int(n, "shape", 0, None, expected) for n in shape]
        count = math.prod(extents)
        check_elements(count, f"shape is {shape!r}")
        memory = self._core.symmetric(count * template.dtype.itemsize)
        return memory.view(template.dtype).reshape(extents)

    def abort(self, reason: str = "abort() was called") -> None:
        """Breaks the communicator on all ranks.

        Their operations, in flight and later, raise AbortedError with ``reason``.
        """
        self._core.abort(f"rank {self.rank} aborted: {reason}")

    def close(self) -> None:
        """Leaves the group. Operations in flight fail; peers that still need this rank get
        PeerLostError. Idempotent; not required at the end of a program.
        """
        self._closed = True
        self._core.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and not self._closed and not isinstance(error, CommError):
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            core.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<pycomm.Communicator rank {self.rank} of {self.size}, {self.transport}{state}>"


def close_all(with_process: bool) -> None:
    """Closes every communicator of an ending program, those from ``split`` included.

    Args:
        with_process: Whether the end of the process may be what tells the peers.
    """
    for communicator in list(_open):
        communicator._closed = True
        if with_process:
            communicator._core.close_with_process()
        else:
            communicator._core.close()
