"""Finding the other ranks: under mpirun, from environment variables, or alone; one code path behind
them.
"""

from __future__ import annotations

import atexit
import os
import threading
import time

from pycomm import _core
from pycomm._arrays import check_int, check_timeout
from pycomm._mpi import mpi_all_gather, mpi_is_running
from pycomm.communicator import Communicator, close_all
from pycomm.errors import ArgumentError, CommError, CommTimeoutError, TransportError

__all__ = ["init", "thread_world"]

# (rank, size) variables that a process manager of MPI sets for its processes.
_MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_world_lock = threading.Lock()
_world: Communicator | None = None
# The calls of init that did not return an existing world; keeps what they leave in a store apart.
_attempts = 0
# The store that rank 0 serves. After a failure it stays, so that the others learn what is wrong,
# and for a moment even when the program ends.
_LINGER_S = 1.0
_server: _core.TcpStoreServer | None = None
_server_key: tuple[object, ...] = ()
# Set in the environment of a rank: "pid place". A child that inherits it, and the place of the rank
# with it, is not that rank.
_OWNER_VARIABLE = "PYCOMM_RANK_PROCESS"
# The rank of the process from which this one was forked, when that had a world.
_forked_from: int | None = None


def init(timeout: float | None = None) -> Communicator:
    """Returns the communicator of all processes of this job; collective at the first call.

    The other processes are found, in this order:

    1. under ``mpirun`` through mpi4py;
    2. from ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``, as ``python -m
       pycomm.run``, torchrun and Kubernetes set them, over a TCP store (served by rank 0, or by
       ``pycomm.run``);
    3. without any of them: a world of one, in which every operation works.

    Later calls return the same communicator until it is closed; then a new one is made.

    Args:
        timeout: Seconds that init, and by default every operation, may take; None reads
            ``PYCOMM_TIMEOUT`` (300).

    Raises:
        ArgumentError: The launcher's variables contradict each other, or the MPI of ``mpirun`` is
            not mpi4py's.
        CommTimeoutError: Ranks are missing.
        TransportError: The store's port cannot be used; the text holds host:port.
    """
    global _world, _attempts
    seconds = check_timeout(timeout)
    with _world_lock:
        if _world is not None and not _world._closed:
            return _world
        if _forked_from is not None:
            raise ArgumentError(
                f"this process was forked from rank {_forked_from} and is no rank of its own; "
                "start it with the multiprocessing method 'spawn', and without RANK and "
                "WORLD_SIZE in its environment, if it is to make a world"
            )
        if seconds is None:
            seconds = _core.default_timeout()
        deadline = time.monotonic() + seconds
        _attempts += 1
        bootstrap = _bootstrap(deadline)
        core = _core.Communicator.create(bootstrap, seconds, _remaining(deadline))
        world = Communicator(core)
        # Nobody needs the store of rank 0 any more once all have come this far.
        world.barrier(timeout=_remaining(deadline))
        _close_server()
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
    return [Communicator(core) for core in _core.Communicator.thread_world(size, seconds)]


@atexit.register
def _at_exit() -> None:
    """Ends the worker threads before the interpreter goes; a program need not call close()."""
    _core.begin_exit()
    # MPI's end waits for the other ranks, which would wait for this one.
    close_all(with_process=not mpi_is_running())
    if _forked_from is None and _server is not None:
        time.sleep(_LINGER_S)
        _close_server()


def _after_fork_in_child() -> None:
    global _world, _world_lock, _forked_from
    _world_lock = threading.Lock()
    if _world is not None:
        _forked_from = _world.rank
        _world = None


os.register_at_fork(after_in_child=_after_fork_in_child)


def _remaining(deadline: float) -> float:
    """Seconds until then, at least a moment: whoever was in time may finish."""
    return max(deadline - time.monotonic(), 0.01)


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


def _bootstrap(deadline: float) -> _core.Bootstrap:
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
    if mpi is not None and mpi[3] > 1:
        rank_name, rank, size_name, size = mpi
        exchange = mpi_all_gather(rank_name, rank, size_name, size, _attempts, deadline)
        return _core.callable_bootstrap(rank, size, exchange)
    if environment is not None and mpi is None:
        return _store_bootstrap(*environment, deadline)
    return _core.callable_bootstrap(0, 1, lambda blob: [blob])


def _claim_place(rank: int, size: int) -> None:
    """Refuses the place of a rank to a child process that inherited its variables."""
    names = ("PYCOMM_STORE", "MASTER_ADDR", "MASTER_PORT")
    place = " ".join([str(rank), str(size), *(os.environ.get(name, "-") for name in names)])
    owner, _, owned = os.environ.get(_OWNER_VARIABLE, "").partition(" ")
    if owned == place and owner != str(os.getpid()) and os.path.exists(f"/proc/{owner}"):
        raise ArgumentError(
            f"this process inherited RANK={rank} and WORLD_SIZE={size} from process {owner}, which "
            "is that rank; a child of a rank has no place in its world: unset RANK and WORLD_SIZE "
            "for a world of its own"
        )
    os.environ[_OWNER_VARIABLE] = f"{os.getpid()} {place}"


def _store_bootstrap(rank: int, size: int, deadline: float) -> _core.Bootstrap:
    """Meets the ranks at the store behind MASTER_ADDR:MASTER_PORT, which rank 0 serves unless a
    launcher does.
    """
    _claim_place(rank, size)
    hosted = os.environ.get("PYCOMM_STORE")
    token = os.environ.get("TORCHELASTIC_RUN_ID", "")
    prefix = f"world-{_attempts}"
    if hosted is not None:
        host, port = _parse_address(hosted)
        seconds = _remaining(deadline)
        return _core.store_bootstrap(host, [port], rank, size, token, prefix, seconds)
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
        host, ports = "127.0.0.1", [_serve_store(host, ports, token)]
    try:
        seconds = _remaining(deadline)
        return _core.store_bootstrap(host, ports, rank, size, token, prefix, seconds)
    except CommTimeoutError as error:
        raise CommTimeoutError(
            f"init: rank {rank} of {size} waited in vain for the store of rank 0: {error}",
            [0],
        ) from None


def _serve_store(host: str, ports: list[int], token: str) -> int:
    """The port of the store that this process serves, from now on or since an earlier attempt."""
    global _server, _server_key
    key = (tuple(ports), token)
    if _server is not None and _server_key == key:
        return _server.port
    _close_server()
    last: CommError | None = None
    for port in ports:
        try:
            _server, _server_key = _core.TcpStoreServer("", port, token), key
            return _server.port
        except CommError as error:
            last = error
    raise TransportError(
        f"rank 0 cannot serve the store at MASTER_ADDR:MASTER_PORT {host}:{ports[0]}: {last}"
    ) from last


def _close_server() -> None:
    global _server
    server, _server = _server, None
    if server is not None:
        server.close()


def _parse_address(text: str) -> tuple[str, int]:
    prefix, _, rest = text.partition("tcp://")
    host, _, port = rest.rpartition(":")
    if prefix or not host or not port.isdigit():
        raise ArgumentError(f"PYCOMM_STORE={text} is not of the form tcp://host:port")
    return host.strip("[]"), int(port)
