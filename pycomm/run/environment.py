# What a rank finds in its environment: who it is, where the store is, how many threads BLAS uses.
"""The environment of a rank."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Set by other launchers for their own processes. A rank that inherited them would believe that it
# belongs to the outer job.
_FOREIGN_PREFIXES = (
    "OMPI_",
    "PMI_",
    "PMIX_",
    "PRTE_",
    "HYDI_",
    "HYDRA_",
    "MPI_LOCAL",
    "TORCHELASTIC_",
)
_FOREIGN_NAMES = frozenset(
    {
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "NODE_RANK",
    }
)
BLAS_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def available_cores() -> int:
    """Returns the number of cores that this process may use (not those of the whole machine)."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def rank_environment(
    outer: Mapping[str, str], rank: int, size: int, port: int, cores: int
) -> dict[str, str]:
    """Builds the environment of one rank.

    Args:
        outer: The environment of the launcher.
        rank: The rank, 0 <= rank < size.
        size: The number of ranks of the job, all on this host.
        port: The TCP port of the store that the launcher hosts on 127.0.0.1.
        cores: Cores to share among the ranks.

    Returns:
        `outer` without the variables of other launchers, with those of pycomm. The BLAS thread
        counts are set only when none of them is set and there is more than one rank: a thread per
        core in every rank would make all of them slow.
    """
    env = {
        name: value
        for name, value in outer.items()
        if not name.startswith(_FOREIGN_PREFIXES) and name not in _FOREIGN_NAMES
    }
    if size > 1 and not any(name in env for name in BLAS_VARIABLES):
        env.update(dict.fromkeys(BLAS_VARIABLES, str(max(1, cores // size))))
    # The ranks write to pipes: without this their lines would show late, in blocks, and be lost
    # when a rank is ended.
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        PYCOMM_STORE=f"tcp://127.0.0.1:{port}",
        PYCOMM_LAUNCHER="pycomm.run",
    )
    return env
