# Every operation x dtype x op against NumPy: every number of ranks, transport, algorithm, launcher.
from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from core import sweeps
from core.values import ALGORITHMS, CHOICES, DTYPES
from ranks import run_ranks

import pycomm

RANKS = (1, 2, 3, 4, 5, 8)
TRANSPORTS = ("auto", "shm", "tcp")  # of threads: auto is inproc


@pytest.mark.parametrize("n", RANKS)
def test_reductions(n: int) -> None:
    counts = sweeps.COUNTS if n <= 4 else (0, 3, 17)
    for outcome in run_ranks(n, sweeps.reductions, DTYPES, counts, launcher="threads"):
        assert outcome.get() == len(counts) * 89


@pytest.mark.parametrize("n", RANKS)
def test_movements(n: int) -> None:
    dtypes = DTYPES if n == 3 else ("bool", "int16", "bfloat16", "float32", "complex128")
    for outcome in run_ranks(n, sweeps.movements, dtypes, (1, 3), launcher="threads"):
        assert outcome.get() == 12 * len(dtypes)


@pytest.mark.parametrize("n", [2, 4, 5])
def test_large(n: int) -> None:
    for outcome in run_ranks(n, sweeps.large, launcher="threads"):
        outcome.get()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("choice", CHOICES, ids=["first", "second", "third", "fourth"])
def test_algorithms(choice: str, transport: str) -> None:
    # Four ranks are a power of two; five are not, and leave a rank alone in a tree.
    for n in (4, 5):
        environment = {"PYCOMM_ALGO": choice, "PYCOMM_TRANSPORT": transport}
        for outcome in run_ranks(n, sample, n == 5, launcher="threads", env=environment):
            outcome.get()


def sample(comm: Any, with_large: bool) -> None:
    sweeps.reductions(comm, ("bool", "int8", "float16", "float32", "complex64"), (1, 1000))
    sweeps.movements(comm, ("uint16",), (3,))
    comm.barrier()
    if with_large:
        sweeps.large(comm, "bfloat16")


def test_without_checks() -> None:
    """PYCOMM_CHECK=0: no roll call before the data, and a barrier that is a schedule."""
    for transport in TRANSPORTS:
        environment = {"PYCOMM_CHECK": "0", "PYCOMM_TRANSPORT": transport}
        for outcome in run_ranks(3, unchecked, launcher="threads", env=environment):
            outcome.get()


def unchecked(comm: Any) -> None:
    sweeps.reductions(comm, ("float32",), (0, 1, 1000))
    sweeps.movements(comm, ("int64",), (2,))
    for _ in range(50):
        comm.barrier()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("n", [2, 4])
def test_processes(n: int, launcher: str) -> None:
    for outcome in run_ranks(n, everything, "shm", launcher=launcher, timeout=120):
        outcome.get()


@pytest.mark.parametrize("kind", ["env", "mpirun"])
def test_processes_over_tcp(kind: str) -> None:
    environment = {"PYCOMM_TRANSPORT": "tcp"}
    for outcome in run_ranks(3, everything, "tcp", launcher=kind, env=environment, timeout=120):
        outcome.get()


def everything(comm: Any, transport: str) -> None:
    assert comm.transport == transport
    assert sweeps.everything(comm) > 0


def test_world_of_one_process() -> None:
    """Without any launcher every operation works."""
    environment = {"WORLD_SIZE": "1", "RANK": "0"}
    run_ranks(1, sweeps.everything, launcher="env", env=environment)[0].get()


def test_the_table_of_algorithms_is_complete() -> None:
    """The error for an unknown name lists all there is, which is in ALGORITHMS and thus tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYCOMM_ALGO", "all_reduce:nonsense")
        with pytest.raises(pycomm.ArgumentError) as error:
            pycomm.thread_world(1)
    known = str(error.value).partition("known are ")[2]
    listed = {
        name: tuple(word for word in names.split(", ") if word not in ("auto", "direct"))
        for name, names in re.findall(r"(\w+) \(([^)]*)\)", known)
    }
    assert {name: set(words) for name, words in listed.items()} == {
        name: set(words) for name, words in ALGORITHMS.items()
    }
    used = {tuple(item.split(":")) for choice in CHOICES for item in choice.split(",")}
    assert used == {(name, word) for name, words in ALGORITHMS.items() for word in words}


@pytest.mark.parametrize("direct", ["barrier:direct", "barrier:dissemination"])
def test_barrier(direct: str) -> None:
    """Nobody leaves a barrier before all have entered it."""
    for transport in ("auto", "shm"):
        entered = np.zeros(4, dtype=np.int64)
        environment = {"PYCOMM_ALGO": direct, "PYCOMM_TRANSPORT": transport}
        outcomes = run_ranks(4, barriers, entered, launcher="threads", env=environment)
        assert [outcome.get() for outcome in outcomes] == [200] * 4


def barriers(comm: Any, entered: Any) -> int:
    for turn in range(1, 201):
        entered[comm.rank] = turn
        comm.barrier()
        assert entered.min() >= turn, entered
    return int(entered[comm.rank])
