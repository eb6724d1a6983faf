"""The MPIs that bench/compare.py measures against: virtual environments, builds, command lines."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Say = Callable[[str], None]


class Failure(Exception):
    """A step did not work; the message says which and why."""


@dataclass(frozen=True)
class Kind:
    """What a peer needs.

    Attributes:
        packages: From PyPI, in its virtual environment.
        headers: The peer whose mpi.h and libmpi it is compiled with; empty for no MPI. Intel's
            package has no header, and MPICH's binary interface.
    """

    packages: tuple[str, ...]
    headers: str = ""


KINDS = {
    "mpich": Kind(("mpich", "mpi4py"), "mpich"),
    "openmpi": Kind(("openmpi", "mpi4py"), "openmpi"),
    "impi": Kind(("impi-rt", "mpi4py"), "mpich"),
    "gloo": Kind(("torch",)),
}
# Of every environment, for the benchmark in Python.
_COMMON = ("numpy", "ml_dtypes", "pybind11")


def run(command: Sequence[str], limit_s: float, environment: dict[str, str] | None = None) -> str:
    """Runs a command, ends all of its processes when it takes too long, and returns its output.

    Raises:
        Failure: It failed or took too long; the message has its last lines.
    """
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise Failure(f"{command[0]} took longer than {limit_s:g} s: {_tail(output)}") from None
    if process.returncode != 0:
        shown = " ".join(command)
        raise Failure(f"{shown} ended with {process.returncode}: {_tail(output)}")
    return output


def _tail(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-4:])


class Workshop:
    """Makes what is needed, once, in a cache folder.

    Args:
        cache: The folder.
        given: Virtual environments by peer that are used as they are.
        say: Prints progress.
    """

    def __init__(self, cache: Path, given: dict[str, Path], say: Say) -> None:
        self._cache = cache
        self._given = given
        self._say = say
        self._built: dict[str, Path] = {}

    def environment(self, peer: str) -> Path:
        """The virtual environment of a peer."""
        if peer in self._given:
            return self._given[peer]
        folder = self._cache / "venvs" / peer
        ready = folder / "ready"
        if not ready.exists():
            packages = [*KINDS[peer].packages, *_COMMON]
            self._say(f"creating {folder} with {' '.join(packages)}")
            run([sys.executable, "-m", "venv", "--clear", str(folder)], 300)
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q"]
            run([*pip, *packages], 1800)
            ready.touch()
        return folder

    def perf(self, peer: str) -> Path:
        """The program pycomm-perf for an MPI."""
        headers = KINDS[peer].headers
        if headers not in self._built:
            folder = self._cache / "build" / headers
            options = ["-DPYCOMM_TOOLS=ON", "-DPYCOMM_PERF_MPI=ON"]
            options.append(f"-DMPI_HOME={self.environment(headers)}")
            self._build(folder, options, "pycomm-perf")
            self._built[headers] = folder / "pycomm-perf"
        return self._built[headers]

    def python_path(self, peer: str) -> Path:
        """A folder with the package pycomm for the Python of a peer's environment."""
        python = self.environment(peer) / "bin" / "python"
        version = "import sys; print('%d%d' % sys.version_info[:2])"
        tag = run([str(python), "-c", version], 60).strip()
        if tag not in self._built:
            folder = self._cache / "python" / tag
            package = folder / "pycomm"
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(ROOT / "pycomm", package, ignore=ignored, dirs_exist_ok=True)
            options = ["-DPYCOMM_PYTHON=ON", f"-DPython_EXECUTABLE={python}"]
            options.append(f"-DPYCOMM_MODULE_DIR={package}")
            self._build(self._cache / "build" / f"python{tag}", options, "_core")
            self._built[tag] = folder
        return self._built[tag]

    def _build(self, folder: Path, options: list[str], target: str) -> None:
        self._say(f"building {target} in {folder}")
        configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"]
        if not (folder / "CMakeCache.txt").exists():
            if shutil.which("ninja"):
                configure += ["-G", "Ninja"]
            if shutil.which("ccache"):
                configure.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
        run([*configure, *options], 300)
        jobs = str(len(os.sched_getaffinity(0)))
        run(["cmake", "--build", str(folder), "--target", target, "-j", jobs], 3600)

    # ---- command lines -----------------------------------------------------------------------

    def mpirun(self, peer: str, ranks: int) -> list[str]:
        """The start of a command line that runs a program under a peer's MPI."""
        command = [str(self.environment(peer) / "bin" / "mpirun")]
        if peer == "openmpi":
            command.append("--allow-run-as-root")
            if ranks > len(os.sched_getaffinity(0)):
                command.append("--oversubscribe")
        # MPICH and Intel MPI start more ranks than cores without being told.
        return [*command, "-n", str(ranks)]

    def variables(self, peer: str) -> dict[str, str]:
        """The environment variables of a run."""
        folder = self.environment(peer)
        found = dict(os.environ)
        found["PATH"] = f"{folder / 'bin'}{os.pathsep}{found.get('PATH', '')}"
        if peer == "impi":
            # Its library takes the place of the one that the program was built with.
            found["LD_LIBRARY_PATH"] = str(folder / "lib")
        return found


class Progress:
    """Prints lines with the time since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        """Prints one line to stderr."""
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        print(f"[{minutes:3d}:{seconds:02d}] {text}", file=sys.stderr, flush=True)
