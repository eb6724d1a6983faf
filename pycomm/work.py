"""Started operations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pycomm._arrays import check_timeout
from pycomm.errors import CommTimeoutError

if TYPE_CHECKING:
    from pycomm._core import Task

__all__ = ["Work", "WorkPair"]


class Work:
    """An operation that was started with ``async_op=True``.

    It goes on whether or not anyone waits for it, and keeps its arrays alive until it is finished.
    Inputs must not be changed and outputs not be used before :meth:`wait` has returned. May be used
    from any thread.
    """

    def __init__(
        self,
        task: Task,
        finish: Callable[[], Any],
        release: Callable[[Task], None],
        description: str,
    ) -> None:
        self._task = task
        self._finish: Callable[[], Any] | None = finish
        # Bound to the communicator, which lives as long as the operation.
        self._release: Callable[[Task], None] | None = release
        self._value: Any = None
        self._description = description
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until the operation is finished and returns its result.

        Args:
            timeout: Seconds to wait at most; None waits until the operation's own deadline. When it
                passes, the operation goes on and may be waited for again.

        Raises:
            CommTimeoutError: ``timeout`` passed, or the operation's own deadline did.
            CommError: The error with which the operation ended; raised again at every call.
        """
        seconds = check_timeout(timeout)
        try:
            finished = self._task.wait(seconds)
        except BaseException:
            if self._task.done():
                self._let_go()
            raise
        if not finished:
            waiting = self._task.waiting_on()
            raise CommTimeoutError(
                f"{self._description} is not finished after {seconds} s: waiting for rank "
                f"{', '.join(map(str, waiting))}; it goes on and may be waited for again",
                waiting,
            )
        return self._settle()

    def done(self) -> bool:
        """Whether it is finished, with a result or an error. Never blocks."""
        return self._task.done()

    def result(self) -> Any:
        """The same as :meth:`wait` without timeout."""
        return self.wait()

    def exception(self) -> BaseException | None:
        """The error it ended with, or None. Blocks until it is finished."""
        try:
            self.wait()
        except Exception as error:
            return error
        return None

    def _settle(self) -> Any:
        """Completes the result on the first call (for example copies it into a strided array)."""
        with self._lock:
            if self._finish is not None:
                self._value = self._finish()
                self._finish = None
        self._let_go()
        return self._value

    def _let_go(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release(self._task)

    def __repr__(self) -> str:
        return f"<Work {self._description}, {'finished' if self.done() else 'in flight'}>"


class WorkPair(Work):
    """A send and a receive that are waited for as one; the result is the receive's."""

    def __init__(self, send: Work, receive: Work, description: str) -> None:
        self._send = send
        self._receive = receive
        self._description = description

    def wait(self, timeout: float | None = None) -> Any:
        """As :meth:`Work.wait`; an error of either is raised."""
        seconds = check_timeout(timeout)
        end = None if seconds is None else time.monotonic() + seconds
        result = self._receive.wait(seconds)
        # A moment at least: what is finished needs no time.
        self._send.wait(None if end is None else max(end - time.monotonic(), 1e-6))
        return result

    def done(self) -> bool:
        """Whether both are finished. Never blocks."""
        return self._send.done() and self._receive.done()
