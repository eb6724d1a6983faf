"""The Communicator: argument checks and documentation of every operation; the core does the work.

Common to all operations:

* Arrays are NumPy arrays of a supported dtype (bool, int8 to int64, uint8 to uint64, float16,
  bfloat16, float32, float64, complex64, complex128) with any strides; the result is the one NumPy
  would give on the logical array.
* ``timeout`` (seconds) limits the whole operation; None takes the communicator's default.
* ``async_op=True`` starts the operation and returns a :class:`~pycomm.work.Work`; otherwise the
  call blocks until the result is there. Collectives run in the order they were issued, which must
  be the same on all ranks; point-to-point operations run side by side.
* ArgumentError is raised before anything is sent. MismatchError, CommTimeoutError, PeerLostError
  and AbortedError break the communicator on all ranks; a point-to-point message of the wrong size
  or dtype does not.
"""

from __future__ import annotations

import pickle
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from pycomm import _core
from pycomm._arrays import (
    Array,
    check_array,
    check_int,
    check_output,
    check_rows,
    check_same_dtype,
    check_shape,
    check_timeout,
    packed,
    row_shape,
    split_rows,
)
from pycomm.errors import ArgumentError, CommError
from pycomm.work import Work

__all__ = ["Communicator", "close_all"]

_KINDS: dict[str, int] = _core.KINDS
_OPS: dict[str, int] = _core.OPS
_NO_OP: int = _core.NO_OP
_MAX_INT = 2**31 - 1
_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


def _op_number(op: Any) -> int:
    number = _OPS.get(op) if isinstance(op, str) else None
    if number is None:
        raise ArgumentError(f"op is {op!r}, expected one of {', '.join(_OPS)}")
    return number


class Communicator:
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
        self._core = core
        self._run_simple = core.run_simple
        self.rank: int = core.rank
        self.size: int = core.size
        self.local_rank: int = core.local_rank
        self.local_size: int = core.local_size
        self.node: int = core.node
        self.num_nodes: int = core.num_nodes
        self.transport: str = core.transport
        self.timeout: float = core.timeout
        self._closed = False
        self._thread_state = threading.local()
        # Started tasks whose Work nobody may hold any more; a task keeps its arrays alive.
        self._in_flight: set[_core.Task] = set()
        self._in_flight_lock = threading.Lock()
        _open.add(self)

    # ---- collectives -------------------------------------------------------------------------

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
        number = _op_number(op)
        source = check_array(x, "x")
        target = self._target(source, out, x)
        return self._collective(
            "all_reduce", source, target, op=number, timeout=timeout, async_op=async_op
        )

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
        number = _op_number(op)
        root = self._check_root(root)
        source = check_array(x, "x")
        target = self._target(source, out, x) if self.rank == root else None
        return self._collective(
            "reduce", source, target, op=number, root=root, timeout=timeout, async_op=async_op
        )

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
        number = _op_number(op)
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
            parts = check_rows(counts, "counts", self.size) if counts is not None else []
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
        if recv_counts is not None:
            receives = check_rows(recv_counts, "recv_counts", self.size)
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

    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Any:
        """Returns when all ranks have called it. None, or a Work."""
        return self._collective("barrier", None, None, timeout=timeout, async_op=async_op)

    # ---- point-to-point ----------------------------------------------------------------------

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

    def sendrecv(
        self,
        x: Array,
        dst: int,
        out: Array,
        src: int,
        tag: int = 0,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Sends ``x`` to ``dst`` and receives ``out`` from ``src`` at the same time.

        Returns:
            ``out``.
        """
        with self.group():
            self.send(x, dst, tag, timeout=timeout)
            self.recv(out, src, tag, timeout=timeout)
        return out

    @contextmanager
    def group(self) -> Iterator[None]:
        """Point-to-point calls of this thread inside the block start together when it ends, which
        then waits for all of them: their order cannot deadlock. Results are there after the block.
        Collectives are not allowed inside.
        """
        if self._pending() is not None:
            raise ArgumentError("group() inside group(); expected one level")
        pending: list[tuple[_core.Task, Callable[[], Any]]] = []
        self._thread_state.pending = pending
        try:
            yield
        finally:
            self._thread_state.pending = None
        if not pending:
            return
        try:
            self._core.run([task for task, _ in pending])
        finally:
            # Also after an error: the other receives have their messages.
            for task, finish in pending:
                if task.succeeded():
                    finish()

    # ---- objects -----------------------------------------------------------------------------

    def broadcast_object(self, obj: Any, root: int = 0, *, timeout: float | None = None) -> Any:
        """Returns the object that ``root`` passed, on all ranks. It travels pickled; ranks must
        trust each other.

        Raises:
            CommError: The object cannot be pickled (on all ranks).
        """
        root = self._check_root(root)
        data, failure = self._pickle(obj) if self.rank == root else (b"", None)
        header = np.array([-1 if failure else len(data)], dtype=np.int64)
        self.broadcast(header, root, timeout=timeout)
        if header[0] < 0:
            raise CommError(f"broadcast_object: rank {root} cannot pickle its object") from failure
        if self.rank == root:
            self.broadcast(np.frombuffer(data, dtype=np.uint8), root, timeout=timeout)
            return obj
        payload = np.empty(int(header[0]), dtype=np.uint8)
        self.broadcast(payload, root, timeout=timeout)
        return pickle.loads(payload.tobytes())

    def all_gather_object(self, obj: Any, *, timeout: float | None = None) -> list[Any]:
        """Returns the objects of all ranks, in rank order. They travel pickled; ranks must trust
        each other.

        Raises:
            CommError: An object cannot be pickled (on all ranks).
        """
        data, failure = self._pickle(obj)
        own = np.array([-1 if failure else len(data)], dtype=np.int64)
        sizes = [int(size) for size in self.all_gather(own, timeout=timeout)]
        broken = [rank for rank, size in enumerate(sizes) if size < 0]
        if broken:
            ranks = ", ".join(map(str, broken))
            raise CommError(
                f"all_gather_object: rank {ranks} cannot pickle its object", broken
            ) from failure
        payload = np.frombuffer(data, dtype=np.uint8)
        joined = self.all_gather(payload, counts=sizes, timeout=timeout).tobytes()
        objects, start = [], 0
        for size in sizes:
            objects.append(pickle.loads(joined[start : start + size]))
            start += size
        return objects

    @staticmethod
    def _pickle(obj: Any) -> tuple[bytes, BaseException | None]:
        try:
            return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL), None
        except Exception as error:
            return b"", error

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
        if color is not None:
            color = check_int(color, "color", -_MAX_INT, _MAX_INT, "None or a 32-bit integer")
        if key is None:
            key = self.rank
        key = check_int(key, "key", -_MAX_INT, _MAX_INT, "None or a 32-bit integer")
        core = self._core.split(color, key)
        return None if core is None else Communicator(core)

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
        """Symmetric memory: an array that every rank of the node has mapped. Collective; zeroed.

        All ranks pass the same shape and dtype. On transports without shared memory it is ordinary
        memory. It is released with the last reference to the array.
        """
        if isinstance(dtype, str) and dtype == "bfloat16":
            import ml_dtypes

            dtype = ml_dtypes.bfloat16
        try:
            template = np.empty(0, dtype=dtype)
        except TypeError as error:
            raise ArgumentError(f"dtype is {dtype!r}: {error}") from None
        check_array(template, "the array")
        extents = [shape] if isinstance(shape, (int, np.integer)) else list(shape)
        extents = [check_int(n, "shape", 0, None, "integers of 0 or more") for n in extents]
        count = 1
        for extent in extents:
            count *= extent
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

    # ---- shared by the operations ------------------------------------------------------------

    def _pending(self) -> list[tuple[_core.Task, Callable[[], Any]]] | None:
        return getattr(self._thread_state, "pending", None)

    def _check_root(self, root: Any) -> int:
        return check_int(root, "root", 0, self.size - 1, f"a rank from 0 to {self.size - 1}")

    def _check_peer(self, peer: Any, name: str) -> int:
        return check_int(peer, name, 0, self.size - 1, f"a rank from 0 to {self.size - 1}")

    def _target(self, source: Array, out: Array | None, x: Any) -> Array:
        """The array for a result of the shape of ``source``; the source itself without ``out``."""
        if out is None:
            return check_output(x, "x (which takes the result unless out is given)")
        target = check_output(out, "out")
        check_same_dtype(target, "out", source, "x")
        check_shape(target, "out", source.shape)
        return target

    def _result(self, out: Array | None, shape: tuple[int, ...], like: Array) -> Array:
        """The array for a result of its own shape; a new one without ``out``."""
        if out is None:
            return np.empty(shape, dtype=like.dtype)
        target = check_output(out, "out")
        check_same_dtype(target, "out", like, "x")
        if target.shape != shape and not (target.ndim == 0 and shape == (1,)):
            check_shape(target, "out", shape)
        return target

    def _parts(
        self, counts: Sequence[int] | None, rows: int, name: str, counts_name: str = "counts"
    ) -> list[int]:
        if counts is None:
            return split_rows(rows, self.size)
        parts = check_rows(counts, counts_name, self.size)
        if sum(parts) != rows:
            raise ArgumentError(
                f"{counts_name} is {parts}, {sum(parts)} rows in all, but {name} has {rows} rows"
            )
        return parts

    def _joined(
        self, source: Array, counts: Sequence[int] | None
    ) -> tuple[list[int], tuple[int, ...], int]:
        """(rows per rank, shape of the whole, elements per row) of a gather of ``source``."""
        rows, tail, width = row_shape(source)
        if counts is None:
            parts = [rows] * self.size
        else:
            parts = check_rows(counts, "counts", self.size)
            if parts[self.rank] != rows:
                raise ArgumentError(
                    f"counts gives {parts[self.rank]} rows for this rank, but x has {rows}"
                )
        return parts, (sum(parts), *tail), width

    @staticmethod
    def _landing(target: Array) -> Array:
        """Where the core may write: the target itself, or contiguous memory to be copied from."""
        flags = target.flags
        if flags.c_contiguous and flags.aligned:
            return target
        return np.empty(target.shape, dtype=target.dtype)

    @staticmethod
    def _finisher(target: Array | None, landing: Array | None, result: Any) -> Callable[[], Any]:
        def finish() -> Any:
            if target is not landing and target is not None:
                target[...] = landing
            return result

        return finish

    def _collective(
        self,
        kind: str,
        source: Array | None,
        target: Array | None,
        *,
        op: int = _NO_OP,
        root: int = -1,
        counts: list[int] | None = None,
        recv_counts: list[int] | None = None,
        explicit: bool = False,
        rows: tuple[int, int] = (0, 0),
        timeout: float | None = None,
        async_op: bool = False,
        result: Any = None,
    ) -> Any:
        """Packs, starts or runs, and unpacks; returns ``result``, or ``target`` without it."""
        if self._pending() is not None:
            raise ArgumentError(f"{kind} inside group(); expected point-to-point calls only")
        seconds = check_timeout(timeout)
        value = target if result is None else result
        # Memory that the core may use: contiguous. In-place operations stay in place.
        core_source = None if source is None else packed(source)
        if target is source:
            landing = core_source
        else:
            landing = None if target is None else self._landing(target)
        if counts is None and not async_op:
            self._run_simple(_KINDS[kind], core_source, landing, op, root, seconds)
            if landing is not target and target is not None:
                target[...] = landing
            return value
        task = self._core.make_collective(
            _KINDS[kind],
            core_source,
            landing,
            op,
            root,
            counts or [],
            explicit,
            recv_counts or [],
            rows[0],
            rows[1],
            seconds,
        )
        finish = self._finisher(target, landing, value)
        if async_op:
            return self._start(task, finish, kind)
        self._core.run([task])
        return finish()

    def _message(
        self, task: _core.Task, finish: Callable[[], Any], async_op: bool, description: str
    ) -> Any:
        if async_op:
            return self._start(task, finish, description)
        pending = self._pending()
        if pending is not None:
            pending.append((task, finish))
            return None
        self._core.run([task])
        return finish()

    def _start(self, task: _core.Task, finish: Callable[[], Any], description: str) -> Work:
        self._core.submit(task)
        with self._in_flight_lock:
            self._in_flight = {other for other in self._in_flight if not other.done()}
            self._in_flight.add(task)
        return Work(task, finish, self._forget, description)

    def _forget(self, task: _core.Task) -> None:
        """Gives up a finished task, and with it the arrays."""
        with self._in_flight_lock:
            self._in_flight.discard(task)


def close_all() -> None:
    """Closes every communicator of this process, those from ``split`` included."""
    for communicator in list(_open):
        communicator.close()
