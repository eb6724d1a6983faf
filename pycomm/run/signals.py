# Collects the signals that the launcher gets, so that its loop can act on them one at a time.
"""Signals as events of a loop."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalQueue:
    """Collects the signals to forward, and makes `fd` readable when one or SIGCHLD comes.

    Lives in the main thread, as signal handlers do.
    """

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        self._pending: list[signal.Signals] = []
        self._old_wakeup = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        self._old: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
        for number in (*FORWARDED, signal.SIGCHLD):
            # An ignored SIGHUP (nohup) or SIGINT (a shell's background job) stays ignored.
            if number in FORWARDED and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._old[number] = signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._pending.append(signal.Signals(number))

    def take(self) -> list[signal.Signals]:
        """Returns the signals to forward that came since the last call, in order."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)
        taken, self._pending = self._pending, []
        return taken

    def close(self) -> None:
        """Puts the former handlers back."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self.fd)
        os.close(self._write_fd)
