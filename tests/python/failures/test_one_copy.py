# Large messages and collectives from array to array when a rank is killed, stopped, interrupted or
# late in the middle of them, when a third rank leaves, and when the system refuses to copy.
from __future__ import annotations

import ctypes
import itertools
import os
import signal
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from failures.test_lost_peers import later
from rank_process import Report, call
from ranks import run_ranks, run_script
from side_by_side import side_by_side

import pycomm

COUNT = 3_000_001  # elements of float32: many pieces, the last one odd
PIECE_BYTES = 256 << 10
ENV = {"PYCOMM_TRANSPORT": "shm", "PYCOMM_CMA": "always"}
KINDS = ["private", "symmetric"]
# The rank that something happens to, and whether rank 0 is then the sender or the receiver.
CASES = list(itertools.product(KINDS, ["send", "recv"]))


def array(comm: Any, kind: str) -> Any:
    return comm.empty(COUNT, np.float32) if kind == "symmetric" else np.empty(COUNT, np.float32)


def pattern(turn: int) -> Any:
    return (np.arange(COUNT) % 1000 + turn).astype(np.float32)


def once(comm: Any, role: str, x: Any, **words: Any) -> None:
    """Rank 0 sends or receives as `role` says, rank 1 does the other."""
    if (comm.rank == 0) == (role == "send"):
        comm.send(x, 1 - comm.rank, **words)
    else:
        comm.recv(x, 1 - comm.rank, **words)


def for_ever(comm: Any, role: str, x: Any, **words: Any) -> Report:
    while True:
        report = call(once, comm, role, x, **words)
        if report.error:
            return report


def killed(comm: Any, kind: str, role: str) -> tuple[Report, float]:
    x = array(comm, kind)
    x[:] = pattern(comm.rank)
    comm.barrier()
    start = time.monotonic()
    if comm.rank == 1:
        later(0.4, os.kill, os.getpid(), signal.SIGKILL)
    report = for_ever(comm, role, x)
    return report, time.monotonic() - start - 0.4


def test_killed() -> None:
    side_by_side(check_killed, CASES)


def check_killed(case: tuple[str, str]) -> None:
    outcomes = run_ranks(2, killed, *case, launcher="env", env=ENV)
    assert outcomes[1].exit_code == -signal.SIGKILL
    report, seconds = outcomes[0].get()
    assert report.error == "PeerLostError" and report.attributes["rank"] == 1, (case, report)
    assert seconds < 5, (case, seconds)


def killed_in_a_collective(comm: Any, kind: str, moment: float) -> Report:
    x = np.ones(300_000)
    out = np.empty(300_000 * comm.size)
    if comm.rank == 1:
        later(moment, os.kill, os.getpid(), signal.SIGKILL)
    while True:
        report = call(comm.all_gather, x, out) if kind == "all_gather" else call(comm.all_to_all, x)
        if report.error:
            return report


def test_killed_in_a_collective() -> None:
    """The memory of a rank is gone before the process is; that is no refusal of the system."""
    moments = [0.05 + 0.013 * turn for turn in range(6)]
    cases = itertools.product(["all_gather", "all_to_all"], moments)
    side_by_side(check_killed_in_a_collective, list(cases))


def check_killed_in_a_collective(case: tuple[str, float]) -> None:
    outcomes = run_ranks(3, killed_in_a_collective, *case, launcher="env", env=ENV)
    for rank in (0, 2):
        report = outcomes[rank].get()
        assert report.error == "PeerLostError" and report.attributes["rank"] == 1, (case, report)


def stopped(comm: Any, kind: str, role: str) -> tuple[Report, int]:
    """Rank 1 is stopped for longer than rank 0 waits, and goes on. Returns how many elements of
    the array of rank 0 are not as its owner left them after the error."""
    x = array(comm, kind)
    x[:] = pattern(comm.rank)
    comm.barrier()
    if comm.rank == 1:
        command = f"sleep 0.3; kill -STOP {os.getpid()}; sleep 4.5; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", command])
    report = for_ever(comm, role, x, timeout=1.0)
    x[:] = -7
    if comm.rank == 0:
        time.sleep(4)
    return report, int((x != -7).sum())


def test_stopped() -> None:
    side_by_side(check_stopped, CASES * 3)


def check_stopped(case: tuple[str, str]) -> None:
    outcomes = run_ranks(2, stopped, *case, launcher="env", env=ENV)
    report, written = outcomes[0].get()
    assert report.error == "CommTimeoutError", (case, report)
    assert report.attributes["missing"] == [1], (case, report.text)
    # A sender that was stopped in the middle of a piece for a mapped array ends that piece.
    most = PIECE_BYTES // 4 if case == ("symmetric", "recv") else 0
    assert written <= most, (case, written, "elements were written after the error")
    assert outcomes[1].get()[0].error == "CommTimeoutError"


def paused(comm: Any, kind: str, role: str) -> int:
    """Rank 1 is stopped and goes on in time: every message is right."""
    x = array(comm, kind)
    sends = (comm.rank == 0) == (role == "send")
    if comm.rank == 1:
        command = f"sleep 0.2; kill -STOP {os.getpid()}; sleep 0.6; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", command])
    end = time.monotonic() + 1.2
    turn = 0
    more = True
    while more:
        x[:] = pattern(turn) if sends else -1
        once(comm, role, x)
        assert (x == pattern(turn)).all(), turn
        turn += 1
        more = bool(comm.all_reduce(np.array([time.monotonic() < end]), op="max")[0])
    return turn


@pytest.mark.parametrize("case", CASES)
def test_paused(case: tuple[str, str]) -> None:
    for outcome in run_ranks(2, paused, *case, launcher="env", env=ENV):
        assert outcome.get() > 0


def interrupted(comm: Any, kind: str, role: str) -> Report:
    x = array(comm, kind)
    x[:] = pattern(comm.rank)
    comm.barrier()
    if comm.rank == 1:
        later(0.4, os.kill, os.getpid(), signal.SIGINT)
        try:
            return for_ever(comm, role, x)
        except KeyboardInterrupt:
            return Report(error="KeyboardInterrupt")
    return for_ever(comm, role, x)


def test_interrupted() -> None:
    def check(case: tuple[str, str]) -> None:
        outcomes = run_ranks(2, interrupted, *case, launcher="env", env=ENV)
        assert outcomes[1].get().error == "KeyboardInterrupt", (case, outcomes[1].get())
        assert outcomes[0].get().error in ("AbortedError", "PeerLostError"), outcomes[0].get()

    side_by_side(check, CASES)


def no_receive(comm: Any, kind: str) -> tuple[str, float]:
    x = array(comm, kind)
    if comm.rank == 1:
        time.sleep(3)
        return "", 0.0
    start = time.monotonic()
    with pytest.raises(pycomm.CommTimeoutError) as error:
        comm.send(x, 1, timeout=1.0)
    assert error.value.missing == [1]
    return str(error.value), time.monotonic() - start


@pytest.mark.parametrize("kind", KINDS)
def test_a_send_without_receive_times_out(kind: str) -> None:
    text, seconds = run_ranks(2, no_receive, kind, launcher="env", env=ENV)[0].get()
    assert "posted no receive for it" in text and 0.9 < seconds < 2.5, (text, seconds)


def third_leaves(comm: Any, kind: str) -> None:
    """A rank that has done its part leaves while the others still exchange messages."""
    x = array(comm, kind)
    comm.barrier()
    if comm.rank == 2:
        comm.close()
        return
    for turn in range(40):
        x[:] = pattern(turn) if comm.rank == 0 else -1
        once(comm, "send", x, timeout=10)
        if comm.rank == 1:
            assert (x == pattern(turn)).all(), turn
    once(comm, "recv", x[:1])  # nobody leaves before the other has its data


@pytest.mark.parametrize("kind", KINDS)
def test_a_third_rank_leaves(kind: str) -> None:
    for outcome in run_ranks(3, third_leaves, kind, launcher="env", env=ENV):
        outcome.get()


# ---- the system refuses ----------------------------------------------------------------------


EPERM = 0x00050001  # as an answer of seccomp
KILL = 0x80000000


def refuse(numbers: tuple[int, ...], error: int = EPERM) -> None:
    """From now on these system calls of this thread and its children fail, or end the process."""
    # Load the number; jump over the refusal unless it is one of `numbers`.
    load, equal, end, allow = 0x20, 0x15, 0x06, 0x7FFF0000
    code: list[tuple[int, int, int, int]] = [(load, 0, 0, 0)]
    for i, number in enumerate(numbers):
        code.append((equal, len(numbers) - i, 0, number))
    code += [(end, 0, 0, allow), (end, 0, 0, error)]
    program = b"".join(struct.pack("HBBI", *line) for line in code)
    memory = ctypes.create_string_buffer(program)
    filter_ = struct.pack("HxxxxxxP", len(code), ctypes.addressof(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, filter_mode = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(seccomp, filter_mode, ctypes.create_string_buffer(filter_), 0, 0) == 0, (
        ctypes.get_errno()
    )


CALLS = {"x86_64": {"readv": 310, "writev": 311}, "aarch64": {"readv": 270, "writev": 271}}
SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import os, pycomm
from failures.test_one_copy import CALLS, exchange, refuse
if {refusing} and os.environ["RANK"] == "1":
    refuse(tuple(CALLS[os.uname().machine][name] for name in {refused!r}))
comm = pycomm.init(timeout=20)
exchange(comm)
exchange(comm.split(0, -comm.rank))
comm.barrier()
"""


def exchange(comm: Any) -> None:
    for role in ("send", "recv"):
        x = pattern(3) if (comm.rank == 0) == (role == "send") else np.full(COUNT, -1, np.float32)
        once(comm, role, x)
        assert (x == pattern(3)).all()


@pytest.mark.skipif(os.uname().machine not in CALLS, reason="numbers of the calls are not known")
@pytest.mark.parametrize("refused", [("readv", "writev"), ("readv",), ("writev",), ()])
@pytest.mark.parametrize("cma", ["auto", "off"])
def test_refused_by_the_system(refused: tuple[str, ...], cma: str) -> None:
    """One rank may not: all go through the channel, with one warning, in split ones as well."""
    tests = str(Path(__file__).resolve().parents[1])
    script = SCRIPT.format(tests=tests, refusing=bool(refused), refused=refused)
    env = {"PYCOMM_TRANSPORT": "shm", "PYCOMM_CMA": cma}
    finished = run_script(2, script, launcher="env", env=env)
    assert finished.exit_codes == [0, 0], finished
    text = "".join(finished.stderr)
    assert text.count("warning") == (1 if refused and cma == "auto" else 0), text
    if refused and cma == "auto":
        assert f"process_vm_{refused[0]}: Operation not permitted" in text and "0/2]" in text, text


def refused_later(comm: Any, rank: int, refused: tuple[str, ...], answer: int) -> None:
    exchange(comm)
    comm.barrier()
    if comm.rank == rank:
        refuse(tuple(CALLS[os.uname().machine][name] for name in refused), answer)
    for _ in range(3):
        exchange(comm)
    comm.barrier()


@pytest.mark.skipif(os.uname().machine not in CALLS, reason="numbers of the calls are not known")
@pytest.mark.parametrize("refused", [("readv", "writev"), ("readv",), ("writev",)])
def test_refused_in_the_middle(refused: tuple[str, ...]) -> None:
    """Then what is left of the message goes another way, and nobody is told."""
    for outcome in run_ranks(2, refused_later, 1, refused, EPERM, launcher="env", env=ENV):
        outcome.get()
        assert outcome.stderr == ""


@pytest.mark.skipif(os.uname().machine not in CALLS, reason="numbers of the calls are not known")
@pytest.mark.parametrize("call_name", ["readv", "writev"])
@pytest.mark.parametrize("cma", ["always", "off"])
def test_who_copies(call_name: str, cma: str) -> None:
    """Both sides work on a message in one copy; without it neither makes the calls."""
    env = {**ENV, "PYCOMM_CMA": cma}
    outcomes = run_ranks(2, refused_later, 1, (call_name,), KILL, launcher="env", env=env)
    assert outcomes[1].exit_code == (-signal.SIGSYS if cma == "always" else 0)
    assert outcomes[0].error == ("PeerLostError" if cma == "always" else ""), outcomes[0]


# ---- collectives -----------------------------------------------------------------------------


def gather_and_exchange(comm: Any) -> None:
    x = pattern(comm.rank)
    gathered = comm.all_gather(x)
    for rank in range(comm.size):
        assert (gathered[rank * COUNT : (rank + 1) * COUNT] == pattern(rank)).all()
    in_place = np.full(comm.size * COUNT, -1, np.float32)
    in_place[comm.rank * COUNT : (comm.rank + 1) * COUNT] = x
    comm.all_gather(in_place[comm.rank * COUNT : (comm.rank + 1) * COUNT], out=in_place)
    assert (in_place == gathered).all()
    parts = np.concatenate([pattern(10 * comm.rank + rank) for rank in range(comm.size)])
    for x in (parts, parts[::-1][::-1]):
        received = comm.all_to_all(x)
        for rank in range(comm.size):
            expected = pattern(10 * rank + comm.rank)
            assert (received[rank * COUNT : (rank + 1) * COUNT] == expected).all()


def collectives_refused(comm: Any, answer: int) -> Report:
    """The system refuses to read for rank 1 only after it allowed it at the start."""
    gather_and_exchange(comm)
    comm.barrier()
    if comm.rank == 1:
        refuse((CALLS[os.uname().machine]["readv"],), answer)
    return call(gather_and_exchange, comm)


@pytest.mark.parametrize("cma", ["auto", "off"])
def test_collectives_right_with_and_without(cma: str) -> None:
    env = {**ENV, "PYCOMM_CMA": cma}
    for outcome in run_ranks(3, gather_and_exchange, launcher="env", env=env):
        outcome.get()


@pytest.mark.skipif(os.uname().machine not in CALLS, reason="numbers of the calls are not known")
def test_collectives_refused_in_the_middle() -> None:
    """An error on all ranks that says what to do; with PYCOMM_CMA=off nobody makes the calls."""
    for outcome in run_ranks(2, collectives_refused, EPERM, launcher="env", env=ENV):
        report = outcome.get()
        assert "PYCOMM_CMA=off" in report.text, report
        assert report.error == "TransportError", report
    env = {**ENV, "PYCOMM_CMA": "off"}
    for outcome in run_ranks(2, collectives_refused, KILL, launcher="env", env=env):
        assert outcome.get().error == ""
