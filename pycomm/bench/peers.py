# Runs the same operations with other libraries, so that one table shows both.
"""Other libraries to compare with.

A peer is measured on the same buffers, in turns with pycomm. A further library is one more class
with the methods of `Peer`, entered in `PEERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pycomm.bench.operations import IN_PLACE, Buffers, Case

if TYPE_CHECKING:
    from pycomm.communicator import Communicator


class PeerUnavailable(Exception):
    """A library that was asked for cannot be compared with; the message says why."""


class Peer(Protocol):
    """What the benchmark needs of another library."""

    name: str

    def can(self, operation: str, case: Case) -> bool:
        """Says whether the library has this operation; the answer is the same on all ranks."""
        ...

    def bind(self, operation: str, case: Case, buffers: Buffers) -> Callable[[], object]:
        """Makes the call to time, with everything looked up beforehand."""
        ...


class Mpi4pyPeer:
    """MPI as mpi4py offers it for buffers, on the MPI that launched this job."""

    name = "mpi4py"

    def __init__(self, comm: Communicator) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise PeerUnavailable(f"mpi4py cannot be imported: {error}") from error
        world = MPI.COMM_WORLD
        if world.Get_size() != comm.size:
            raise PeerUnavailable(
                f"mpi4py sees {world.Get_size()} rank(s) and pycomm {comm.size}: "
                "start the benchmark with mpirun"
            )
        self._mpi: Any = MPI
        # The same numbering of ranks, and a context of its own.
        self._world: Any = world.Split(0, comm.rank)
        self._ops = {
            "sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX,
            "band": MPI.BAND, "bor": MPI.BOR, "bxor": MPI.BXOR,
        }  # fmt: skip

    def can(self, operation: str, case: Case) -> bool:
        """Says whether mpi4py has this operation. MPI averages nothing, nor adds 16-bit floats."""
        if operation in ("all_reduce", "reduce_scatter", "reduce"):
            return (
                case.op in self._ops and case.dtype.kind in "iufc" and case.dtype.name != "float16"
            )
        return hasattr(self, f"_{operation}")

    def bind(self, operation: str, case: Case, buffers: Buffers) -> Callable[[], object]:
        """Makes the call to time."""
        bound: Callable[[], object] = getattr(self, f"_{operation}")(case, buffers)
        return bound

    # Each of the following returns the call for one operation. `_raw` lets MPI move types that it
    # does not know.

    def _all_reduce(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        send = self._mpi.IN_PLACE if case.place == IN_PLACE else buffers.send
        return partial(self._world.Allreduce, send, buffers.recv, self._ops[case.op])

    def _reduce_scatter(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        function = self._world.Reduce_scatter_block
        if case.place == IN_PLACE:
            return partial(function, self._mpi.IN_PLACE, buffers.send, self._ops[case.op])
        return partial(function, buffers.send, buffers.recv, self._ops[case.op])

    def _all_gather(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        send = self._mpi.IN_PLACE if case.place == IN_PLACE else _raw(buffers.send)
        return partial(self._world.Allgather, send, _raw(buffers.recv))

    def _broadcast(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        return partial(self._world.Bcast, _raw(buffers.recv), case.root)

    def _reduce(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        send, recv = buffers.send, buffers.recv if case.is_root else None
        if case.is_root and case.place == IN_PLACE:
            send = self._mpi.IN_PLACE
        return partial(self._world.Reduce, send, recv, self._ops[case.op], case.root)

    def _gather(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        send = _raw(buffers.send)
        recv = _raw(buffers.recv) if case.is_root else None
        if case.is_root and case.place == IN_PLACE:
            send = self._mpi.IN_PLACE
        return partial(self._world.Gather, send, recv, case.root)

    def _scatter(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        send = _raw(buffers.send) if case.is_root else None
        recv = _raw(buffers.recv)
        if case.is_root and case.place == IN_PLACE:
            recv = self._mpi.IN_PLACE
        return partial(self._world.Scatter, send, recv, case.root)

    def _all_to_all(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        return partial(self._world.Alltoall, _raw(buffers.send), _raw(buffers.recv))

    def _barrier(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        barrier: Callable[[], object] = self._world.Barrier
        return barrier

    def _sendrecv(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        send = partial(self._world.Send, _raw(buffers.send), case.other)
        recv = partial(self._world.Recv, _raw(buffers.recv), case.other)
        first, second = (send, recv) if case.rank == case.pair[0] else (recv, send)

        def ping_pong() -> None:
            first()
            second()

        return ping_pong


def _raw(array: Any) -> Any:
    return array if array.dtype.kind in "biufc" else array.view(np.uint8)


PEERS: dict[str, Callable[[Communicator], Peer]] = {"mpi4py": Mpi4pyPeer}
