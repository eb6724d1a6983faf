"""Meeting the other ranks under mpirun, through mpi4py, with deadlines and Ctrl-C."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from pycomm.errors import ArgumentError, CommTimeoutError

__all__ = ["mpi_all_gather", "mpi_is_running"]

# Tags of the exchanges: every attempt to meet has some of its own, so that what is left of one that
# failed is not taken for another's. MPI guarantees tags up to 32767.
_FIRST_TAG = 16000
_TAGS_PER_ATTEMPT = 32
_ATTEMPTS = 512
_LONGEST_PAUSE_S = 0.005
_NOT_OPEN_MPI = ("MPICH", "Intel", "MVAPICH")
# MPI's own start waits for all processes and knows no deadline; a thread does that.
_starter: threading.Thread | None = None
# Requests of sends that may still be under way; they keep their buffers.
_sending: list[Any] = []


def mpi_all_gather(
    rank_name: str, rank: int, size_name: str, size: int, attempt: int, deadline: float
) -> Callable[[bytes], list[bytes]]:
    """An exchange of blobs among all processes of mpirun: every rank gives one and gets all.

    Args:
        rank_name, rank, size_name, size: What mpirun says in the environment.
        attempt: The number of this attempt, the same on all ranks.
        deadline: Of all exchanges together, by ``time.monotonic``.

    Raises:
        ArgumentError: mpi4py is missing, or belongs to another MPI than mpirun.
        CommTimeoutError: MPI did not start, or ranks did not come in time.
    """
    said = f"mpirun says {rank_name}={rank} and {size_name}={size}, but mpi4py "
    mpi = _import(size_name, size)
    library = mpi.Get_library_version().strip("\0").splitlines()[0].strip()
    advice = (
        f"the mpirun belongs to another MPI than mpi4py, which uses {library}; call the mpirun of "
        f"that MPI (for MPIs from pip: {os.path.join(sys.prefix, 'bin', 'mpirun')})"
    )
    # MPICH and its relatives would end the process when they start under another mpirun.
    if rank_name.startswith("OMPI") and any(name in library for name in _NOT_OPEN_MPI):
        raise ArgumentError(f"{said}is not made for that mpirun: {advice}")
    _start(mpi, size, deadline)
    world = mpi.COMM_WORLD
    if world.Get_size() != size or world.Get_rank() != rank:
        raise ArgumentError(f"{said}says rank {world.Get_rank()} of {world.Get_size()}: {advice}")
    exchanges = 0

    def all_gather(blob: bytes) -> list[bytes]:
        nonlocal exchanges
        tag = _FIRST_TAG + attempt % _ATTEMPTS * _TAGS_PER_ATTEMPT + exchanges % _TAGS_PER_ATTEMPT
        exchanges += 1
        return _exchange(mpi, blob, tag, deadline)

    return all_gather


def mpi_is_running() -> bool:
    """Whether MPI was initialised, by pycomm or by the program."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()


def _import(size_name: str, size: int) -> Any:
    """The module mpi4py.MPI, initialised only if somebody else imported it before."""
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            # Importing would initialise, with the GIL held, deaf to signals and deadlines.
            mpi4py.rc.initialize = False
            mpi4py.rc.finalize = True
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ArgumentError(
            f"{size_name}={size} says that mpirun started this process, but mpi4py cannot be "
            f"imported ({error}); pip install 'pycomm[mpi]', or start with "
            f"python -m pycomm.run -n {size}"
        ) from error
    return MPI


def _start(mpi: Any, size: int, deadline: float) -> None:
    global _starter
    if mpi.Is_initialized():
        return
    if _starter is None:
        _starter = threading.Thread(target=_initialise, args=(mpi,), daemon=True)
        _starter.start()
    pause = 0.0005
    while _starter.is_alive() and time.monotonic() < deadline:
        _starter.join(pause)
        pause = min(2 * pause, 0.05)
    if _starter.is_alive():
        raise CommTimeoutError(
            f"MPI did not start in time: not all of the {size} processes of mpirun have come to "
            "pycomm.init or mpi4py; check that every rank calls it, or give a longer timeout"
        )
    mpi.COMM_WORLD.Set_errhandler(mpi.ERRORS_RETURN)  # which mpi4py makes exceptions of


def _initialise(mpi: Any) -> None:
    """Initialises MPI without the GIL, which mpi4py would keep: it may take until all have come."""
    level = ctypes.c_int(mpi.THREAD_MULTIPLE)
    ctypes.CDLL(mpi.__file__).MPI_Init_thread(None, None, level, ctypes.byref(ctypes.c_int()))


def _exchange(mpi: Any, blob: bytes, tag: int, deadline: float) -> list[bytes]:
    world = mpi.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    _sending[:] = [request for request in _sending if not request.Test()]
    for step in range(1, size):
        _sending.append(world.Isend([blob, mpi.BYTE], dest=(rank + step) % size, tag=tag))
    blobs = {rank: blob}
    status = mpi.Status()
    pause = 0.0
    while len(blobs) < size:
        if world.Iprobe(source=mpi.ANY_SOURCE, tag=tag, status=status):
            source = status.Get_source()
            buffer = bytearray(status.Get_count(mpi.BYTE))
            world.Recv([buffer, mpi.BYTE], source=source, tag=tag)
            blobs[source] = bytes(buffer)
            pause = 0.0
            continue
        if time.monotonic() > deadline:
            missing = [other for other in range(size) if other not in blobs]
            raise CommTimeoutError(
                f"init: rank {rank} of {size} waited in vain for rank "
                f"{', '.join(map(str, missing))}; check that every rank calls pycomm.init and is "
                "still running",
                missing,
            )
        time.sleep(pause)
        pause = min(pause * 1.5 + 0.00005, _LONGEST_PAUSE_S)
    return [blobs[other] for other in range(size)]
