# The processes of the ranks: starting them, and seeing which one ended first.
"""The started ranks of a job.

A rank that ended is not reaped before the job is over: its process id, which is also the id of its
process group, then cannot be given to a stranger that would be signalled in its place.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pycomm.run.output import RankStream, Sink


@dataclass(frozen=True)
class Exit:
    """How a rank ended.

    Attributes:
        code: Its exit code; 128 + s when it was killed by signal s, as shells say it.
        text: The same in words.
    """

    code: int
    text: str


class Rank:
    """One started rank: its process, and the two streams that it writes.

    Attributes:
        rank: The rank.
        pid: Its process id, which is also that of its process group and session.
        streams: Its stdout and stderr.
        exited: True once its end was noticed by `check_exit`.
    """

    def __init__(
        self, rank: int, process: subprocess.Popen[bytes], streams: tuple[RankStream, RankStream]
    ) -> None:
        self.rank = rank
        self.pid = process.pid
        self.streams = streams
        self.exited = False
        self._process = process

    def check_exit(self) -> Exit | None:
        """Returns how the rank ended, once, after it has ended."""
        if self.exited:
            return None
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        self.exited = True
        status = found.si_status
        if found.si_code == os.CLD_EXITED:
            return Exit(status, f"exited with code {status}")
        with contextlib.suppress(ValueError):  # real-time signals have no name
            return Exit(128 + status, f"was killed by {signal.Signals(status).name} ({status})")
        return Exit(128 + status, f"was killed by signal {status}")

    def release(self) -> None:
        """Closes the streams and reaps the process if it ended."""
        for stream in self.streams:
            stream.close()
        self._process.poll()


class Ranks:
    """All started ranks, in order of rank."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        # An epoll set reports events in the order in which they happened. So when several ranks
        # ended since the last look, the first one to fail is still known.
        self._exits = select.epoll() if hasattr(select, "epoll") else None
        self._by_pidfd: dict[int, Rank] = {}

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._ranks)

    @property
    def running(self) -> list[Rank]:
        """The ranks whose end was not noticed yet."""
        return [rank for rank in self._ranks if not rank.exited]

    @property
    def pids(self) -> set[int]:
        """Process ids of all ranks, ended ones included."""
        return {rank.pid for rank in self._ranks}

    def exits_fd(self) -> int:
        """Returns a descriptor that is readable when a rank has ended, or -1."""
        return self._exits.fileno() if self._exits is not None else -1

    def start(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        sinks: tuple[Sink, Sink],
        prefix: bytes | None,
        before_exec: Callable[[], None],
    ) -> Rank:
        """Starts the next rank in a session of its own; only rank 0 gets the launcher's stdin.

        Raises:
            OSError: The program could not be started.
        """
        rank = len(self._ranks)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            process = subprocess.Popen(
                command,
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=out_write,
                stderr=err_write,
                env=env,
                start_new_session=True,
                preexec_fn=before_exec,
            )
        except BaseException:
            os.close(out_read)
            os.close(err_read)
            raise
        finally:
            os.close(out_write)
            os.close(err_write)
        streams = RankStream(out_read, sinks[0], prefix), RankStream(err_read, sinks[1], prefix)
        started = Rank(rank, process, streams)
        self._ranks.append(started)
        if self._exits is not None and hasattr(os, "pidfd_open"):
            with contextlib.suppress(
                OSError
            ):  # a kernel without pidfds: SIGCHLD still wakes the loop
                pidfd = os.pidfd_open(process.pid)
                self._by_pidfd[pidfd] = started
                self._exits.register(pidfd, select.EPOLLIN | select.EPOLLET)
        return started

    def newly_exited(self) -> list[tuple[Rank, Exit]]:
        """Returns the ranks that ended since the last call, in the order in which they ended."""
        order: list[Rank] = []
        if self._exits is not None and self._by_pidfd:
            # Edge-triggered: each end is reported once. Room for all, so that none stays behind.
            order = [self._by_pidfd[fd] for fd, _ in self._exits.poll(0, len(self._ranks))]
        found = []
        for rank in [*order, *self.running]:
            end = rank.check_exit()
            if end is not None:
                found.append((rank, end))
        return found

    def reap_adopted(self, spared: int) -> None:
        """Reaps ended orphans that this process adopted, so that a long job gathers no zombies.

        Args:
            spared: A child of this process that is no orphan.
        """
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                children = {int(pid) for pid in file.read().split()}
        except OSError:
            return
        for pid in children - self.pids - {spared}:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def release(self) -> None:
        """Closes all descriptors and reaps what has ended."""
        for rank in self._ranks:
            rank.release()
        for pidfd in self._by_pidfd:
            os.close(pidfd)
        if self._exits is not None:
            self._exits.close()
