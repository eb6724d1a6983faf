# A rank that fails while a communicator is set up: the others learn why, and soon.
from __future__ import annotations

import os
import resource
import subprocess
import time
from typing import Any

from rank_process import Report, call
from ranks import run_ranks


def split_without_descriptors(comm: Any) -> Report:
    comm.barrier()
    if comm.rank == 1:
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, used + 1))
    return call(comm.split, 0)


def test_no_descriptors_for_a_split() -> None:
    environment = {"PYCOMM_TRANSPORT": "shm"}
    outcomes = run_ranks(3, split_without_descriptors, launcher="env", env=environment)
    for outcome in outcomes:
        report = outcome.get()
        assert report.error in ("TransportError", "AbortedError"), (outcome.rank, report)
        assert report.seconds < 5, (outcome.rank, report)


def split_with_a_stopped_rank(comm: Any) -> Report:
    comm.barrier()
    if comm.rank == 2:
        command = f"sleep 0.2; kill -STOP {os.getpid()}; sleep 3.5; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", command])
        time.sleep(0.5)
    while True:
        report = call(comm.split, 0)
        if report.error:
            return report


def test_a_stopped_rank_in_split_is_named() -> None:
    outcomes = run_ranks(3, split_with_a_stopped_rank, launcher="env", init_timeout=1.5, timeout=30)
    for rank in (0, 1):
        report = outcomes[rank].get()
        assert report.error == "CommTimeoutError", report
        assert report.attributes["missing"] == [2], report
