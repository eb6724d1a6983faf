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
    done = run(*_LAUNCHER, "-n", "2", "-m", "pycomm.bench", *words, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("start the benchmark with mpirun") == 1


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compare(tmp_path: Path, dtype: str) -> None:
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
        "--json",
        "results.json",
        "--dtype",
    ]
    command = [*mpirun(), "-n", "3", sys.executable, "-m", "pycomm.bench", *words, dtype]
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
    assert all(len(line) == 21 for line in rows(done.stdout))
