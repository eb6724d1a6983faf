# What the launcher accepts, what it refuses and how, and what the ranks find in their environment.
from __future__ import annotations

import json
import os
import socket
from typing import Any

import pytest

from pycomm.run.environment import BLAS_VARIABLES, available_cores, rank_environment

SHOW = """
    import json, os, sys
    print(json.dumps({"environment": dict(os.environ), "words": sys.argv[1:]}))
"""


def shown(output: bytes) -> dict[int, Any]:
    lines = output.decode().splitlines()
    return {int(line[1]): json.loads(line[4:]) for line in lines}


def test_ranks_know_who_they_are(launcher: Any) -> None:
    done = launcher.run("-n", "3", launcher.script(SHOW), "a", "-n", "--timeout", "b c")
    ranks = shown(done.stdout)
    assert sorted(ranks) == [0, 1, 2]
    for rank, seen in ranks.items():
        assert seen["words"] == ["a", "-n", "--timeout", "b c"]
        environment = seen["environment"]
        port = environment["MASTER_PORT"]
        assert int(port) > 0
        expected = {
            "RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1",
            "PYCOMM_STORE": f"tcp://127.0.0.1:{port}",
            "PYCOMM_LAUNCHER": "pycomm.run",
        }
        assert {name: environment.get(name) for name in expected} == expected
    assert len({seen["environment"]["MASTER_PORT"] for seen in ranks.values()}) == 1


def test_store_listens_on_the_port_given_to_the_ranks(launcher: Any) -> None:
    script = launcher.script("""
        import os, socket
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        socket.create_connection(address, timeout=5).close()
        print("connected")
    """)
    done = launcher.run("-n", "2", script)
    assert sorted(done.stdout.splitlines()) == [b"[0] connected", b"[1] connected"], done.stderr


def test_module_and_program(launcher: Any) -> None:
    launcher.script(SHOW, "shower.py")
    done = launcher.run("-n", "2", "-m", "shower", "-m", "x", "--port", "no")
    assert shown(done.stdout)[1]["words"] == ["-m", "x", "--port", "no"]
    done = launcher.run("-n", "2", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    assert sorted(done.stdout.splitlines()) == [b"[0] rank 0 of 2", b"[1] rank 1 of 2"]
    program = launcher.folder / "program"
    program.write_text("#!/bin/sh\necho own program $1\n")
    program.chmod(0o755)
    done = launcher.run("-n1", str(program), "word")
    assert done.stdout == b"[0] own program word\n"


def test_program_that_is_none(launcher: Any) -> None:
    program = launcher.folder / "program"
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o755)
    done = launcher.run("-n", "2", str(program))
    assert done.returncode == 126
    assert b"rank 0 could not be started" in done.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-n", "0", "SCRIPT"], "at least 1, got '0'"),
        (["-n", "x", "SCRIPT"], "at least 1, got 'x'"),
        (["-n", "-2", "SCRIPT"], "at least 1, got '-2'"),
        (["-n", "1.5", "SCRIPT"], "at least 1, got '1.5'"),
        (["SCRIPT"], "-n"),
        (["-n", "2"], "expected a script"),
        (["-n", "2", "missing.py"], "script not found: missing.py"),
        (["-n", "2", "no-such-program-here"], "program not found: no-such-program-here"),
        (["-n", "2", "./notes.txt"], "not executable: ./notes.txt"),
        (["-n", "2", "-m"], "expected a module"),
        (["-n", "2", "--timeout", "0", "SCRIPT"], "above 0, got '0'"),
        (["-n", "2", "--timeout", "nan", "SCRIPT"], "above 0, got 'nan'"),
        (["-n", "2", "--timeout", "soon", "SCRIPT"], "above 0, got 'soon'"),
        (["-n", "2", "--port", "65536", "SCRIPT"], "0 to 65535, got '65536'"),
        (["-n", "2", "--prot", "1", "SCRIPT"], "--prot"),
    ],
)
def test_bad_arguments(launcher: Any, words: list[str], complaint: str) -> None:
    script = launcher.script("open('ran', 'w').close()")
    (launcher.folder / "notes.txt").write_text("text")
    done = launcher.run(*[script if word == "SCRIPT" else word for word in words])
    assert done.returncode == 2
    assert complaint in done.stderr.decode()
    assert b"usage: python -m pycomm.run" in done.stderr
    assert not (launcher.folder / "ran").exists()


def test_help_tells_about_threads(launcher: Any) -> None:
    done = launcher.run("--help")
    assert done.returncode == 0
    assert b"cores // N" in done.stdout and b"OMP_NUM_THREADS" in done.stdout


def test_occupied_port(launcher: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = launcher.run("-n", "2", "--port", str(port), launcher.script("print('ran')"))
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr.decode()
    assert done.stdout == b""


def test_two_jobs_at_once(launcher: Any) -> None:
    script = launcher.script("""
        import os, sys, time
        own, other = sys.argv[1:]
        open(own + os.environ["RANK"], "w").close()
        while not (os.path.exists(other + "0") and os.path.exists(other + "1")):
            time.sleep(0.01)
        print(os.environ["MASTER_PORT"])
    """)
    jobs = [
        launcher.start("-n", "2", "--timeout", "30", script, *names)
        for names in (("a", "b"), ("b", "a"))
    ]
    ports = [set(job.communicate(timeout=40)[0].decode().split()[1::2]) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0]
    assert len(ports[0]) == len(ports[1]) == 1 and ports[0] != ports[1]


def test_given_port_is_used(launcher: Any) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = launcher.run("-n", "1", "--port", str(port), launcher.script(SHOW))
    assert shown(done.stdout)[0]["environment"]["MASTER_PORT"] == str(port)


def test_variables_of_other_launchers_are_removed(launcher: Any) -> None:
    foreign = {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "8",
        "PMI_RANK": "3",
        "PMI_SIZE": "8",
        "PMI_FD": "9",
        "PMIX_RANK": "3",
        "PMIX_NAMESPACE": "x",
        "MPI_LOCALRANKID": "3",
        "TORCHELASTIC_RUN_ID": "x",
        "GROUP_RANK": "1",
        "ROLE_WORLD_SIZE": "8",
        "RANK": "5",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "elsewhere",
        "LOCAL_RANK": "5",
    }
    done = launcher.run("-n", "1", launcher.script(SHOW), **foreign, OWN_VARIABLE="kept")
    environment = shown(done.stdout)[0]["environment"]
    own = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "LOCAL_RANK": "0"}
    assert {name: environment.get(name) for name in foreign} == {
        **dict.fromkeys(foreign), **own
    }  # fmt: skip
    assert environment["OWN_VARIABLE"] == "kept"


@pytest.mark.parametrize(
    ("size", "cores", "outer", "expected"),
    [
        (4, 16, {}, ["4", "4", "4"]),
        (3, 16, {}, ["5", "5", "5"]),
        (8, 2, {}, ["1", "1", "1"]),
        (1, 16, {}, [None, None, None]),
        (4, 16, {"OPENBLAS_NUM_THREADS": "7"}, [None, "7", None]),
        (4, 16, {"OMP_NUM_THREADS": "3"}, ["3", None, None]),
    ],
)
def test_threads_of_blas(
    size: int, cores: int, outer: dict[str, str], expected: list[str | None]
) -> None:
    environment = rank_environment(outer, 0, size, 1234, cores)
    assert [environment.get(name) for name in BLAS_VARIABLES] == expected


def test_available_cores() -> None:
    assert available_cores() == len(os.sched_getaffinity(0))
