"""Finding the other ranks: under mpirun, from environment variables, or alone; one code path behind
them.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref

from pycomm import _core
from pycomm._arrays import check_int, check_timeout
from pycomm.communicator import Communicator
from pycomm.errors import ArgumentError, CommError

__all__ = ["init", "thread_world"]

# (rank, size) variables that a process manager of MPI sets for its processes.
_MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_open: weakref.WeakSet[Communicator] = weakref.WeakSet()
_world_lock = threading.Lock()
_world: Communicator | None = None


def init(timeout: float | None = None) -> Communicator:
    """Returns the communicator of all processes of this job; collective at the first call.

    The other processes are found, in this order:

    1. under ``mpirun`` through mpi4py;
    2. from ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``, as ``python -m
       pycomm.run``, torchrun and Kubernetes set them, over a TCP store (served by rank 0, or by
       ``pycomm.run``);
    3. without any of them: a world of one, in which every operation works.

    Later calls return the same communicator until it is closed.

    Args:
        timeout: Seconds that init, and by default every operation, may take; None reads
            ``PYCOMM_TIMEOUT`` (300).

    Raises:
        ArgumentError: The launcher's variables contradict each other, or the MPI of ``mpirun`` is
            not mpi4py's.
        CommTimeoutError: Ranks are missing.
        TransportError: The store's port cannot be used; the text holds host:port.
    """
    global _world
    seconds = check_timeout(timeout)
    with _world_lock:
        if _world is not None and not _world._closed:
            return _world
        if seconds is None:
            seconds = _core.default_timeout()
        servers: list[_core.TcpStoreServer] = []
        try:
            bootstrap = _bootstrap(seconds, servers)
            world = _register(Communicator(_core.Communicator.create(bootstrap, seconds)))
            # Nobody needs the store of rank 0 any more once all have come this far.
            world.barrier()
        finally:
            for server in servers:
                server.close()
        _world = world
        return world


def thread_world(size: int, timeout: float | None = None) -> list[Communicator]:
    """Returns ``size`` communicators for as many threads of this process, in rank order.

    For notebooks and tests: each thread uses one of them as a process would use its own.
    """
    size = check_int(size, "size", 1, 4096, "a number of ranks from 1 to 4096")
    seconds = check_timeout(timeout)
    if seconds is None:
        seconds = _core.default_timeout()
    return [
        _register(Communicator(core)) for core in _core.Communicator.thread_world(size, seconds)
    ]


def _register(communicator: Communicator) -> Communicator:
    _open.add(communicator)
    return communicator


@atexit.register
def _close_all() -> None:
    """Ends the worker threads before the interpreter goes; a program need not call close()."""
    for communicator in list(_open):
        communicator.close()


def _integer(name: str) -> int:
    text = os.environ[name]
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"{name}={text} is not an integer") from None


def _mpi_world() -> tuple[str, int, str, int] | None:
    """(rank variable, rank, size variable, size) as mpirun set them, or None."""
    for rank_name, size_name in _MPI_VARIABLES:
        if rank_name in os.environ and size_name in os.environ:
            return rank_name, _integer(rank_name), size_name, _integer(size_name)
    return None


def _environment_world() -> tuple[int, int] | None:
    """RANK and WORLD_SIZE, or None when neither is set."""
    names = ("RANK", "WORLD_SIZE")
    present = [name for name in names if name in os.environ]
    if not present:
        return None
    if len(present) == 1:
        missing = next(name for name in names if name not in present)
        raise ArgumentError(
            f"{present[0]}={os.environ[present[0]]} is set but {missing} is not; "
            "set both, or neither"
        )
    rank, size = _integer("RANK"), _integer("WORLD_SIZE")
    if size < 1 or not 0 <= rank < size:
        raise ArgumentError(f"RANK={rank} and WORLD_SIZE={size} contradict each other")
    return rank, size


def _bootstrap(timeout: float, servers: list[_core.TcpStoreServer]) -> _core.Bootstrap:
    mpi = _mpi_world()
    environment = _environment_world()
    if mpi is not None and environment is not None:
        rank_name, rank, size_name, size = mpi
        if environment != (rank, size):
            raise ArgumentError(
                f"two launchers contradict each other: {rank_name}={rank} and {size_name}={size}, "
                f"but RANK={environment[0]} and WORLD_SIZE={environment[1]}; start under one "
                "launcher only, or unset RANK and WORLD_SIZE"
            )
    if mpi is not None:
        return _mpi_bootstrap(*mpi)
    if environment is not None:
        return _store_bootstrap(*environment, timeout, servers)
    return _core.callable_bootstrap(0, 1, lambda blob: [blob])


def _mpi_bootstrap(rank_name: str, rank: int, size_name: str, size: int) -> _core.Bootstrap:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ArgumentError(
            f"{size_name}={size} says that mpirun started this process, but mpi4py cannot be "
            f"imported ({error}); pip install 'pycomm[mpi]', or start with "
            f"python -m pycomm.run -n {size}"
        ) from error
    world = MPI.COMM_WORLD
    if world.Get_size() != size or world.Get_rank() != rank:
        library = MPI.Get_library_version().strip("\0").splitlines()[0].strip()
        raise ArgumentError(
            f"mpirun says {rank_name}={rank} and {size_name}={size}, but mpi4py says rank "
            f"{world.Get_rank()} of {world.Get_size()}: the mpirun belongs to another MPI than "
            f"mpi4py, which uses {library}; call the mpirun of that MPI (for MPIs from pip: "
            f"{os.path.join(sys.prefix, 'bin', 'mpirun')})"
        )

    def all_gather(blob: bytes) -> list[bytes]:
        return world.allgather(blob)

    return _core.callable_bootstrap(rank, size, all_gather)


def _store_bootstrap(
    rank: int, size: int, timeout: float, servers: list[_core.TcpStoreServer]
) -> _core.Bootstrap:
    """Meets the ranks at the store behind MASTER_ADDR:MASTER_PORT.

    Rank 0 serves it, and appends the server to ``servers``, unless a launcher does.
    """
    hosted = os.environ.get("PYCOMM_STORE")
    token = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if hosted is not None:
        host, port = _parse_address(hosted)
        return _core.store_bootstrap(host, [port], rank, size, token, timeout)
    if size == 1 and "MASTER_PORT" not in os.environ:
        return _core.callable_bootstrap(0, 1, lambda blob: [blob])
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise ArgumentError(
                f"RANK={rank} and WORLD_SIZE={size} are set but {name} is not; "
                "it says where rank 0 is reached"
            )
    host = os.environ["MASTER_ADDR"]
    port = check_int(_integer("MASTER_PORT"), "MASTER_PORT", 1, 65535, "a port from 1 to 65535")
    ports = [port]
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true":
        # torchrun's agent listens on MASTER_PORT itself; the store takes one of the next ports.
        ports = [candidate for candidate in range(port + 1, port + 17) if candidate <= 65535]
    if rank == 0:
        server = _serve_store(ports, token)
        servers.append(server)
        host, ports = "127.0.0.1", [server.port]
    return _core.store_bootstrap(host, ports, rank, size, token, timeout)


def _serve_store(ports: list[int], token: str) -> _core.TcpStoreServer:
    last: CommError | None = None
    for port in ports:
        try:
            return _core.TcpStoreServer("", port, token)
        except CommError as error:
            last = error
    assert last is not None
    raise last


def _parse_address(text: str) -> tuple[str, int]:
    prefix, _, rest = text.partition("tcp://")
    host, _, port = rest.rpartition(":")
    if prefix or not host or not port.isdigit():
        raise ArgumentError(f"PYCOMM_STORE={text} is not of the form tcp://host:port")
    return host.strip("[]"), int(port)
