"""Operations on Python objects: pickled, and carried by the operations on arrays."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from pycomm.errors import CommError

if TYPE_CHECKING:
    from pycomm.communicator import Communicator

__all__ = ["all_gather_object", "broadcast_object"]


def broadcast_object(comm: Communicator, obj: Any, root: int, timeout: float | None) -> Any:
    """See Communicator.broadcast_object; ``root`` is checked."""
    data, failure = _pickle(obj) if comm.rank == root else (b"", None)
    # Sent first: the length, or that there will be nothing.
    header = np.array([-1 if failure else len(data)], dtype=np.int64)
    comm.broadcast(header, root, timeout=timeout)
    if header[0] < 0:
        raise CommError(f"broadcast_object: rank {root} cannot pickle its object") from failure
    if comm.rank == root:
        comm.broadcast(np.frombuffer(data, dtype=np.uint8), root, timeout=timeout)
        return obj
    payload = np.empty(int(header[0]), dtype=np.uint8)
    comm.broadcast(payload, root, timeout=timeout)
    return pickle.loads(payload.tobytes())


def all_gather_object(comm: Communicator, obj: Any, timeout: float | None) -> list[Any]:
    """See Communicator.all_gather_object."""
    data, failure = _pickle(obj)
    own = np.array([-1 if failure else len(data)], dtype=np.int64)
    sizes = [int(size) for size in comm.all_gather(own, timeout=timeout)]
    broken = [rank for rank, size in enumerate(sizes) if size < 0]
    if broken:
        ranks = ", ".join(map(str, broken))
        raise CommError(
            f"all_gather_object: rank {ranks} cannot pickle its object", broken
        ) from failure
    payload = np.frombuffer(data, dtype=np.uint8)
    joined = comm.all_gather(payload, counts=sizes, timeout=timeout).tobytes()
    objects, start = [], 0
    for size in sizes:
        objects.append(pickle.loads(joined[start : start + size]))
        start += size
    return objects


def _pickle(obj: Any) -> tuple[bytes, BaseException | None]:
    try:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL), None
    except Exception as error:
        return b"", error
