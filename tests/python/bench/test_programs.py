# The benchmark as a program, on real ranks: under the launcher, and under mpirun beside mpi4py.
from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pycomm.bench
from pycomm.bench import OPERATIONS

LIMIT_S = 110.0
_ROOT = str(Path(pycomm.bench.__file__).resolve().parents[2])
_LAUNCHER = [sys.executable, "-m", "pycomm.run", "--no-prefix", "--timeout", "100"]

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed"
)


def mpirun() -> list[str]:
    """Returns the mpirun that belongs to this Python's mpi4py."""
    own = Path(sys.executable).parent / "mpirun"
    found = str(own) if own.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("no mpirun")
    return [found]


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH", "")])),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )


def rows(output: str) -> list[list[str]]:
    lines = output.splitlines()
    return [line.split() for line in lines if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize(("ranks", "dtype"), [(1, "float32"), (2, "bfloat16"), (3, "int16")])
def test_all_operations(tmp_path: Path, ranks: int, dtype: str) -> None:
    words = [
        "all",
        "-b",
        "6",
        "-e",
        "600K",
        "-f",
        "100",
        "-n",
        "3",
        "-w",
        "1",
        "--json",
        "results.json",
        "--dtype",
    ]
    command = [*_LAUNCHER, "-n", str(ranks), "-m", "pycomm.bench", *words, dtype]
    done = run(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results.json").read_text())["operations"]
    names = [name for name in OPERATIONS if ranks > 1 or not OPERATIONS[name].pairwise]
    assert [report["operation"] for report in found] == names
    assert all(report["wrong"] == 0 and report["ranks"] == ranks for report in found)
    assert all(line[8] in ("0", "N/A") and line[12] in ("0", "N/A") for line in rows(done.stdout))


def test_symmetric_memory(tmp_path: Path) -> None:
    words = ["all_reduce", "-b", "4", "-e", "1M", "-f", "64", "-n", "3", "-w", "1", "--symmetric"]
    done = run(*_LAUNCHER, "-n", "2", "-m", "pycomm.bench", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(rows(done.stdout)) == 4


def test_limit(tmp_path: Path) -> None:
    words = ["all_reduce", "-b", "64K", "-e", "1M", "-f", "16", "-n", "4", "-w", "1", "--limit"]
    done = run(*_LAUNCHER, "-n", "2", "-m", "pycomm.bench", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for line in rows(done.stdout):
        assert len(line) == 21
        assert float(line[15]) > 0 and line[16].endswith("%")


def test_bad_arguments_are_said_once(tmp_path: Path) -> None:
    words = ["broadcast", "--root", "3"]
    done = run(*_LAUNCHER, "-n", "3", "-m", "pycomm.bench", *words, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("the root must be from 0 to 2, got 3") == 1
    assert done.stdout == ""


def test_wrong_result_is_a_failure(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(
        "import sys\n"
        "import pycomm\n"
        "from pycomm.bench.cli import main\n"
        "comm = pycomm.init()\n"
        "real = comm.all_reduce\n"
        "def all_reduce(x, op, out):\n"
        "    result = real(x, op, out)\n"
        "    if comm.rank == 1:\n"
        "        result[len(result) // 2] += 1\n"
        "comm.all_reduce = all_reduce\n"
        "sys.exit(main(sys.argv[1:], comm))\n"
    )
    words = ["all_reduce", "-b", "4K", "-e", "4K", "-n", "1", "-w", "0", "--out-of-place"]
    done = run(*_LAUNCHER, "-n", "2", str(script), *words, folder=tmp_path)
    assert done.returncode == 1
    assert [line[8] for line in rows(done.stdout)] == ["1"]
    assert "1 (FAILED)" in done.stdout


@needs_mpi
def test_compare_needs_mpirun(tmp_path: Path) -> None:
    words = ["all_reduce", "-b", "4", "-e", "4", "--compare"]
    command = [*_LAUNCHER, "-n", "2", "-m", "pycomm.bench", *words]
    done = run(*command, "mpi4py", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("--compare mpi4py: MPI is not running: start the benchmark with") == 1
    # What is there is measured, what is not is said.
    done = run(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# mpi4py not measured: MPI is not running") == 1
    assert done.stdout.count("# nccl not measured: ") == 1


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("dtype", "symmetric"), [("float32", False), ("float32", True), ("bfloat16", False)]
)
def test_compare(tmp_path: Path, dtype: str, symmetric: bool) -> None:
    words = [
        "all",
        "-b",
        "8",
        "-e",
        "80K",
        "-f",
        "100",
        "-n",
        "8",
        "-w",
        "1",
        "--compare",
        "mpi4py",
        "--json",
        "results.json",
        "--dtype",
    ]
    words += [dtype, "--symmetric"] if symmetric else [dtype]
    command = [*mpirun(), "-n", "3", sys.executable, "-m", "pycomm.bench", *words]
    done = run(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for report in json.loads((tmp_path / "results.json").read_text())["operations"]:
        assert report["wrong"] == 0
        for row in report["rows"]:
            for found in row["places"].values():
                peer_us = found["peers_us"]["mpi4py"]
                if OPERATIONS[report["operation"]].reduces and dtype == "bfloat16":
                    assert peer_us is None
                else:
                    assert peer_us > 0
                    assert found["peers_wrong"] == {"mpi4py": 0}
                if report["operation"] == "barrier":
                    assert found["limit_us"] is None
                else:
                    assert found["limit_us"] > 0
                    percent = 100 * found["limit_us"] / found["time_us"]
                    assert found["percent_of_limit"] == pytest.approx(percent)
    assert all(len(line) == 25 for line in rows(done.stdout))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16"])
def test_compare_with_gloo(tmp_path: Path, dtype: str) -> None:
    words = ["all", "-b", "8", "-e", "80K", "-f", "100", "-n", "4", "-w", "1", "--root", "1"]
    words += ["--compare", "gloo", "--json", "results.json", "--dtype", dtype]
    done = run(*_LAUNCHER, "-n", "3", "-m", "pycomm.bench", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for report in json.loads((tmp_path / "results.json").read_text())["operations"]:
        measured = [
            found
            for row in report["rows"]
            for found in row["places"].values()
            if found["peers_us"]["gloo"] is not None
        ]
        if dtype == "int16" and OPERATIONS[report["operation"]].reduces:
            assert not measured
            continue
        assert measured
        assert all(found["peers_us"]["gloo"] > 0 for found in measured)
        assert all(found["peers_wrong"] == {"gloo": 0} for found in measured)


@needs_mpi
@pytest.mark.mpi
def test_wrong_result_of_another_library_is_a_failure(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(
        "import sys\n"
        "from functools import partial\n"
        "import pycomm\n"
        "from pycomm.bench import peers\n"
        "from pycomm.bench.cli import main\n"
        "comm = pycomm.init()\n"
        "def wrong(self, case, buffers):\n"
        "    return partial(buffers.recv.fill, 0)\n"
        "peers.Mpi4pyPeer._broadcast = wrong\n"
        "sys.exit(main(sys.argv[1:], comm))\n"
    )
    words = ["broadcast", "-b", "4K", "-e", "4K", "-n", "1", "-w", "0", "--compare", "mpi4py"]
    done = run(*mpirun(), "-n", "2", sys.executable, str(script), *words, folder=tmp_path)
    assert done.returncode != 0
    assert "# wrong elements       : 0 (OK)" in done.stdout
    assert "# wrong elements, mpi4py: " in done.stdout
