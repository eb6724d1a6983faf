# Runs the same operations with other libraries, so that one table shows both.
"""Other libraries to compare with.

A peer is measured on the same sizes, in turns with pycomm. A further library is one more class with
the methods of `Peer`, entered in `PEERS`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pycomm._mpi import mpi_is_running
from pycomm.bench.data import Array
from pycomm.bench.operations import IN_PLACE, Buffers, Case
from pycomm.bench.torch_peer import GlooPeer, nccl_obstacle

if TYPE_CHECKING:
    from pycomm.communicator import Communicator


class Peer(Protocol):
    """What the benchmark needs of another library."""

    name: str

    def close(self) -> None:
        """Releases what the library holds; all ranks call it."""
        ...

    def can(self, operation: str, case: Case) -> bool:
        """Says whether the library has this operation; the answer is the same on all ranks."""
        ...

    def bind(self, operation: str, case: Case, buffers: Buffers) -> Callable[[], object]:
        """Makes the call to time, with everything looked up beforehand."""
        ...

    def result(self, operation: str, case: Case, buffers: Buffers) -> Array:
        """Says where the call leaves its result."""
        ...


class Mpi4pyPeer:
    """MPI as mpi4py offers it for buffers, on the MPI that launched this job."""

    name = "mpi4py"

    @staticmethod
    def obstacle(comm: Communicator) -> str | None:
        """Says why this rank cannot use it; None when it can."""
        if importlib.util.find_spec("mpi4py") is None:
            return "mpi4py is not installed"
        # Alone it would become a world of one process, with some MPIs after a long wait.
        if not mpi_is_running():
            return "MPI is not running: start the benchmark with mpirun"
        from mpi4py import MPI

        ranks = MPI.COMM_WORLD.Get_size()
        if ranks != comm.size:
            return f"mpi4py sees {ranks} rank(s) and pycomm {comm.size}"
        return None

    def __init__(self, comm: Communicator) -> None:
        from mpi4py import MPI

        self._mpi: Any = MPI
        # The same numbering of ranks, and a context of its own.
        self._world: Any = MPI.COMM_WORLD.Split(0, comm.rank)
        self._ops = {
            "sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX,
            "band": MPI.BAND, "bor": MPI.BOR, "bxor": MPI.BXOR,
        }  # fmt: skip

    def close(self) -> None:
        """Releases the communicator."""
        self._world.Free()

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

    def result(self, operation: str, case: Case, buffers: Buffers) -> Array:
        """Says where the result is: MPI's reduce_scatter in place leaves it at the start."""
        if operation == "reduce_scatter" and case.place == IN_PLACE:
            return buffers.send[: case.slice]
        return buffers.recv

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


@dataclass(frozen=True)
class Library:
    """How to get at another library.

    Attributes:
        obstacle: Says why this rank cannot use it; None when it can.
        make: Makes it, on all ranks together when none has an obstacle; None: there always is one.
    """

    obstacle: Callable[[Communicator], str | None]
    make: Callable[[Communicator], Peer] | None


PEERS = {
    "mpi4py": Library(Mpi4pyPeer.obstacle, Mpi4pyPeer),
    "gloo": Library(GlooPeer.obstacle, GlooPeer),
    "nccl": Library(nccl_obstacle, None),
}


def find_peers(names: Sequence[str], comm: Communicator) -> tuple[list[Peer], dict[str, str]]:
    """Makes those of the libraries that every rank can use. All ranks call it.

    Args:
        names: Names in `PEERS`.
        comm: The communicator to compare.

    Returns:
        The libraries, and why the others cannot be used, by name: the same on every rank.
    """
    own = {name: PEERS[name].obstacle(comm) for name in names}
    by_rank: list[dict[str, str | None]] = comm.all_gather_object(own)
    obstacles: dict[str, str] = {}
    for rank, found in enumerate(by_rank):
        for name, text in found.items():
            if text is not None and name not in obstacles:
                where = "" if rank == 0 else f" (rank {rank})"
                obstacles[name] = text + where
    makers = [PEERS[name].make for name in names if name not in obstacles]
    return [make(comm) for make in makers if make is not None], obstacles
