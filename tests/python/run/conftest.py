# Starts the launcher as a person would, always under an outer time limit, and finds what it left.
from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import pycomm.run

OUTER_LIMIT_S = 60.0
_ROOT = str(Path(pycomm.run.__file__).resolve().parents[2])


def _with_mark(mark: str) -> list[int]:
    """Finds the living processes that carry the mark in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
            state = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if mark.encode() in environment and state not in "ZX":
            found.append(int(name))
    return found


@dataclass
class Launcher:
    """Runs `python -m pycomm.run` in a folder of its own."""

    folder: Path
    mark: str = field(default_factory=lambda: f"TEST_JOB={uuid.uuid4().hex}")

    def script(self, text: str, name: str = "script.py") -> str:
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    def environment(self, **extra: str) -> dict[str, str]:
        env = {**os.environ, **extra}
        name, _, value = self.mark.partition("=")
        env[name] = value
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, env.get("PYTHONPATH", "")]))
        return env

    def start(self, *words: str, **options: object) -> subprocess.Popen[bytes]:
        """Starts a job and returns at once; its streams are pipes."""
        env = options.pop("env", None)
        settings: dict[str, object] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": self.folder,
            "env": self.environment(**(env if isinstance(env, dict) else {})),
            **options,
        }
        command = [sys.executable, "-m", "pycomm.run", *words]
        return subprocess.Popen(command, **settings)  # type: ignore[call-overload,no-any-return]

    def run(
        self, *words: str, stdin: bytes = b"", **env: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs a job to its end, and checks that nothing is left of it."""
        process = self.start(*words, stdin=subprocess.PIPE, env=env)
        try:
            out, err = process.communicate(stdin, timeout=OUTER_LIMIT_S)
        finally:
            process.kill()
        assert self.leftovers() == []
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def leftovers(self, within: float = 0.0) -> list[int]:
        """Returns what is left of all jobs of this test, at the latest after `within` seconds."""
        deadline = time.monotonic() + within
        while (found := _with_mark(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def wait_for(self, condition: Callable[[], bool], what: str, within: float = 20.0) -> None:
        deadline = time.monotonic() + within
        while not condition():
            assert time.monotonic() < deadline, f"not within {within} s: {what}"
            time.sleep(0.02)

    def wait_for_files(self, *names: str) -> None:
        self.wait_for(lambda: all((self.folder / name).exists() for name in names), str(names))


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    # A test run in a shell's background has SIGINT ignored, and its children would inherit that.
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    tool = Launcher(tmp_path)
    try:
        yield tool
    finally:
        signal.signal(signal.SIGINT, old)
        for pid in tool.leftovers():
            os.kill(pid, signal.SIGKILL)
