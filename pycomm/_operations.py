"""How a call becomes an operation of the core: memory it may use, start, wait, results.

:class:`OperationBase` is what all operations of a Communicator share; the operations themselves,
with their documentation, are in pycomm/communicator.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from pycomm import _core
from pycomm._arrays import (
    Array,
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
from pycomm.errors import ArgumentError
from pycomm.work import Work, WorkPair

__all__ = ["OperationBase", "op_number"]

_KINDS: dict[str, int] = _core.KINDS
_OPS: dict[str, int] = _core.OPS
_NO_OP: int = _core.NO_OP


# A task that was made but not started, and what completes its result.
Call = tuple[_core.Task, Callable[[], Any]]


def op_number(op: Any) -> int:
    """The core's number of a reduction named in Python."""
    number = _OPS.get(op) if isinstance(op, str) else None
    if number is None:
        raise ArgumentError(f"op is {op!r}, expected one of {', '.join(_OPS)}")
    return number


class OperationBase(_core.CommunicatorBase):
    """The core's communicator and the ways to start operations on it."""

    def __init__(self, core: _core.Communicator) -> None:
        super().__init__(core)
        self._core = core
        self._run_simple = core.run_simple
        self.rank: int = core.rank
        self.size: int = core.size
        self._thread_state = threading.local()
        # Started tasks whose Work nobody may hold any more; a task keeps its arrays alive.
        self._in_flight: set[_core.Task] = set()
        self._in_flight_lock = threading.Lock()

    def _pending(self) -> list[Call] | None:
        return getattr(self._thread_state, "pending", None)

    def _check_outside_group(self, kind: str) -> None:
        if self._pending() is not None:
            raise ArgumentError(f"{kind} inside group(); expected point-to-point calls only")

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
            parts = check_rows(counts, "counts", self.size, width)
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
                np.asarray(target)[...] = landing
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
        self._check_outside_group(kind)
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
                np.asarray(target)[...] = landing
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

    @contextmanager
    def _postponed(self) -> Iterator[list[Call]]:
        """Point-to-point calls of this thread are collected instead of run."""
        outer, calls = self._pending(), list[Call]()
        self._thread_state.pending = calls
        self._begin_group()  # for the calls that do not look at the line above
        try:
            yield calls
        finally:
            self._end_group()
            self._thread_state.pending = outer

    def _run_together(self, calls: list[Call]) -> None:
        if not calls:
            return
        try:
            self._core.run([task for task, _ in calls])
        finally:
            # Also after an error: the other receives have their messages.
            for task, finish in calls:
                if task.succeeded():
                    finish()

    def _start_pair(self, calls: list[Call], description: str) -> Work:
        """Starts a send and a receive; the Work has the result of the receive."""
        send = self._start(*calls[0], description)
        receive = self._start(*calls[1], description)
        return WorkPair(send, receive, description)

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
