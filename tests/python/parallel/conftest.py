"""Runs a function as several ranks, threads of this process, under a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import pycomm

LIMIT_SECONDS = 60.0

RunRanks = Callable[[int, Callable[[Any], Any]], list[Any]]


def run_on_threads(ranks: int, function: Callable[[Any], Any]) -> list[Any]:
    """Call function(comm) on every rank of a new world; return the results in rank order.

    The first error of any rank is raised again. The others are released by aborting their world.
    """
    comms = pycomm.thread_world(ranks, timeout=LIMIT_SECONDS / 2)
    results: list[Any] = [None] * ranks
    errors: list[BaseException] = []

    def one_rank(rank: int) -> None:
        try:
            results[rank] = function(comms[rank])
        except BaseException as error:
            errors.append(error)
            comms[rank].abort()

    threads = [threading.Thread(target=one_rank, args=(r,), daemon=True) for r in range(ranks)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + LIMIT_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        stuck = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
        for comm in comms:
            comm.abort()
        pytest.fail(f"ranks {stuck} did not end within {LIMIT_SECONDS:g} s")
    for comm in comms:
        comm.close()
    return results


@pytest.fixture
def run_ranks() -> RunRanks:
    return run_on_threads
