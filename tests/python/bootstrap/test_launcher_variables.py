# Variables of launchers: right ones work, contradictory ones give an error that names both sides.
from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping

import pytest
from ranks import free_port, rank_environment, run_script
from side_by_side import side_by_side

INIT = """
import sys
import numpy as np, pycomm
comm = pycomm.init(timeout=20)
total = float(comm.all_reduce(np.full(3, comm.rank + 1.0))[1])
comm.barrier()
sys.stdout.write(f"{comm.rank} {comm.size} {total} {comm.transport}\\n")  # in one piece
"""


def alone(text: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A process that no launcher started, with these variables."""
    return subprocess.run(
        [sys.executable, "-c", text],
        env=rank_environment(env),
        capture_output=True,
        text=True,
        timeout=40,
    )


# Variables -> words of the ArgumentError.
CONTRADICTIONS: dict[str, tuple[dict[str, str], list[str]]] = {
    "rank alone": ({"RANK": "0"}, ["RANK=0 is set but WORLD_SIZE is not"]),
    "size alone": ({"WORLD_SIZE": "4"}, ["WORLD_SIZE=4 is set but RANK is not"]),
    "rank too large": (
        {"RANK": "2", "WORLD_SIZE": "2"},
        ["RANK=2 and WORLD_SIZE=2 contradict each other"],
    ),
    "negative rank": ({"RANK": "-1", "WORLD_SIZE": "2"}, ["RANK=-1 and WORLD_SIZE=2"]),
    "no ranks": ({"RANK": "0", "WORLD_SIZE": "0"}, ["RANK=0 and WORLD_SIZE=0"]),
    "rank of letters": ({"RANK": "one", "WORLD_SIZE": "2"}, ["RANK=one is not an integer"]),
    "size of letters": ({"RANK": "0", "WORLD_SIZE": "2.5"}, ["WORLD_SIZE=2.5 is not an integer"]),
    "no address": (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "3000"},
        ["RANK=1 and WORLD_SIZE=2 are set but MASTER_ADDR is not"],
    ),
    "no port": (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"},
        ["MASTER_PORT is not"],
    ),
    "port of letters": (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "http"},
        ["MASTER_PORT=http is not an integer"],
    ),
    "port too large": (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "70000"},
        ["MASTER_PORT is 70000", "65535"],
    ),
    "store address": (
        {"RANK": "1", "WORLD_SIZE": "2", "PYCOMM_STORE": "localhost"},
        ["PYCOMM_STORE=localhost", "tcp://host:port"],
    ),
    "two launchers": (
        {"PMI_RANK": "0", "PMI_SIZE": "2", "RANK": "1", "WORLD_SIZE": "3"},
        ["PMI_RANK=0", "PMI_SIZE=2", "RANK=1", "WORLD_SIZE=3", "unset RANK and WORLD_SIZE"],
    ),
    "two launchers of the same size": (
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "RANK": "1", "WORLD_SIZE": "2"},
        ["OMPI_COMM_WORLD_RANK=0", "RANK=1"],
    ),
}


def test_contradictions() -> None:
    names = list(CONTRADICTIONS)
    side_by_side(check_contradiction, names, workers=2)


def check_contradiction(name: str) -> None:
    env, words = CONTRADICTIONS[name]
    done = alone(INIT, env)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("pycomm.errors.ArgumentError"), done
    for word in words:
        assert word in last, last


# Malformed settings -> the variable that the error names.
MALFORMED = [
    ("PYCOMM_TIMEOUT", "soon"),
    ("PYCOMM_TIMEOUT", "-3"),
    ("PYCOMM_TIMEOUT", "nan"),
    ("PYCOMM_TIMEOUT", "0"),
    ("PYCOMM_TIMEOUT", "1e400"),
    ("PYCOMM_ALGO", "all_reduce:fastest"),
    ("PYCOMM_ALGO", "all_reduces:ring"),
    ("PYCOMM_ALGO", "ring"),
    ("PYCOMM_TRANSPORT", "pigeon"),
    ("PYCOMM_BUFFER_BYTES", "12"),
    ("PYCOMM_BUFFER_BYTES", "8M"),
    ("PYCOMM_CHECK", "yes"),
    ("PYCOMM_LOG", "loud"),
    ("PYCOMM_SIMD", "mmx"),
    ("PYCOMM_CMA", "on"),
]


def test_malformed_settings() -> None:
    side_by_side(lambda case: check_malformed(*case), MALFORMED, workers=2)


def check_malformed(variable: str, value: str) -> None:
    done = alone(INIT, {variable: value})
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("pycomm.errors.ArgumentError"), done
    assert variable in last and value in last, last


def test_different_settings_name_both() -> None:
    text = """
        import os
        if os.environ["RANK"] == "2":
            os.environ.update(PYCOMM_ALGO="all_reduce:ring", PYCOMM_BUFFER_BYTES="1000000")
    """
    job = run_script(3, text + "\n" + _indented(INIT), launcher="env", timeout=30)
    assert job.exit_codes == [1, 1, 1] and job.seconds < 10, job
    for err in job.stderr:
        last = err.strip().splitlines()[-1]
        assert last.startswith("pycomm.errors.ArgumentError") and "rank 2" in last, last
        assert "PYCOMM_ALGO=all_reduce:ring" in last and "PYCOMM_BUFFER_BYTES=8388608" in last


def _indented(text: str) -> str:
    return "\n".join(" " * 8 + line for line in text.strip().splitlines())


@pytest.mark.parametrize(
    "names", [("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")]
)
def test_mpirun_of_another_mpi(names: tuple[str, str]) -> None:
    pytest.importorskip("mpi4py")
    # What MPI reads itself would make it wait for a process manager; only pycomm is to see them.
    text = f"""
import mpi4py.MPI, os
os.environ.update({{"{names[0]}": "1", "{names[1]}": "2"}})
import pycomm
pycomm.init(timeout=20)
"""
    done = alone(text, {})
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("pycomm.errors.ArgumentError"), done
    for word in (f"{names[1]}=2", "belongs to another MPI", "call the mpirun of"):
        assert word in last, last
    assert "rank 0 of 1" in last or ("OMPI" in names[1] and "MPICH" in last), last


def test_open_mpi_launches_mpi4py_of_mpich() -> None:
    pytest.importorskip("mpi4py")
    text = "import mpi4py; mpi4py.rc.initialize = False\nfrom mpi4py import MPI\n"
    if "MPICH" not in alone(text + "print(MPI.Get_library_version())", {}).stdout:
        pytest.skip("mpi4py does not use MPICH")
    env = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    done = alone(INIT, env)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("pycomm.errors.ArgumentError"), done
    for word in ("OMPI_COMM_WORLD_SIZE=2", "MPICH", "belongs to another MPI", "call the mpirun of"):
        assert word in last, last


def test_mpirun_without_mpi4py() -> None:
    text = "import sys; sys.modules['mpi4py'] = None\nimport pycomm; pycomm.init()"
    done = alone(text, {"PMI_RANK": "0", "PMI_SIZE": "2"})
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("pycomm.errors.ArgumentError") and "PMI_SIZE=2" in last, done
    assert "pip install" in last and "pycomm.run -n 2" in last


def test_mpirun_of_one_needs_no_mpi4py() -> None:
    text = "import sys; sys.modules['mpi4py'] = None\n" + INIT
    done = alone(text, {"PMI_RANK": "0", "PMI_SIZE": "1"})
    assert done.returncode == 0 and done.stdout.split() == ["0", "1", "1.0", "inproc"], done


def test_both_launchers_agree() -> None:
    env = {"PMI_RANK": "0", "PMI_SIZE": "1", "RANK": "0", "WORLD_SIZE": "1"}
    assert alone(INIT, env).returncode == 0


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("kind", ["run", "env", "mpirun"])
def test_ways_to_start(kind: str, n: int) -> None:
    job = run_script(n, INIT, launcher=kind, timeout=40)
    assert job.exit_code == 0, job
    lines = sorted("".join(job.stdout).split("\n")[:-1])
    transport = "shm" if n > 1 else "inproc"
    assert lines == [f"{rank} {n} {n * (n + 1) / 2} {transport}" for rank in range(n)], lines


CHILD_OF_A_RANK = """
import os, subprocess, sys, time
import numpy as np, pycomm
comm = pycomm.init(timeout=20)
code = "import pycomm; c = pycomm.init(timeout=20); print('world of', c.size)"
started = time.monotonic()
child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
assert "ArgumentError: this process inherited RANK=" in child.stderr, child.stderr
assert f"from process {os.getpid()}," in child.stderr, child.stderr
assert time.monotonic() - started < 10
alone = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
command = [sys.executable, "-c", code]
child = subprocess.run(command, env=alone, capture_output=True, text=True, timeout=30)
assert child.stdout == "world of 1\\n", child
comm.close()
comm = pycomm.init(timeout=20)  # the rank itself may come back
assert comm.all_reduce(np.ones(1))[0] == comm.size
"""


@pytest.mark.parametrize("kind", ["run", "env"])
def test_a_child_of_a_rank_is_not_that_rank(kind: str) -> None:
    job = run_script(2, CHILD_OF_A_RANK, launcher=kind, timeout=60)
    assert job.exit_code == 0, job


def test_torchrun_keeps_the_port_for_itself() -> None:
    with socket.socket() as agent:  # speaks another protocol
        agent.bind(("127.0.0.1", 0))
        agent.listen()
        env = {
            "MASTER_PORT": str(agent.getsockname()[1]),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": "none",
        }
        job = run_script(3, INIT, launcher="env", timeout=40, env=env)
    assert job.exit_codes == [0, 0, 0], job
    assert [out.split()[:3] for out in job.stdout] == [[str(r), "3", "6.0"] for r in range(3)]


def test_two_torchrun_jobs_at_once() -> None:
    """A job finds the other one's store on the ports that it tries, and goes on."""
    port = str(free_port())

    def check(name: str) -> None:
        env = {
            "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": name,
        }
        job = run_script(2, INIT, launcher="env", env=env)
        assert job.exit_codes == [0, 0], job
        assert [out.split()[:3] for out in job.stdout] == [[str(r), "2", "3.0"] for r in range(2)]

    side_by_side(check, ["first", "second"])
