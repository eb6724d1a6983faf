# Forwarding of output: whole lines, marked, complete, in whatever amount and with whatever bytes.
from __future__ import annotations

import collections
import os
import pty
import re
import select
import subprocess
import sys
import termios
from typing import Any

from pycomm.run.output import HIGH_WATER_BYTES, RankStream, Sink, make_sinks


def test_streams_stay_apart(launcher: Any) -> None:
    script = launcher.script("""
        import sys
        print("to out")
        print("to err", file=sys.stderr)
    """)
    done = launcher.run("-n", "2", script)
    assert sorted(done.stdout.splitlines()) == [b"[0] to out", b"[1] to out"]
    assert sorted(done.stderr.splitlines()) == [b"[0] to err", b"[1] to err"]


def test_lines_are_never_mixed(launcher: Any) -> None:
    # Each rank writes its lines in small pieces, to both streams, which lead to the same pipe.
    script = launcher.script("""
        import os, sys
        rank = os.environ["RANK"]
        for number in range(1500):
            stream = (sys.stdout, sys.stderr)[number % 2].buffer
            for _ in range(5):
                stream.write(rank.encode() * (number % 37 + 1))
                stream.flush()
            stream.write(b"\\n")
            stream.flush()
    """)
    process = launcher.start("-n", "3", script, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    lines = out.splitlines()
    assert len(lines) == 3 * 1500
    for rank in b"012":
        own = [line for line in lines if line[1] == rank]
        assert collections.Counter(map(len, own)) == collections.Counter(
            4 + 5 * (number % 37 + 1) for number in range(1500)
        )
        assert all(set(line[4:]) == {rank} for line in own)


def test_last_line_without_an_end(launcher: Any) -> None:
    script = launcher.script("import sys; sys.stdout.write('first\\nno end')")
    done = launcher.run("-n", "2", script)
    assert sorted(done.stdout.split(b"\n")) == [
        b"", b"[0] first", b"[0] no end", b"[1] first", b"[1] no end"
    ]  # fmt: skip


def test_bytes_pass_unchanged_without_prefix(launcher: Any) -> None:
    data = bytes(range(256)) * 300 + b"\r\n\n\n\x00" + "äöü".encode("latin-1")
    (launcher.folder / "data").write_bytes(data)
    done = launcher.run("-n", "1", "--no-prefix", "cat", "data")
    assert done.stdout == data
    done = launcher.run("-n", "1", "cat", "data")
    assert done.stdout == b"".join(b"[0] " + line + b"\n" for line in data.split(b"\n"))


def test_much_output_on_both_streams(launcher: Any) -> None:
    script = launcher.script("""
        import sys
        block = (b"y" * 79 + b"\\n") * 1000
        for _ in range(100):
            sys.stdout.buffer.write(block)
            sys.stderr.buffer.write(block)
    """)
    done = launcher.run("-n", "3", script)
    assert done.returncode == 0
    for text in (done.stdout, done.stderr):
        assert len(text) == 3 * 100 * 1000 * 84
        assert len(re.findall(rb"^\[[012]\] y{79}$", text, re.MULTILINE)) == 3 * 100 * 1000


def test_one_huge_line(launcher: Any) -> None:
    done = launcher.run("-n", "1", launcher.script("print('z' * 5_000_000)"))
    assert done.stdout == b"[0] " + b"z" * 5_000_000 + b"\n"


def test_lines_show_while_the_job_runs(launcher: Any) -> None:
    # print() alone, without flush.
    script = launcher.script("""
        import os, time
        print("early")
        while not os.path.exists("go"):
            time.sleep(0.01)
    """)
    process = launcher.start("-n", "1", script)
    assert process.stdout.readline() == b"[0] early\n"
    (launcher.folder / "go").touch()
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_stdin_goes_to_rank_0_only(launcher: Any) -> None:
    script = launcher.script("import sys; print(repr(sys.stdin.read()))")
    done = launcher.run("-n", "3", script, stdin=b"some\ninput\n")
    assert sorted(done.stdout.splitlines()) == [b"[0] 'some\\ninput\\n'", b"[1] ''", b"[2] ''"]


def test_a_question_shows_on_a_terminal(launcher: Any) -> None:
    script = launcher.script("""
        import os, time
        if os.environ["RANK"] == "0":
            print("hello", input("name? "))
        else:
            while not os.path.exists("go"):
                time.sleep(0.01)
            print("meanwhile")
    """)
    own, terminal = pty.openpty()
    settings = termios.tcgetattr(terminal)
    settings[1] &= ~termios.OPOST  # "\\n" stays "\\n"
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, settings)
    process = launcher.start("-n", "2", script, stdin=terminal, stdout=terminal)
    os.close(terminal)
    shown = b""

    def read_until(end: bytes) -> None:
        nonlocal shown
        while not shown.endswith(end):
            assert select.select([own], [], [], 20)[0], shown
            shown += os.read(own, 4096)

    read_until(b"[0] name? ")
    (launcher.folder / "go").touch()
    read_until(b"[0] name? \n[1] meanwhile\n")
    os.write(own, b"Ada\n")
    read_until(b"[1] meanwhile\n[0] hello Ada\n")
    assert process.wait(timeout=20) == 0
    process.stderr.close()
    os.close(own)


def test_output_to_a_file(launcher: Any) -> None:
    path = launcher.folder / "log"
    with path.open("wb") as file:
        process = launcher.start("-n", "2", launcher.script("print('q' * 100000)"), stdout=file)
        process.communicate(timeout=30)
    assert sorted(path.read_bytes().splitlines()) == [
        b"[%d] " % rank + b"q" * 100000 for rank in range(2)
    ]


def test_sink_pauses_its_producers() -> None:
    read_fd, write_fd = os.pipe()
    sink = Sink(write_fd)
    sink.put(b"k" * (2 * HIGH_WATER_BYTES))
    sink.write_some()  # the pipe takes a little of it, and the call returns
    assert sink.full and 0 < sink.waiting < 2 * HIGH_WATER_BYTES
    received = 0
    while sink.waiting:
        received += len(os.read(read_fd, 1 << 20))
        sink.write_some()
    os.close(write_fd)
    while data := os.read(read_fd, 1 << 20):
        received += len(data)
    os.close(read_fd)
    assert received == 2 * HIGH_WATER_BYTES and not sink.full


def test_one_sink_for_one_file() -> None:
    read_fd, write_fd = os.pipe()
    copy = os.dup(write_fd)
    out, err = make_sinks(write_fd, copy)
    assert out is err
    other_read, other_write = os.pipe()
    out, err = make_sinks(write_fd, other_write)
    assert out is not err
    for fd in (read_fd, write_fd, copy, other_read, other_write):
        os.close(fd)


def test_stream_passes_on_whole_lines_only() -> None:
    read_fd, write_fd = os.pipe()
    out_read, out_write = os.pipe()
    sink = Sink(out_write)
    stream = RankStream(read_fd, sink, b"[5] ")

    def after(data: bytes) -> bytes:
        os.write(write_fd, data)
        assert stream.read_some()
        waiting = sink.waiting
        sink.write_some()
        return os.read(out_read, 4096) if waiting else b""

    assert after(b"par") == b""
    assert after(b"tial") == b""
    assert after(b" line\nnext\n\nre") == b"[5] partial line\n[5] next\n[5] \n"
    assert not stream.read_some()
    open_after = [stream.open]
    assert after(b"st\n") == b"[5] rest\n"
    os.close(write_fd)
    assert not stream.read_some()
    open_after.append(stream.open)
    assert open_after == [True, False]
    assert sink.waiting == 0
    os.close(out_read)
    os.close(out_write)


def test_interpreter_is_the_launchers(launcher: Any) -> None:
    done = launcher.run("-n", "1", launcher.script("import sys; print(sys.executable)"))
    assert done.stdout.decode().strip() == f"[0] {sys.executable}"
