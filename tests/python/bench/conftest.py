# A communicator of threads that works with NumPy alone, slow and simple: the benchmark is tested
# against it, so that a wrong result can be put in at will and no error of the core hides one here.
from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

LIMIT_S = 30.0


class Meeting:
    """What the threads share: one place per rank, and a barrier around its use."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=LIMIT_S)
        self.places: list[Any] = [None] * size
        self.mail: dict[tuple[int, int], list[Any]] = {}
        self.arrived = threading.Condition()


class FakeComm:
    """The operations that the benchmark calls. `corrupt` may change an output before it is seen."""

    num_nodes = 1

    def __init__(
        self,
        meeting: Meeting,
        rank: int,
        corrupt: Callable[[str, int, Any], None] = lambda name, rank, out: None,
    ) -> None:
        self.rank = rank
        self.size = self.local_size = meeting.size
        self.calls: list[str] = []
        self._meeting = meeting
        self._corrupt = corrupt

    def _exchange(self, value: Any) -> list[Any]:
        meeting = self._meeting
        meeting.barrier.wait()
        meeting.places[self.rank] = None if value is None else np.array(value)
        meeting.barrier.wait()
        return list(meeting.places)

    def _give(self, name: str, out: Any, result: Any) -> Any:
        self.calls.append(name)
        out[...] = result
        self._corrupt(name, self.rank, out)
        return out

    def _reduce(self, parts: Sequence[Any], op: str) -> Any:
        """Reduces from left to right and rounds each time: right data is exact even so."""
        function = {
            "sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum,
            "max": np.maximum, "band": np.bitwise_and, "bor": np.bitwise_or,
            "bxor": np.bitwise_xor,
        }[op]  # fmt: skip
        total = parts[0]
        with np.errstate(over="ignore"):  # a product in place grows with each call
            for part in parts[1:]:
                total = function(total, part)
        if op == "avg":
            real = total.view(total.real.dtype) if total.dtype.kind == "c" else total
            total = (real / self.size).astype(real.dtype).view(total.dtype)
        return total

    def barrier(self) -> None:
        self._meeting.barrier.wait()

    def all_reduce(self, x: Any, op: str = "sum", out: Any = None) -> Any:
        parts = self._exchange(x)
        return self._give("all_reduce", x if out is None else out, self._reduce(parts, op))

    def reduce_scatter(self, x: Any, op: str = "sum", out: Any = None) -> Any:
        total = self._reduce(self._exchange(x), op)
        return self._give("reduce_scatter", out, np.array_split(total, self.size)[self.rank])

    def all_gather(self, x: Any, out: Any = None) -> Any:
        parts = self._exchange(x)
        if out is None:
            return np.concatenate(parts)
        return self._give("all_gather", out, np.concatenate(parts))

    def broadcast(self, x: Any, root: int = 0) -> Any:
        return self._give("broadcast", x, self._exchange(x)[root])

    def reduce(self, x: Any, root: int = 0, op: str = "sum", out: Any = None) -> Any:
        parts = self._exchange(x)
        if self.rank != root:
            return None
        return self._give("reduce", x if out is None else out, self._reduce(parts, op))

    def gather(self, x: Any, root: int = 0, out: Any = None) -> Any:
        parts = self._exchange(x)
        if self.rank != root:
            return None
        return self._give("gather", out, np.concatenate(parts))

    def scatter(self, x: Any, root: int = 0, out: Any = None) -> Any:
        whole = self._exchange(x)[root]
        return self._give("scatter", out, np.array_split(whole, self.size)[self.rank])

    def all_to_all(self, x: Any, out: Any = None) -> Any:
        parts = [np.array_split(part, self.size)[self.rank] for part in self._exchange(x)]
        return self._give("all_to_all", out, np.concatenate(parts))

    def send(self, x: Any, dst: int) -> None:
        meeting = self._meeting
        with meeting.arrived:
            meeting.mail.setdefault((self.rank, dst), []).append(np.array(x))
            meeting.arrived.notify_all()

    def recv(self, out: Any, src: int) -> Any:
        meeting = self._meeting
        queue = meeting.mail.setdefault((src, self.rank), [])
        with meeting.arrived:
            assert meeting.arrived.wait_for(lambda: queue, timeout=LIMIT_S)
            message = queue.pop(0)
        return self._give("recv", out, message)


@pytest.fixture
def on_ranks() -> Callable[..., list[Any]]:
    """Returns run(size, function, corrupt=...): calls function(comm) on `size` threads."""

    def run(size: int, function: Callable[[Any], Any], **options: Any) -> list[Any]:
        meeting = Meeting(size)
        comms = [FakeComm(meeting, rank, **options) for rank in range(size)]

        def call(comm: FakeComm) -> Any:
            try:
                return function(comm)
            except BaseException:
                meeting.barrier.abort()
                raise

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(call, comms))

    return run
