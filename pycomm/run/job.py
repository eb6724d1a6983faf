# One job: starts its ranks, forwards signals and output, ends all of them when one fails.
"""The life of a job.

A job passes through the stages of `_Stage`, forward only. A failing rank, the time limit or a
second signal moves it to TERMINATING at once; a first signal is forwarded, and the ranks get time
to leave by themselves. Each later stage has a deadline, after which the next, harder one begins.
"""

from __future__ import annotations

import enum
import math
import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pycomm.run import guard
from pycomm.run.environment import available_cores, rank_environment
from pycomm.run.output import make_sinks
from pycomm.run.ranks import Exit, Rank, Ranks
from pycomm.run.signals import SignalQueue

EXIT_TIMEOUT = 124
EXIT_CANNOT_START = 126
# Seconds from SIGTERM to SIGKILL, from a forwarded signal to SIGTERM, and from SIGKILL to giving up
# on a process (one that hangs inside the kernel).
KILL_GRACE_S = 2.0
LEAVE_GRACE_S = 10.0
GIVE_UP_S = 5.0
# On a terminal, a line without an end is shown when nothing else happens for this long.
QUESTION_S = 0.2
# Covers the capacity of a pipe; without a bound, something that the rank left running could go on
# writing for ever.
_DRAIN_READS = 32


@dataclass(frozen=True)
class JobOptions:
    """What to run.

    Attributes:
        command: Program and arguments, the same for every rank.
        size: The number of ranks, at least 1.
        port: Port of the store on 127.0.0.1, already listening.
        timeout: Seconds after which the job is ended; None for never.
        prefix: Whether each line of output is preceded by ``[rank] ``.
    """

    command: Sequence[str]
    size: int
    port: int
    timeout: float | None = None
    prefix: bool = True


class _Stage(enum.IntEnum):
    RUNNING = 0  # the deadline is the time limit
    LEAVING = 1  # a signal was forwarded; the ranks may leave by themselves
    TERMINATING = 2  # SIGTERM was sent
    KILLING = 3  # SIGKILL was sent
    GIVEN_UP = 4


class Job:
    """Runs one job to its end. Uses signal handlers, so `run` belongs to the main thread.

    Args:
        options: What to run.
        out_fd: Where the ranks' stdout goes.
        err_fd: Where the ranks' stderr and the launcher's own messages go.
    """

    def __init__(self, options: JobOptions, out_fd: int = 1, err_fd: int = 2) -> None:
        self._options = options
        self._out, self._err = make_sinks(out_fd, err_fd)
        self._ranks = Ranks()
        self._stage = _Stage.RUNNING
        self._deadline = math.inf
        self._code = 0
        self._forwarded: signal.Signals | None = None

    def run(self) -> int:
        """Starts the ranks, waits until all have ended, and leaves no process behind.

        Returns:
            0, or the code of the rank that failed first (128 + s when killed by signal s), or 124
            when the time limit ended the job, or 126 when a rank could not be started.
        """
        signals = SignalQueue()
        watcher = guard.Guard()
        guard.adopt_orphans()
        try:
            self._start(watcher)
            while self._ranks.running and self._stage < _Stage.GIVEN_UP:
                self._step(signals, watcher)
            self._end_leftovers(watcher)
            self._finish_output(signals)
        finally:
            guard.send_to_groups(self._ranks.pids, signal.SIGKILL)
            watcher.dismiss()
            self._ranks.release()
            signals.close()
        return self._code

    def _start(self, watcher: guard.Guard) -> None:
        options = self._options
        if options.timeout is not None:
            self._deadline = time.monotonic() + options.timeout
        cores = available_cores()
        before_exec = guard.die_with_parent()
        for rank in range(options.size):
            env = rank_environment(os.environ, rank, options.size, options.port, cores)
            prefix = f"[{rank}] ".encode() if options.prefix else None
            sinks = self._out, self._err
            try:
                started = self._ranks.start(options.command, env, sinks, prefix, before_exec)
            except OSError as error:
                self._end_job(EXIT_CANNOT_START, f"rank {rank} could not be started: {error}")
                return
            watcher.watch(started.pid)

    def _step(self, signals: SignalQueue, watcher: guard.Guard) -> None:
        """Waits for something to happen, and deals with all that did."""
        self._pump(self._deadline - time.monotonic(), signals.fd)
        for number in signals.take():
            self._on_signal(number)
        for rank, end in self._ranks.newly_exited():
            self._on_exit(rank, end)
        self._ranks.reap_adopted(watcher.pid)
        if (self._out.broken or self._err.broken) and self._stage == _Stage.RUNNING:
            self._end_job(128 + signal.SIGPIPE, "nobody reads the output any more; ending the job")
        if time.monotonic() >= self._deadline:
            self._on_deadline()

    def _pump(self, timeout: float, signals_fd: int) -> None:
        """Waits up to `timeout` seconds for output, a signal or an exit, and moves the output."""
        streams = {
            stream.fd: stream
            for rank in self._ranks
            for stream in rank.streams
            if stream.open and not stream.sink.full
        }
        poller = select.poll()
        for fd in (*streams, signals_fd, self._ranks.exits_fd()):
            if fd >= 0:
                poller.register(fd, select.POLLIN)
        for sink in {self._out, self._err}:
            if sink.waiting:
                poller.register(sink.fd, select.POLLOUT)
        asking = [stream for stream in streams.values() if stream.asking]
        limit = QUESTION_S if asking else 3600.0  # poll() takes its milliseconds as an int
        events = poller.poll(math.ceil(max(0.0, min(timeout, limit)) * 1000))
        for fd, _ in events:
            if fd in streams:
                streams[fd].read_some()
        if not events:
            for stream in asking:
                stream.show_partial()
        self._out.write_some()
        self._err.write_some()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stage == _Stage.RUNNING:
            self._say(f"forwarding {number.name} to the ranks")
            self._forwarded = number
            guard.send_to_groups([rank.pid for rank in self._ranks.running], number)
            self._enter(_Stage.LEAVING, LEAVE_GRACE_S)
        elif self._stage == _Stage.LEAVING:
            self._end_job(128 + number, f"{number.name} again; ending the job")

    def _on_exit(self, rank: Rank, end: Exit) -> None:
        if end.code == 0 or self._code != 0 or self._stage >= _Stage.TERMINATING:
            return
        self._drain(rank)
        message = f"rank {rank.rank} (pid {rank.pid}) {end.text}"
        if self._stage == _Stage.LEAVING:  # the others were told to leave already
            self._code = end.code
            self._say(message)
        else:
            others = "; ending the other ranks" if self._ranks.running else ""
            self._end_job(end.code, message + others)

    def _on_deadline(self) -> None:
        left = _list_ranks(self._ranks.running)
        if self._stage == _Stage.RUNNING:
            limit = f"{self._options.timeout:g} s"
            self._end_job(EXIT_TIMEOUT, f"the time limit of {limit} is over; still running: {left}")
        elif self._stage == _Stage.LEAVING:
            code = 128 + (self._forwarded or signal.SIGTERM)
            self._end_job(code, f"{left} did not leave within {LEAVE_GRACE_S:g} s; ending the job")
        elif self._stage == _Stage.TERMINATING:
            guard.send_to_groups(self._ranks.pids, signal.SIGKILL)
            self._enter(_Stage.KILLING, GIVE_UP_S)
        else:
            self._say(f"{left} could not be killed")
            self._enter(_Stage.GIVEN_UP, math.inf)

    def _end_job(self, code: int, message: str) -> None:
        """Tells all ranks to end; the first code given is the job's."""
        self._code = self._code or code
        self._say(message)
        guard.send_to_groups(self._ranks.pids, signal.SIGTERM)
        self._enter(_Stage.TERMINATING, KILL_GRACE_S)

    def _enter(self, stage: _Stage, seconds: float) -> None:
        self._stage = stage
        self._deadline = time.monotonic() + seconds

    def _drain(self, rank: Rank) -> None:
        """Takes what the rank has written, so that it shows before what is said about the rank."""
        for stream in rank.streams:
            for _ in range(_DRAIN_READS):
                if not stream.read_some():
                    break

    def _end_leftovers(self, watcher: guard.Guard) -> None:
        """Ends what the ranks started and left behind: SIGTERM, then SIGKILL after the grace."""

        def leftovers() -> list[int]:
            self._ranks.reap_adopted(watcher.pid)
            return guard.members(self._ranks.pids, os.getpid(), (watcher.pid,))

        if self._stage < _Stage.TERMINATING:
            guard.send(leftovers(), signal.SIGTERM)
            self._enter(_Stage.TERMINATING, KILL_GRACE_S)
        give_up = time.monotonic() + KILL_GRACE_S + GIVE_UP_S
        while (left := leftovers()) and time.monotonic() < give_up:
            if self._stage >= _Stage.KILLING or time.monotonic() >= self._deadline:
                guard.send(left, signal.SIGKILL)
            self._pump(0.01, -1)

    def _finish_output(self, signals: SignalQueue) -> None:
        """Forwards what is left in the pipes until it is read; a signal ends the wait."""
        give_up = time.monotonic() + GIVE_UP_S
        while any(stream.open for rank in self._ranks for stream in rank.streams):
            # A process out of reach may still hold a pipe open; it is not waited for.
            idle = not any(sink.full for sink in (self._out, self._err))
            if (idle and time.monotonic() >= give_up) or signals.take():
                break
            self._pump(0.1, signals.fd)
        for rank in self._ranks:
            for stream in rank.streams:
                stream.close()
        while (self._out.waiting or self._err.waiting) and not signals.take():
            self._pump(1.0, signals.fd)

    def _say(self, message: str) -> None:
        self._err.put(f"pycomm.run: {message}\n".encode())
        self._err.write_some()


def _list_ranks(ranks: Sequence[Rank]) -> str:
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {', '.join(str(rank.rank) for rank in ranks)}"
