"""Random operations of every kind, one after the other and many at once, each result checked.

All ranks draw the same calls from the shared generator; how a rank makes a call (in place, strided,
in symmetric or private memory, asynchronous, with a delay before it, how long it lets it run) it
draws from one of its own. For longer runs, with progress, from tests/python:

    python -m core.soak SEED OPERATIONS RANKS LAUNCHER [TRANSPORT]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
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

from pycomm import _core

Check = Callable[[Any], None]
MOST_IN_FLIGHT = 12
# Elements around the sizes at which operations change their way.
BOUNDARIES = (8, 32, 1024, 2048, 8192, 16384, 32768, 131072, 262144)


class Soak:
    """The state of one rank."""

    def __init__(self, comm: Any, seed: int) -> None:
        self.world = comm
        self.comm = comm
        self.shared = np.random.default_rng(seed)
        self.own = np.random.default_rng([seed, comm.rank])
        self.in_flight: list[tuple[Any, Check]] = []
        self.turn = 0
        self.done: dict[str, int] = {}
        self.handler = _core.make_handler(comm._core, 1)  # of symmetric memory, or None

    def run(self, operations: int, progress: bool = False) -> dict[str, int]:
        names = [name[3:] for name in dir(self) if name.startswith("do_")]
        # Messages and reductions are the commonest; a split is rare.
        weights = np.array([WEIGHTS.get(name, 2.0) for name in names])
        for self.turn in range(operations):
            if progress and self.world.rank == 0 and self.turn % 1000 == 0:
                print(f"{self.turn} of {operations}", flush=True)
            name = str(self.shared.choice(names, p=weights / weights.sum()))
            self.done[name] = self.done.get(name, 0) + 1
            if self.own.random() < 0.01:
                time.sleep(self.own.exponential(0.003))
            getattr(self, f"do_{name}")()
            while self.in_flight and (
                len(self.in_flight) > MOST_IN_FLIGHT or self.own.random() < 0.25
            ):
                self.finish(int(self.own.integers(len(self.in_flight))))
        self.finish_all()
        return self.done

    # ---- how a call is made ------------------------------------------------------------------

    def issue(self, call: Callable[..., Any], verify: Check) -> None:
        """Makes a call in this rank's way and has its result checked, now or later."""
        if self.own.random() < 0.5:
            verify(call())
        else:
            self.in_flight.append((call(async_op=True), verify))

    def finish(self, index: int) -> None:
        work, verify = self.in_flight.pop(index)
        verify(work.wait())

    def finish_all(self) -> None:
        while self.in_flight:
            self.finish(0)

    def layout(self, x: Array) -> Array:
        """The same elements, in a copy of some layout, in either kind of memory."""
        if self.handler is None or self.own.random() < 0.4:
            return self.any_layout(x)
        before = _core.set_handler(self.handler)
        try:
            return self.any_layout(x)
        finally:
            _core.set_handler(before)

    def any_layout(self, x: Array) -> Array:
        kind = int(self.own.integers(6))
        if kind == 0 and x.ndim:
            return np.array(x[::-1], order="C")[::-1]
        if kind == 1 and x.ndim:
            base = sentinel((2 * x.shape[0], *x.shape[1:]), x.dtype.name)
            base[::2] = x
            return base[::2]
        if kind == 2:
            return np.array(x, order="F")
        return x.copy()

    def output(self, shape: tuple[int, ...], name: str) -> Array | None:
        if self.own.random() < 0.3:
            return None
        return self.layout(sentinel(shape, name))

    # ---- what is drawn by all ----------------------------------------------------------------

    def dtype(self) -> str:
        return str(self.shared.choice(DTYPES))

    def op(self, name: str) -> str:
        return str(self.shared.choice(ops_of(name)))

    def count(self) -> int:
        kind = self.shared.random()
        if kind > 0.97:
            return int(self.shared.choice(BOUNDARIES) + self.shared.integers(-1, 2))
        limit = 2 if kind < 0.1 else 40 if kind < 0.5 else 2000 if kind < 0.96 else 300_000
        return int(self.shared.integers(limit))

    def shape(self) -> tuple[int, ...]:
        rows = self.count()
        kind = int(self.shared.integers(4))
        return () if kind == 0 and rows < 5 else (rows,) if kind < 3 else (rows // 3, 3)

    def root(self) -> int:
        return int(self.shared.integers(self.comm.size))

    def counts(self, most: int) -> list[int]:
        counts = self.shared.integers(0, most + 1, self.comm.size)
        counts[self.shared.random(self.comm.size) < 0.3] = 0
        return [int(n) for n in counts]

    def parts(self, shapes: list[tuple[int, ...]], name: str) -> list[Array]:
        return [constant(r, shape, name, salt=self.turn) for r, shape in enumerate(shapes)]

    def expect(self, expected: Array | None, what: str) -> Check:
        text = f"turn {self.turn}, rank {self.comm.rank}: {what}"

        def verify(result: Any) -> None:
            if expected is None:
                assert result is None, text
            else:
                check(result, expected, text)

        return verify

    # ---- operations --------------------------------------------------------------------------

    def do_all_reduce(self) -> None:
        comm, name, shape = self.comm, self.dtype(), self.shape()
        op = self.op(name)
        parts, total = constants(comm.size, shape, name, op, self.turn)
        x = self.layout(parts[comm.rank])
        out = self.output(shape, name)
        self.issue(
            lambda **how: comm.all_reduce(x, op, out, **how),
            self.expect(total, f"all_reduce {op} {name} {shape}"),
        )

    def do_reduce(self) -> None:
        comm, name, shape, root = self.comm, self.dtype(), self.shape(), self.root()
        op = self.op(name)
        parts, total = constants(comm.size, shape, name, op, self.turn)
        x, out = self.layout(parts[comm.rank]), self.output(shape, name)
        expected = total if comm.rank == root else None
        self.issue(
            lambda **how: comm.reduce(x, root, op, out, **how),
            self.expect(expected, f"reduce {op} {name} {shape}"),
        )

    def do_broadcast(self) -> None:
        comm, name, shape, root = self.comm, self.dtype(), self.shape(), self.root()
        expected = constant(root, shape, name, salt=self.turn)
        x = self.layout(expected if comm.rank == root else sentinel(shape, name))
        self.issue(
            lambda **how: comm.broadcast(x, root, **how),
            self.expect(expected, f"broadcast {name} {shape}"),
        )

    def do_reduce_scatter(self) -> None:
        comm, name, rows = self.comm, self.dtype(), self.count()
        op, width = self.op(name), int(self.shared.integers(1, 4))
        explicit = self.counts(rows) if self.shared.random() < 0.5 else None
        sizes = split_rows(rows, comm.size) if explicit is None else explicit
        parts, total = constants(comm.size, (sum(sizes), width), name, op, self.turn)
        expected = total[slices(sizes)[comm.rank]]
        x, out = self.layout(parts[comm.rank]), self.output(expected.shape, name)
        self.issue(
            lambda **how: comm.reduce_scatter(x, op, out, explicit, **how),
            self.expect(expected, f"reduce_scatter {op} {name} {explicit or rows}"),
        )

    def joined(self, gather: bool) -> None:
        comm, name, rows, root = self.comm, self.dtype(), self.count(), self.root()
        width = int(self.shared.integers(1, 4))
        explicit = self.counts(rows) if self.shared.random() < 0.5 else None
        sizes = [rows] * comm.size if explicit is None else explicit
        parts = self.parts([(n, width) for n in sizes], name)
        expected = np.concatenate(parts)
        x, out = self.layout(parts[comm.rank]), self.output(expected.shape, name)
        if gather:
            self.issue(
                lambda **how: comm.gather(x, root, out, explicit, **how),
                self.expect(expected if comm.rank == root else None, f"gather {name} {sizes}"),
            )
        else:
            self.issue(
                lambda **how: comm.all_gather(x, out, explicit, **how),
                self.expect(expected, f"all_gather {name} {sizes}"),
            )

    def do_all_gather(self) -> None:
        self.joined(gather=False)

    def do_gather(self) -> None:
        self.joined(gather=True)

    def do_scatter(self) -> None:
        comm, name, rows, root = self.comm, self.dtype(), self.count(), self.root()
        width = int(self.shared.integers(1, 4))
        explicit = self.counts(rows) if self.shared.random() < 0.5 else None
        sizes = split_rows(rows, comm.size) if explicit is None else explicit
        whole = constant(root, (sum(sizes), width), name, salt=self.turn)
        expected = whole[slices(sizes)[comm.rank]]
        x = self.layout(whole) if comm.rank == root else None
        out = self.layout(sentinel(expected.shape, name))
        self.issue(
            lambda **how: comm.scatter(x, root, out, explicit, **how),
            self.expect(expected, f"scatter {name} {explicit or rows}"),
        )

    def do_all_to_all(self) -> None:
        comm, name, rows = self.comm, self.dtype(), self.count() // 2
        size, rank = comm.size, comm.rank
        explicit = self.shared.random() < 0.5
        table = [self.counts(rows) if explicit else split_rows(rows, size) for _ in range(size)]
        parts = self.parts([(sum(row),) for row in table], name)
        expected = np.concatenate([parts[s][slices(table[s])[rank]] for s in range(size)])
        x, out = self.layout(parts[rank]), self.output(expected.shape, name)
        sends = table[rank] if explicit else None
        receives = [table[s][rank] for s in range(size)] if explicit else None
        self.issue(
            lambda **how: comm.all_to_all(x, out, sends, receives, **how),
            self.expect(expected, f"all_to_all {name} {table}"),
        )

    def do_barrier(self) -> None:
        self.issue(self.comm.barrier, self.expect(None, "barrier"))

    def do_messages(self) -> None:
        """Random messages among all, tags repeated; started at once, in this rank's order."""
        comm, size, rank = self.comm, self.comm.size, self.comm.rank
        number = int(self.shared.integers(1, 3 * size))
        calls: list[tuple[Callable[..., Any], Check]] = []
        counters: dict[tuple[int, int, int], int] = {}
        for index in range(number):
            src, dst = self.root(), self.root()
            tag, count, name = int(self.shared.integers(3)), self.count(), self.dtype()
            counters[src, dst, tag] = counters.get((src, dst, tag), 0) + 1
            data = constant(src * 7 + index, count, name, salt=self.turn)
            if rank == src:
                x = self.layout(data)
                calls.append(
                    (
                        lambda x=x, dst=dst, tag=tag, **how: comm.send(x, dst, tag, **how),
                        self.expect(None, f"send to {dst}"),
                    )
                )
            if rank == dst:
                out = self.layout(sentinel(count, name))
                calls.append(
                    (
                        lambda out=out, src=src, tag=tag, **how: comm.recv(out, src, tag, **how),
                        self.expect(data, f"message {index} {name} {count} from {src} tag {tag}"),
                    )
                )
        # Messages of one pair and tag keep their order, so calls are not shuffled.
        if self.own.random() < 0.3:
            with comm.group():
                results = [call() for call, _ in calls]
            assert results == [None] * len(calls)
            return
        for call, verify in calls:
            self.in_flight.append((call(async_op=True), verify))

    def do_ring(self) -> None:
        """A blocking exchange with the neighbours."""
        comm, name, count = self.comm, self.dtype(), self.count()
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        out = self.layout(sentinel(count, name))
        x = self.layout(constant(comm.rank, count, name, salt=self.turn))
        result = comm.sendrecv(x, right, out, left, tag=9)
        self.expect(constant(left, count, name, salt=self.turn), "sendrecv")(result)

    def do_object(self) -> None:
        comm, root = self.comm, self.root()
        if self.shared.random() < 0.5:
            got = comm.broadcast_object({"turn": self.turn} if comm.rank == root else None, root)
            assert got == {"turn": self.turn}
        else:
            got = comm.all_gather_object((self.turn, comm.rank))
            assert got == [(self.turn, r) for r in range(comm.size)]

    def do_split(self) -> None:
        """Goes on in another communicator, in another order of ranks; the last one is closed."""
        self.finish_all()
        keys = self.shared.permutation(self.world.size)
        sub = self.world.split(0, int(keys[self.world.rank]))
        if self.comm is not self.world:
            self.comm.barrier()
            self.comm.close()
        self.comm = sub
        if self.shared.random() < 0.5:  # else memory of another communicator
            self.handler = _core.make_handler(sub._core, 1)

    def do_symmetric(self) -> None:
        comm, count = self.comm, self.count()
        array = comm.empty(count, "int64")
        assert not array.any()
        array[...] = comm.rank + self.turn
        total = comm.size * self.turn + comm.size * (comm.size - 1) // 2
        expected = np.full(count, total, dtype=np.int64)
        self.issue(lambda **how: comm.all_reduce(array, **how), self.expect(expected, "symmetric"))


WEIGHTS = {
    "all_reduce": 6.0,
    "messages": 6.0,
    "ring": 3.0,
    "barrier": 1.0,
    "object": 0.5,
    "split": 0.1,
    "symmetric": 0.3,
}


def soak(comm: Any, seed: int, operations: int, progress: bool = False) -> dict[str, int]:
    return Soak(comm, seed).run(operations, progress)


if __name__ == "__main__":
    from ranks import run_ranks

    words = sys.argv[1:]
    settings = {"PYCOMM_TRANSPORT": words[4]} if len(words) > 4 else {}
    start = time.monotonic()
    for outcome in run_ranks(
        int(words[2]),
        "core.soak:soak",
        int(words[0]),
        int(words[1]),
        True,
        launcher=words[3],
        env=settings,
        timeout=3600,
    ):
        print(outcome.rank, outcome.get())
    print(f"seed {words[0]}: {time.monotonic() - start:.1f} s")
