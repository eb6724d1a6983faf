# Forwards the output of the ranks: whole lines, marked with the rank, never blocking the loop.
"""Forwarding of the ranks' output.

A `RankStream` reads the pipe of one rank and hands whole lines to a `Sink`; a `Sink` writes to the
launcher's own stdout or stderr as fast as its reader takes it. Neither blocks, so that a slow
reader delays output and nothing else: signals, failures and the time limit are still seen.

On a terminal, and only there, a line that stays without an end for a moment is shown as it is: it
may be a question to the person there. Another rank's line then starts on a line of its own.
"""

from __future__ import annotations

import os
import select
import stat

READ_BYTES = 1 << 16
# A rank is not read from while this much waits in its sink, so that memory stays bounded.
HIGH_WATER_BYTES = 1 << 20
# A line longer than this is passed on in parts.
MAX_LINE_BYTES = 1 << 24


class Sink:
    """A file descriptor to write to, with what could not be written yet.

    Attributes:
        fd: The descriptor.
        broken: True once its reader is gone; what is put in later is dropped.
        interactive: Whether it is a terminal.
        open_line: The stream whose line was begun and not ended, if any.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.broken = False
        self.interactive = os.isatty(fd)
        self.open_line: RankStream | None = None
        self._waiting = bytearray()
        # Writing to a regular file never waits for a reader. The descriptor of anything else is
        # shared with other programs (a terminal with its shell), so it must not be made
        # non-blocking; instead poll() is asked first. It promises room for PIPE_BUF bytes.
        self._always_ready = stat.S_ISREG(os.fstat(fd).st_mode)

    @property
    def waiting(self) -> int:
        """Bytes that are not written yet."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether its producers should pause."""
        return len(self._waiting) > HIGH_WATER_BYTES

    def put(self, data: bytes | bytearray, source: RankStream | None = None) -> None:
        """Queues bytes, after the end of an open line of another stream than `source`.

        Call `write_some` to write them.
        """
        if self.open_line is not None and self.open_line is not source:
            self._waiting += b"\n"
        self.open_line = None
        if not self.broken:
            self._waiting += data

    def write_some(self) -> None:
        """Writes what can be written without waiting."""
        step = READ_BYTES if self._always_ready else select.PIPE_BUF
        poller = select.poll()
        poller.register(self.fd, select.POLLOUT)
        while self._waiting and (self._always_ready or poller.poll(0)):
            try:
                with memoryview(self._waiting) as view:
                    written = os.write(self.fd, view[:step])
            except BlockingIOError:
                return
            except OSError:
                self.broken = True
                self._waiting.clear()
                return
            del self._waiting[:written]


def make_sinks(out_fd: int, err_fd: int) -> tuple[Sink, Sink]:
    """Makes the sinks of stdout and stderr: one and the same when both lead to the same file.

    Two queues to one file could put a line of one into the middle of a line of the other.
    """
    out = Sink(out_fd)
    out_stat, err_stat = os.fstat(out_fd), os.fstat(err_fd)
    same = (out_stat.st_dev, out_stat.st_ino) == (err_stat.st_dev, err_stat.st_ino)
    return out, out if same else Sink(err_fd)


class RankStream:
    """The read end of one rank's stdout or stderr.

    Args:
        fd: Read end of the pipe; owned by this object.
        sink: Where the lines go.
        prefix: Put before each line, for example ``b"[0] "``; None passes the lines on as they are.
    """

    def __init__(self, fd: int, sink: Sink, prefix: bytes | None) -> None:
        self.fd = fd
        self.sink = sink
        self.open = True
        self._prefix = prefix or b""
        self._end_last_line = prefix is not None
        self._partial = bytearray()
        os.set_blocking(fd, False)

    def read_some(self) -> bool:
        """Reads once and passes on the whole lines.

        Returns:
            False when there was nothing to read: for now, or at the end (then `open` is False).
        """
        if not self.open:
            return False
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self.close()
        return bool(data)

    @property
    def asking(self) -> bool:
        """Whether a line without an end waits that a person might have to see."""
        return self.sink.interactive and bool(self._partial)

    def show_partial(self) -> None:
        """Shows a line that has no end yet; what follows continues it."""
        self.sink.put(self._line_start() + self._partial, self)
        self.sink.open_line = self
        self._partial = bytearray()

    def close(self) -> None:
        """Closes the pipe. A last line without an end is passed on, with an end if prefixed."""
        if not self.open:
            return
        self.open = False
        os.close(self.fd)
        if self._partial or self.sink.open_line is self:
            self._emit_partial()

    def _line_start(self) -> bytes:
        return b"" if self.sink.open_line is self else self._prefix

    def _take(self, data: bytes) -> None:
        end = data.rfind(b"\n")
        if end < 0:
            self._partial += data
            if len(self._partial) >= MAX_LINE_BYTES:
                self._emit_partial()
            return
        self._partial += memoryview(data)[:end]
        lines = (
            self._partial.replace(b"\n", b"\n" + self._prefix) if self._prefix else self._partial
        )
        self.sink.put(self._line_start() + lines + b"\n", self)
        self._partial = bytearray(memoryview(data)[end + 1 :])

    def _emit_partial(self) -> None:
        end = b"\n" if self._end_last_line else b""
        self.sink.put(self._line_start() + self._partial + end, self)
        self._partial = bytearray()
