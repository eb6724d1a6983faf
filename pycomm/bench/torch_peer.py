# PyTorch's collectives: Gloo, on memory of the host; NCCL, which works on GPUs only, is looked for.
"""Gloo and NCCL, as torch.distributed offers them."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pycomm.bench.data import Array
from pycomm.bench.operations import IN_PLACE, Buffers, Case

if TYPE_CHECKING:
    from pycomm.communicator import Communicator

_REDUCTIONS = {
    "sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX",
    "band": "BAND", "bor": "BOR", "bxor": "BXOR",
}  # fmt: skip
# What Gloo adds up; other types are only moved.
_ADDED = ("int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


class GlooPeer:
    """torch.distributed on Gloo, which reduces in place only."""

    name = "gloo"

    @staticmethod
    def obstacle(comm: Communicator) -> str | None:
        """Says why this rank cannot use it; None when it can."""
        missing = _torch_missing()
        if missing is not None:
            return missing
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_gloo_available():
            return "this torch was built without Gloo"
        if dist.is_initialized():
            return "the program uses torch.distributed itself"
        return None

    def __init__(self, comm: Communicator) -> None:
        import torch
        import torch.distributed as dist

        self._torch: Any = torch
        self._dist: Any = dist
        host = "127.0.0.1"
        if comm.num_nodes == 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        else:
            host = socket.gethostbyname(socket.gethostname())
        limit = timedelta(seconds=comm.timeout)
        store = None
        if comm.rank == 0:
            store = dist.TCPStore(host, 0, comm.size, True, limit, wait_for_workers=False)
        address = np.zeros(5, np.int64)
        if store is not None:
            address[:] = [*map(int, host.split(".")), store.port]
        comm.broadcast(address)
        if store is None:
            host = ".".join(str(part) for part in address[:4])
            store = dist.TCPStore(host, int(address[4]), comm.size, False, limit)
        dist.init_process_group(
            "gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=limit
        )

    def close(self) -> None:
        """Ends the process group; all ranks call it."""
        self._dist.destroy_process_group()

    def can(self, operation: str, case: Case) -> bool:
        """Says whether Gloo can do this, and the way pycomm does."""
        if operation in ("all_reduce", "reduce_scatter", "reduce"):
            if case.op not in _REDUCTIONS or case.dtype.name not in _ADDED:
                return False
            if case.op in ("band", "bor", "bxor") and case.dtype.kind not in "iu":
                return False
        if operation in ("all_reduce", "reduce"):
            return case.place == IN_PLACE
        return case.place != IN_PLACE or operation == "broadcast"

    def bind(self, operation: str, case: Case, buffers: Buffers) -> Callable[[], object]:
        """Makes the call to time."""
        bound: Callable[[], object] = getattr(self, f"_{operation}")(case, buffers)
        return bound

    def result(self, operation: str, case: Case, buffers: Buffers) -> Array:
        """Says where the result is."""
        return buffers.recv

    # Each of the following returns the call for one operation.

    def _op(self, case: Case) -> Any:
        return getattr(self._dist.ReduceOp, _REDUCTIONS[case.op])

    def _all_reduce(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        return partial(self._dist.all_reduce, self._tensor(buffers.recv), self._op(case))

    def _reduce_scatter(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        # The newer name first: the older one warns where both exist.
        name = _first(self._dist, "reduce_scatter_single", "reduce_scatter_tensor")
        send, recv = self._tensor(buffers.send), self._tensor(buffers.recv)
        return partial(name, recv, send, self._op(case))

    def _all_gather(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        name = _first(self._dist, "all_gather_single", "all_gather_into_tensor")
        return partial(name, self._tensor(buffers.recv), self._tensor(buffers.send))

    def _broadcast(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        return partial(self._dist.broadcast, self._tensor(buffers.recv), case.root)

    def _reduce(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        # In place the root's input is its output.
        return partial(self._dist.reduce, self._tensor(buffers.send), case.root, self._op(case))

    def _gather(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        parts = list(self._tensor(buffers.recv).chunk(case.ranks)) if case.is_root else None
        return partial(self._dist.gather, self._tensor(buffers.send), parts, case.root)

    def _scatter(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        parts = list(self._tensor(buffers.send).chunk(case.ranks)) if case.is_root else None
        return partial(self._dist.scatter, self._tensor(buffers.recv), parts, case.root)

    def _all_to_all(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        send, recv = self._tensor(buffers.send), self._tensor(buffers.recv)
        return partial(self._dist.all_to_all_single, recv, send)

    def _barrier(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        barrier: Callable[[], object] = self._dist.barrier
        return barrier

    def _sendrecv(self, case: Case, buffers: Buffers) -> Callable[[], object]:
        send = partial(self._dist.send, self._tensor(buffers.send), case.other)
        recv = partial(self._dist.recv, self._tensor(buffers.recv), case.other)
        first, second = (send, recv) if case.rank == case.pair[0] else (recv, send)

        def ping_pong() -> None:
            first()
            second()

        return ping_pong

    def _tensor(self, array: Any) -> Any:
        """The array's memory as a tensor: of its type, or of bytes where that is only moved."""
        if array.dtype.name == "bfloat16":
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        if array.dtype.name in _ADDED:
            return self._torch.from_numpy(array)
        return self._torch.from_numpy(array.view(np.uint8))


def nccl_obstacle(comm: Communicator) -> str:
    """Says why NCCL is not compared with: it works on memory of GPUs, pycomm on the host's."""
    missing = _torch_missing()
    if missing is None:
        import torch
        import torch.distributed as dist

        if dist.is_nccl_available():
            if not torch.cuda.is_available():
                return "it is installed, but there is no GPU"
            return "it works on memory of GPUs, which pycomm's arrays are not in"
        missing = "this torch was built without NCCL"
    if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.nccl"):
        return f"the library is installed, but {missing}"
    return missing


def _torch_missing() -> str | None:
    """Says why torch cannot be imported; None when it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        return f"torch cannot be imported: {error}"
    return None


def _first(module: Any, *names: str) -> Any:
    return next(getattr(module, name) for name in names if hasattr(module, name))
