"""What every test gets: an outer time limit, and a check that it leaves no process behind.

A test's main thread is interrupted when its limit passes (120 s, or `@pytest.mark.timeout(s)`).
Should it be stuck where no signal handler runs, all stacks are printed a little later and the whole
run ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest

DEFAULT_LIMIT = 120.0
# After the limit: time for handlers and teardown before the run is ended.
HARD_GRACE = 30.0
# How long processes that a test started may take to be gone.
EXIT_GRACE = 5.0
# Inherited by every process that tests start, so that orphans can be found as well.
TOKEN_NAME = "PYCOMM_TEST_RUN"
# Helpers of Python's own libraries that live as long as the run.
LASTING = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "loky")

stderr_fd = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    os.environ[TOKEN_NAME] = str(os.getpid())
    capture = config.pluginmanager.getplugin("capturemanager")
    # A copy of the real stderr: the one of a test is captured and would be lost at a hard end.
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        config.stash[stderr_fd] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (descriptor := config.stash.get(stderr_fd, None)) is not None:
        os.close(descriptor)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0]) if marker else DEFAULT_LIMIT

    def expire(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(file=item.config.stash[stderr_fd])
        pytest.fail(f"{item.nodeid}: not done after its limit of {limit:g} s")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, limit)
    faulthandler.dump_traceback_later(
        limit + HARD_GRACE, exit=True, file=item.config.stash[stderr_fd]
    )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[processes_before] = set(started_processes())
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    before = item.stash.get(processes_before, set[int]())
    end = time.monotonic() + EXIT_GRACE
    while left := {p: c for p, c in started_processes().items() if p not in before}:
        if time.monotonic() > end:
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            names = "; ".join(f"{process}: {command}" for process, command in left.items())
            pytest.fail(f"{item.nodeid} left processes behind (killed now): {names}")
        time.sleep(0.02)
    return result


processes_before = pytest.StashKey[set[int]]()


def started_processes() -> dict[int, str]:
    """Living processes of this run, pid -> command line: descendants, and orphans by the token."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        # Processes may vanish while they are looked at.
        with contextlib.suppress(OSError, ValueError, IndexError):
            if entry.name.isdigit():
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    parents[int(entry.name)] = int(parent)

    found: dict[int, str] = {}
    token = f"{TOKEN_NAME}={os.getpid()}".encode()
    for process in parents:
        with contextlib.suppress(OSError):
            folder = Path(f"/proc/{process}")
            if process == os.getpid() or not (
                is_descendant(process, parents)
                or token in (folder / "environ").read_bytes().split(b"\0")
            ):
                continue
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            if not any(word in command for word in LASTING):
                found[process] = command.strip()
    return found


def is_descendant(process: int, parents: dict[int, int]) -> bool:
    while process in parents:
        process = parents[process]
        if process == os.getpid():
            return True
    return False
