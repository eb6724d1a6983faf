"""What stages send each other: a small header, then the arrays it announces.

The header carries shapes and dtypes, so a step may have other shapes than the one before, and the
boundary between two stages may be one array or a tuple of arrays, some without gradient. As int64
numbers:

    [ stage | op | microbatch | rows | layout | array 0: dtype, axes, lengths... | array 1: ... ]

`stage`, `op` and `microbatch` repeat the sending action, so a message in the wrong place is
noticed. Header and arrays have one tag, which keeps their order; zero-length arrays are announced
and not sent.

Both ends are non-blocking. The outbox lets `buffers` messages per channel be on their way before
a send waits, as the verifier assumed. The inbox posts the next receives of each channel early and
takes the arrays in whenever the runner passes by, so that messages arrive during computation.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from pycomm.errors import ArgumentError, MismatchError
from pycomm.nn import Array
from pycomm.parallel.schedules import SENDS, Action, neighbour

if TYPE_CHECKING:
    from pycomm.communicator import Communicator
    from pycomm.work import Work

HEADER_LENGTH = 128
_DTYPES = [
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128", ml_dtypes.bfloat16),
    )
]
_NO_ARRAY = -1
_SKIPPED, _NOTHING, _ONE_ARRAY = -3, -2, -1  # layouts; 0 and more is a tuple of that many entries


@dataclass
class Message:
    """A value between two stages.

    Attributes:
        value: An array, a tuple of arrays and None, or None (no gradient at all).
        rows: Rows of its microbatch.
        skip: The microbatch is empty, nothing is computed for it.
    """

    value: Any
    rows: int
    skip: bool = False


@dataclass
class _Arriving:
    """A receive under way: first its header, then its arrays."""

    action: Action
    header: Array
    header_work: Work
    message: Message | None = None
    array_works: list[Work] = field(default_factory=list)


class Outbox:
    """Sends messages, at most `buffers` per channel ahead of their receiver.

    Args:
        comm: The ranks of the pipeline.
        owner: Which rank each stage is on.
        microbatches: Microbatches per step; they make the tags.
        buffers: Messages per channel that may be on their way.
    """

    def __init__(
        self, comm: Communicator, owner: Mapping[int, int], microbatches: int, buffers: int
    ) -> None:
        self._comm = comm
        self._owner = owner
        self._microbatches = microbatches
        self._buffers = buffers
        self._on_way: defaultdict[tuple[int, str], deque[list[Work]]] = defaultdict(deque)
        self.seconds = 0.0

    def send(self, action: Action, message: Message) -> None:
        """Start sending; waits only while the channel's buffers are all on their way."""
        started = perf_counter()
        channel = self._on_way[action.stage, action.op]
        while len(channel) >= self._buffers:
            _wait_all(channel.popleft())
        dst = self._owner[neighbour(action.stage, action.op)]
        tag = _tag(action, self._microbatches)
        header, arrays = _encode(action, message)
        channel.append(
            [self._comm.send(array, dst, tag=tag, async_op=True) for array in (header, *arrays)]
        )
        self.seconds += perf_counter() - started

    def flush(self) -> None:
        """Wait until everything was received."""
        started = perf_counter()
        for channel in self._on_way.values():
            while channel:
                _wait_all(channel.popleft())
        self.seconds += perf_counter() - started


class Inbox:
    """Receives the messages of one step, in the order in which the actions will ask for them.

    Args:
        comm: The ranks of the pipeline.
        owner: Which rank each stage is on.
        microbatches: Microbatches per step; they make the tags.
        buffers: Receives per channel that are posted ahead.
        actions: The receives of this rank's list, in order.
    """

    def __init__(
        self,
        comm: Communicator,
        owner: Mapping[int, int],
        microbatches: int,
        buffers: int,
        actions: Iterable[Action],
    ) -> None:
        self._comm = comm
        self._owner = owner
        self._microbatches = microbatches
        self._to_post: defaultdict[tuple[int, str], deque[Action]] = defaultdict(deque)
        self._posted: dict[Action, _Arriving] = {}
        self.seconds = 0.0
        for action in actions:
            self._to_post[action.stage, action.op].append(action)
        for channel in self._to_post:
            for _ in range(buffers):
                self._post_next(channel)

    def advance(self) -> None:
        """Take in what has arrived, without waiting."""
        for arriving in self._posted.values():
            if arriving.message is None and arriving.header_work.done():
                self._open(arriving)

    def take(self, action: Action) -> Message:
        """Wait for the message of a receive, and post another receive in its place."""
        started = perf_counter()
        arriving = self._posted.pop(action)
        message = arriving.message or self._open(arriving)
        _wait_all(arriving.array_works)
        self._post_next((action.stage, action.op))
        self.advance()
        self.seconds += perf_counter() - started
        return message

    def _post_next(self, channel: tuple[int, str]) -> None:
        if self._to_post[channel]:
            action = self._to_post[channel].popleft()
            header = np.zeros(HEADER_LENGTH, np.int64)
            work = self._comm.recv(header, *self._source(action), async_op=True)
            self._posted[action] = _Arriving(action, header, work)

    def _open(self, arriving: _Arriving) -> Message:
        """Wait for the header and post the receives of its arrays."""
        arriving.header_work.wait()
        message = arriving.message = _decode(arriving.action, arriving.header)
        src, tag = self._source(arriving.action)
        arriving.array_works = [
            self._comm.recv(array, src, tag=tag, async_op=True) for array in _sent(message.value)
        ]
        return message

    def _source(self, action: Action) -> tuple[int, int]:
        sender = neighbour(action.stage, action.op)
        tag = _tag(Action(sender, "S" + action.op[1], action.microbatch), self._microbatches)
        return self._owner[sender], tag


def _tag(send: Action, microbatches: int) -> int:
    """Return the tag of a send, of its own for every action of a step."""
    return (send.stage * len(SENDS) + SENDS.index(send.op)) * microbatches + send.microbatch


def _wait_all(works: Iterable[Work]) -> None:
    for work in works:
        work.wait()


def _sent(value: Any) -> list[Array]:
    """Return the arrays of a value that have bytes to move."""
    entries = value if isinstance(value, tuple) else (value,)
    return [array for array in entries if array is not None and array.size]


def _encode(action: Action, message: Message) -> tuple[Array, list[Array]]:
    """Return a message's header and its arrays, contiguous."""
    value = message.value
    entries = value if isinstance(value, tuple) else () if value is None else (value,)
    if isinstance(value, tuple):
        layout = len(value)
    elif value is not None:
        layout = _ONE_ARRAY
    else:
        layout = _SKIPPED if message.skip else _NOTHING
    fields = [action.stage, SENDS.index(action.op), action.microbatch, message.rows, layout]
    for array in entries:
        if array is None:
            fields.append(_NO_ARRAY)
        elif not hasattr(array, "dtype") or array.dtype not in _DTYPES:
            kind = getattr(array, "dtype", type(array).__name__)
            raise ArgumentError(f"{action}: stages exchange arrays of numbers, not {kind}")
        else:
            fields += [_DTYPES.index(array.dtype), array.ndim, *array.shape]
    if len(fields) > HEADER_LENGTH:
        raise ArgumentError(
            f"{action}: {len(entries)} arrays with their shapes do not fit into a header of "
            f"{HEADER_LENGTH} numbers"
        )
    header = np.zeros(HEADER_LENGTH, np.int64)
    header[: len(fields)] = fields
    return header, [np.ascontiguousarray(a).reshape(a.shape) for a in _sent(value)]


def _decode(receive: Action, header: Array) -> Message:
    """Return the announced message, its arrays still to be filled."""
    fields = iter(header.tolist())
    stage, op, microbatch, rows, layout = (next(fields) for _ in range(5))
    sender = Action(neighbour(receive.stage, receive.op), "S" + receive.op[1], receive.microbatch)
    if (stage, op, microbatch) != (sender.stage, SENDS.index(sender.op), sender.microbatch):
        raise MismatchError(
            f"{receive}: expected the message of {sender}, got that of "
            f"{Action(stage, SENDS[op % len(SENDS)], microbatch)}"
        )
    if layout in (_SKIPPED, _NOTHING):
        return Message(None, rows, skip=layout == _SKIPPED)

    def array() -> Array | None:
        code = next(fields)
        if code == _NO_ARRAY:
            return None
        shape = [next(fields) for _ in range(next(fields))]
        return np.empty(shape, _DTYPES[code])

    if layout == _ONE_ARRAY:
        return Message(array(), rows)
    return Message(tuple(array() for _ in range(layout)), rows)
