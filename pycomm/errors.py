"""The exceptions of pycomm.

Every failure of communication is a :class:`CommError`; the subclasses also derive from the built-in
exception that fits, so ``except ValueError`` or ``except TimeoutError`` work as expected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = [
    "AbortedError",
    "ArgumentError",
    "CommError",
    "CommTimeoutError",
    "MismatchError",
    "OutOfMemoryError",
    "PeerLostError",
    "TransportError",
]


class CommError(RuntimeError):
    """Base of all errors of pycomm.

    Attributes:
        ranks: The ranks the error is about; empty when it is about none in particular.
    """

    def __init__(self, message: str = "", ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks: tuple[int, ...] = tuple(ranks)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.ranks)


class ArgumentError(CommError, ValueError):
    """An argument is not acceptable. Nothing was sent and the communicator is intact."""


class MismatchError(CommError):
    """Ranks called different operations, or with arguments that do not belong together.

    After mismatched collectives the communicator is broken. After a point-to-point message of the
    wrong size or dtype it is intact: the message is dropped.
    """


class CommTimeoutError(CommError, TimeoutError):
    """A deadline passed. Unless it was that of ``Work.wait``, the communicator is broken."""

    @property
    def missing(self) -> list[int]:
        """The ranks that were waited for."""
        return list(self.ranks)


class PeerLostError(CommError, ConnectionError):
    """The process of a peer has ended, or it closed its communicator, while it was needed."""

    @property
    def rank(self) -> int:
        """The lost rank, -1 when unknown."""
        return self.ranks[0] if self.ranks else -1


class TransportError(CommError, OSError):
    """The operating system refused a resource: a port, a connection, shared memory."""


class AbortedError(CommError):
    """The communicator was aborted, closed or interrupted, by this rank or another."""


class OutOfMemoryError(CommError, MemoryError):
    """There is not enough memory for an array that was asked for. The communicator is intact."""
