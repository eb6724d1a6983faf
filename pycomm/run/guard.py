# Finds and ends the processes of a job. Run as a program, it does so when the launcher was killed.
"""Ending every process of a job, and the guard that does it after a launcher killed by SIGKILL.

Each rank leads a session of its own, so every process that it starts carries the rank's session,
unless it left it on purpose. Those that left are found among the launcher's descendants: the
launcher adopts orphans (see `adopt_orphans`).

The guard is a process of its own, started as ``python -I -S guard.py FD``: it imports nothing but
the standard library, reads the sessions to watch from a pipe, and when the pipe closes before the
word ``done`` it ends them. A rank would die with the launcher anyway (see `die_with_parent`); the
guard also reaches what the ranks have started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl() -> Callable[[int, int], int] | None:
    try:
        function = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None
    return lambda option, value: int(function(option, value, 0, 0, 0))


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose parent ends (Linux; else no effect)."""
    prctl = _prctl()
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> Callable[[], None]:
    """Returns a function to call in a child between fork and exec: it then dies with its parent.

    Everything is looked up beforehand, since little is safe between fork and exec.
    """
    prctl = _prctl()
    parent = os.getpid()

    def in_child() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # the parent died before the line above
            os.kill(os.getpid(), signal.SIGKILL)

    return in_child


def _process_table() -> dict[int, tuple[int, int, str]]:
    """Returns pid -> (parent, session, state) of every process; empty where /proc is missing."""
    table: dict[int, tuple[int, int, str]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return table
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                text = file.read()
        except OSError:
            continue
        # The command name, in parentheses, may itself hold spaces and parentheses.
        fields = text[text.rfind(b")") + 2 :].split()
        table[int(name)] = (int(fields[1]), int(fields[3]), fields[0].decode())
    return table


def members(
    sessions: Collection[int], ancestor: int = 0, spared: Collection[int] = ()
) -> list[int]:
    """Finds the living processes of a job.

    Args:
        sessions: Sessions of the ranks (the process ids of their leaders).
        ancestor: A process whose descendants all belong to the job; 0 for none.
        spared: Processes that do not belong to the job; nor do their descendants.

    Returns:
        Process ids, zombies left out.
    """
    table = _process_table()

    def descends(pid: int) -> bool:
        while pid in table:
            pid = table[pid][0]
            if pid == ancestor:
                return True
            if pid in spared:
                return False
        return False

    return [
        pid
        for pid, (_, session, state) in table.items()
        if state not in ("Z", "X")
        and pid not in spared
        and (session in sessions or (ancestor > 0 and descends(pid)))
    ]


def send(pids: Collection[int], number: signal.Signals) -> None:
    """Signals processes; a stopped one is continued, so that it can act on it."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)


def send_to_groups(leaders: Collection[int], number: signal.Signals) -> None:
    """Signals the process group of each leader; a stopped process is continued to act on it."""
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)
            os.killpg(leader, signal.SIGCONT)


class Guard:
    """The launcher's end of the guard process; when that cannot start, all calls do nothing."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        read_end, self._pipe = os.pipe()
        # The launcher's other children inherit nothing, so the pipe closes exactly when it dies.
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", os.path.abspath(__file__), str(read_end)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(read_end,),
                start_new_session=True,
            )
        os.close(read_end)

    @property
    def pid(self) -> int:
        """Process id of the guard, 0 without one."""
        return self._process.pid if self._process else 0

    def watch(self, session: int) -> None:
        """Tells the guard of a session to end should the launcher die."""
        self._tell(f"{session}\n")

    def dismiss(self) -> None:
        """Ends the guard; the sessions are left alone."""
        self._tell("done\n")
        os.close(self._pipe)
        if self._process is not None:
            self._process.wait()

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._pipe, line.encode())


def _guard_main(fd: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with os.fdopen(fd, "rb") as pipe:
        lines = pipe.read().split()
    if b"done" in lines:
        return
    sessions = {int(line) for line in lines}
    give_up = time.monotonic() + 5.0
    send_to_groups(sessions, signal.SIGKILL)
    while (alive := members(sessions)) and time.monotonic() < give_up:
        send(alive, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    _guard_main(int(sys.argv[1]))
