"""Ranks for tests: `run_ranks` calls a function on n ranks and says what came of it on each.

    def job(comm, count):
        return comm.all_reduce(np.full(count, comm.rank))

    for outcome in run_ranks(4, job, 1000, launcher="mpirun"):
        assert outcome.get().sum() == 6000

The ranks are real processes, started by ``python -m pycomm.run`` ("run"), by the mpirun beside this
Python ("mpirun", skips when there is none) or one by one with RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT ("env"); or threads of this process ("threads"). Past the outer limit everything is
killed and the test fails with what is known; afterwards no process is left, or the test fails too.
`run_script` does the same for the text of a program.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from rank_process import Job, Report, call

import pycomm

LAUNCHERS = ("run", "mpirun")
_HERE = Path(__file__).resolve().parent
_PACKAGE = Path(pycomm.__file__).resolve().parents[1]
# Variables of launchers that must not reach the ranks from outside.
_FOREIGN = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PYCOMM_STORE",
    "PYCOMM_LAUNCHER",
)
_FOREIGN_PREFIXES = ("PMI_", "PMIX_", "OMPI_", "PRTE_", "MPI_", "HYDRA_", "TORCHELASTIC_")
_MARK = "PYCOMM_TEST_JOB"
# How long processes may take to be gone after their launcher.
_GONE_WITHIN = 5.0


@dataclass
class Outcome:
    """What happened on one rank."""

    rank: int
    value: Any = None
    # Class name of the exception, "" for none, "no report" when the process ended without one.
    error: str = ""
    text: str = ""
    bases: tuple[str, ...] = ()
    # `ranks` of the exception, and all known attributes (missing, rank, errno, code).
    ranks: tuple[int, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    traceback: str = ""
    # Of the function, without starting and ending the process.
    seconds: float = 0.0
    # Own exit code under "env" (negative: signal), the launcher's under "run" and "mpirun".
    exit_code: int | None = None
    # Own output under "env"; all ranks' together under "run" and "mpirun"; empty for threads.
    stdout: str = ""
    stderr: str = ""

    def get(self) -> Any:
        """The value; fails the test when there was an exception."""
        if self.error:
            pytest.fail(
                f"rank {self.rank}: {self.error}: {self.text}\n{self.traceback}\n"
                f"exit code {self.exit_code}\n{self.stdout[-3000:]}\n{self.stderr[-3000:]}",
                pytrace=False,
            )
        return self.value

    def expect(self, name: str) -> Outcome:
        """Itself, after a check that the exception is of the class ``name`` (not of a subclass)."""
        if self.error != name:
            got = self.error or f"the value {self.value!r}"
            pytest.fail(
                f"rank {self.rank}: expected {name}, got {got}: {self.text}\n{self.traceback}\n"
                f"exit code {self.exit_code}\n{self.stdout[-3000:]}\n{self.stderr[-3000:]}",
                pytrace=False,
            )
        return self


@dataclass
class Finished:
    """A job that ran to its end: of the launcher, or of every process under "env"."""

    exit_codes: list[int]
    stdout: list[str]
    stderr: list[str]
    seconds: float

    @property
    def exit_code(self) -> int:
        return next((code for code in self.exit_codes if code), 0)


def run_ranks(
    n: int,
    target: str | Callable[..., Any],
    *args: Any,
    launcher: str = "run",
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    init: bool = True,
    init_timeout: float | None = 30.0,
) -> list[Outcome]:
    """Calls ``target(comm, *args)`` on ``n`` ranks and returns what came of it, in rank order.

    Args:
        n: The number of ranks.
        target: A function of a module, or "module:function". Modules are found from tests/python.
        args: Pickled for processes, shared by threads.
        launcher: "run", "mpirun", "env" or "threads".
        timeout: Outer limit in seconds: afterwards all is killed and the test fails.
        env: Variables for the ranks, beyond those of this process.
        init: Whether to make the communicator; without it the call is ``target(*args)``.
        init_timeout: For ``pycomm.init``, thus also of operations without timeout; None leaves it.
    """
    if launcher == "threads":
        return _run_threads(n, target, args, timeout, env or {}, init_timeout)
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        module, file, function = _locate(target)
        job = Job(module, file, function, args, init, init_timeout, timeout)
        (folder / "job").write_bytes(pickle.dumps(job))
        command = [str(_HERE / "rank_process.py"), str(folder)]
        finished = _run_processes(n, command, launcher, timeout, env or {}, folder)
        return [_outcome(rank, folder, finished) for rank in range(n)]


def run_script(
    n: int,
    text: str,
    *args: str,
    launcher: str = "run",
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    launcher_args: Sequence[str] = (),
) -> Finished:
    """Runs the text of a program with ``args`` on ``n`` ranks; see :func:`run_ranks`."""
    with tempfile.TemporaryDirectory(prefix="script-") as name:
        folder = Path(name)
        script = folder / "script.py"
        script.write_text(textwrap.dedent(text))
        command = [str(script), *args]
        return _run_processes(n, command, launcher, timeout, env or {}, folder, launcher_args)


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def mpirun() -> str:
    """The mpirun beside this Python; skips the test when it or mpi4py is missing."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    path = Path(sys.executable).parent / "mpirun"
    if not path.exists():
        pytest.skip(f"no mpirun beside {sys.executable}")
    return str(path)


def rank_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for ranks: this one without launchers' variables, and ``env``."""
    result = {
        name: value
        for name, value in os.environ.items()
        if name not in _FOREIGN and not name.startswith(_FOREIGN_PREFIXES)
    }
    paths = [str(_PACKAGE), str(_HERE), result.get("PYTHONPATH", "")]
    result["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # Threads of BLAS cost start-up time and help no test.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        result.setdefault(name, "1")
    # Open MPI refuses root and more ranks than cores unless told otherwise.
    result["OMPI_ALLOW_RUN_AS_ROOT"] = result["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    result["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    result.update(env or {})
    return result


def marked_processes(mark: str) -> list[int]:
    """The living processes that carry the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            if mark.encode() not in (entry / "environ").read_bytes():
                continue
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(int(entry.name))
    return found


# ---- processes -------------------------------------------------------------------------------


def _locate(target: str | Callable[..., Any]) -> tuple[str, str, str]:
    """(module, file or "", name of the function)."""
    if isinstance(target, str):
        module, _, name = target.partition(":")
        return module, "", name
    if "<" in target.__qualname__:
        raise ValueError(f"{target.__qualname__} is local; ranks need a function of a module")
    file = Path(target.__code__.co_filename).resolve()
    # Test modules have names that only pytest can import; a file can be loaded anywhere.
    return f"ranks_{file.stem}", str(file), target.__qualname__


def _commands(n: int, command: list[str], launcher: str, extra: Sequence[str]) -> list[list[str]]:
    if launcher == "run":
        words = [sys.executable, "-m", "pycomm.run", "-n", str(n), "--no-prefix", *extra]
        return [[*words, *command]]
    if launcher == "mpirun":
        return [[mpirun(), "-n", str(n), *extra, sys.executable, *command]]
    if launcher == "env":
        return [[sys.executable, *extra, *command] for _ in range(n)]
    raise ValueError(f"unknown launcher {launcher}")


def _run_processes(
    n: int,
    command: list[str],
    launcher: str,
    timeout: float,
    env: Mapping[str, str],
    folder: Path,
    launcher_args: Sequence[str] = (),
) -> Finished:
    mark = f"{_MARK}={uuid.uuid4().hex}"
    environment = rank_environment(env)
    environment[_MARK] = mark.partition("=")[2]
    port = str(free_port())
    processes: list[subprocess.Popen[bytes]] = []
    start = time.monotonic()
    timed_out = False
    with _quiet_interrupts():
        try:
            for index, words in enumerate(_commands(n, command, launcher, launcher_args)):
                own = dict(environment)
                if launcher == "env":
                    own.update(RANK=str(index), WORLD_SIZE=str(n))
                    own.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **(env or {})})
                processes.append(_start(words, own, folder, index))
            for process in processes:
                try:
                    process.wait(max(0.0, start + timeout - time.monotonic()))
                except subprocess.TimeoutExpired:
                    timed_out = True
                    break
            seconds = time.monotonic() - start
            left = [] if timed_out else _wait_until_gone(mark)
        finally:
            _kill_all(mark, processes)
    finished = Finished(
        [process.returncode for process in processes],
        [(folder / f"out.{i}").read_text(errors="replace") for i in range(len(processes))],
        [(folder / f"err.{i}").read_text(errors="replace") for i in range(len(processes))],
        seconds,
    )
    if timed_out:
        reported = [rank for rank in range(n) if (folder / f"rank.{rank}").exists()]
        pytest.fail(
            f"{n} ranks under {launcher}: not done after {timeout} s, killed; "
            f"ranks that reported: {reported}\n"
            f"stdout: {finished.stdout}\nstderr:\n" + "\n".join(finished.stderr),
            pytrace=False,
        )
    if left:
        pytest.fail(f"{n} ranks under {launcher}: processes {left} were left behind", pytrace=False)
    return finished


def _start(
    words: list[str], env: dict[str, str], folder: Path, index: int
) -> subprocess.Popen[bytes]:
    with open(folder / f"out.{index}", "wb") as out, open(folder / f"err.{index}", "wb") as err:
        return subprocess.Popen(
            words,
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


@contextlib.contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """Gives children the default SIGINT, which a shell's background ignores."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)


def _wait_until_gone(mark: str) -> list[int]:
    deadline = time.monotonic() + _GONE_WITHIN
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def _kill_all(mark: str, processes: list[subprocess.Popen[bytes]]) -> None:
    """Ends every process of the job; again until none is found, as they may be starting others."""
    for _ in range(50):
        left = marked_processes(mark)
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if not left:
            break
        time.sleep(0.02)
    for child in processes:
        child.wait(10)


def _outcome(rank: int, folder: Path, finished: Finished) -> Outcome:
    index = rank if len(finished.exit_codes) > 1 else 0
    outcome = Outcome(rank)
    path = folder / f"rank.{rank}"
    if path.exists():
        _fill(outcome, cast(Report, pickle.loads(path.read_bytes())))
    else:
        outcome.error = "no report"
    outcome.exit_code = finished.exit_codes[index]
    outcome.stdout, outcome.stderr = finished.stdout[index], finished.stderr[index]
    return outcome


def _fill(outcome: Outcome, report: Report) -> None:
    outcome.value = report.value
    outcome.error, outcome.text, outcome.bases = report.error, report.text, report.bases
    outcome.ranks, outcome.attributes = report.ranks, report.attributes
    outcome.traceback, outcome.seconds = report.traceback, report.seconds


# ---- threads ---------------------------------------------------------------------------------


def _run_threads(
    n: int,
    target: str | Callable[..., Any],
    args: tuple[Any, ...],
    timeout: float,
    env: Mapping[str, str],
    default_timeout: float | None,
) -> list[Outcome]:
    function = _resolve(target)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        comms = pycomm.thread_world(n, timeout=default_timeout)
    outcomes = [Outcome(rank, error="no report") for rank in range(n)]

    def body(rank: int) -> None:
        _fill(outcomes[rank], call(function, comms[rank], *args))

    threads = [
        threading.Thread(target=body, args=(rank,), daemon=True, name=f"rank {rank}")
        for rank in range(n)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    hanging = [thread.name for thread in threads if thread.is_alive()]
    if hanging:
        faulthandler.dump_traceback(file=2)
        for comm in comms:
            comm.abort("the test's outer limit passed")
        for thread in threads:
            thread.join(5.0)
        texts = [f"rank {outcome.rank}: {outcome.error} {outcome.text}" for outcome in outcomes]
        pytest.fail(f"{hanging} not done after {timeout} s; then: {texts}", pytrace=False)
    for comm in comms:
        comm.close()
    return outcomes


def _resolve(target: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return cast(Callable[..., Any], getattr(importlib.import_module(module), name))
