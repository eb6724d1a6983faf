# More ranks than cores: quick, and a rank that waits leaves the core to others. Small in memory.
from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from side_by_side import side_by_side

import pycomm

ROUNDS = 2000


def on_two_cores() -> Any:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    return pycomm.init(timeout=60)


def many_small_operations(split: bool) -> float:
    comm = on_two_cores()
    if split:
        comm = comm.split(comm.rank % 2)
    x = np.empty(1)
    comm.barrier()
    start = time.monotonic()
    for turn in range(ROUNDS):
        comm.barrier()
        x[0] = comm.rank + turn
        comm.all_reduce(x)
        n = comm.size
        assert x[0] == n * turn + n * (n - 1) / 2
    return time.monotonic() - start


@pytest.mark.parametrize(
    ("n", "split", "limit"), [(4, False, 5.0), (4, True, 5.0), (8, False, 15.0)]
)
def test_small_operations(launcher: str, n: int, split: bool, limit: float) -> None:
    outcomes = run_ranks(n, many_small_operations, split, launcher=launcher, init=False)
    assert max(outcome.get() for outcome in outcomes) < limit


def test_small_operations_over_tcp() -> None:
    env = {"PYCOMM_TRANSPORT": "tcp"}
    outcomes = run_ranks(4, many_small_operations, False, launcher="env", init=False, env=env)
    assert max(outcome.get() for outcome in outcomes) < 20.0


def wait_for_rank_0() -> tuple[float, float]:
    """(seconds, CPU seconds) of a wait of 3 seconds; another kind on each rank."""
    comm = on_two_cores()
    pairs = [comm.split(0 if comm.rank in (0, other) else None) for other in range(1, comm.size)]
    waits: list[Callable[[Any], Any]] = [
        lambda pair: pair.barrier(),
        lambda pair: pair.recv(np.empty(2), 0),
        lambda pair: pair.all_reduce(np.ones(100), async_op=True).wait(),
        lambda pair: pair.all_reduce(np.ones(1 << 20)),
    ]
    actions: list[Callable[[Any], Any]] = list(waits)
    actions[1] = lambda pair: pair.send(np.empty(2), 1)
    comm.barrier()
    start, cpu = time.monotonic(), time.process_time()
    if comm.rank == 0:
        time.sleep(3)
        for action, pair in zip(actions, pairs, strict=False):
            action(pair)
    else:
        waits[comm.rank - 1](pairs[comm.rank - 1])
    result = time.monotonic() - start, time.process_time() - cpu
    comm.barrier()
    return result


def test_waiting_is_cheap() -> None:
    side_by_side(check_cheap, ("shm", "tcp"))


def check_cheap(transport: str) -> None:
    env = {"PYCOMM_TRANSPORT": transport}
    for outcome in run_ranks(5, wait_for_rank_0, launcher="env", init=False, env=env)[1:]:
        seconds, cpu = outcome.get()
        assert seconds > 2.5, (outcome.rank, seconds)
        assert cpu < 0.3, (outcome.rank, cpu)  # 0.9 is the limit promised


def memory_of_a_communicator(comm: Any) -> tuple[int, list[str]]:
    """(bytes of shared mappings, files in /dev/shm)."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) .*memfd:pycomm", line):
            total += int(match[2], 16) - int(match[1], 16)
    files = sorted(os.listdir("/dev/shm"))
    comm.barrier()
    return total, files


@pytest.mark.parametrize("n", [2, 3, 8])
def test_memory(n: int) -> None:
    before = set(os.listdir("/dev/shm"))
    for outcome in run_ranks(n, memory_of_a_communicator, launcher="run"):
        total, files = outcome.get()
        assert 0 < total <= n * (8 << 20) + (256 << 10), total
        assert not [name for name in set(files) - before if "pycomm" in name.lower()]
