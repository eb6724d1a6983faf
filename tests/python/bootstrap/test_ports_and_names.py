# Ports that are taken, host names that nobody knows, network interfaces that are not there.
from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from ranks import Finished, free_port, rank_environment, run_script

INIT = """
import sys
import numpy as np, pycomm
comm = pycomm.init(timeout=8)
comm.all_reduce(np.full(3, comm.rank + 1.0))
comm.barrier()
sys.stdout.write(f"{comm.rank} {comm.size} {comm.transport}\\n")  # in one piece
"""


@pytest.fixture
def foreign_server() -> Iterator[int]:
    """The port of a program that answers everyone in its own way."""
    with socket.socket() as server:
        server.bind(("0.0.0.0", 0))
        server.listen()
        server.settimeout(0.1)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    continue
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        stop.set()
        thread.join()


def last_lines(job: Finished) -> list[str]:
    return [err.strip().splitlines()[-1] for err in job.stderr]


def test_occupied_port(foreign_server: int) -> None:
    env = {"MASTER_PORT": str(foreign_server)}
    job = run_script(2, INIT, launcher="env", env=env, timeout=30)
    assert job.exit_codes == [1, 1] and job.seconds < 20, job
    first, second = last_lines(job)
    place = f"127.0.0.1:{foreign_server}"
    assert "TransportError" in first and place in first and "in use" in first, first
    assert "TransportError" in second and place in second and "listens there" in second, second


def test_two_jobs_at_once() -> None:
    """Without a port given, the launcher takes a free one."""
    jobs: list[Finished] = []
    text = INIT + "import time; time.sleep(0.5); comm.barrier()"
    threads = [
        threading.Thread(target=lambda: jobs.append(run_script(2, text, launcher="run")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [job.exit_code for job in jobs] == [0, 0, 0], jobs
    assert all(sorted(job.stdout[0].splitlines()) == ["0 2 shm", "1 2 shm"] for job in jobs)


def test_unknown_host_name() -> None:
    env = {"MASTER_ADDR": "no-such-host.invalid", "RANK": "1", "WORLD_SIZE": "2"}
    env["MASTER_PORT"] = str(free_port())
    done = subprocess.run(
        [sys.executable, "-c", INIT],
        env=rank_environment(env),
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "no-such-host.invalid" in last, done
    assert "resolve" in last and last.startswith("pycomm.errors."), last


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "own name"])
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_addresses_of_this_machine(address: str, transport: str) -> None:
    name = socket.gethostname() if address == "own name" else address
    env = {"MASTER_ADDR": name, "PYCOMM_TRANSPORT": transport}
    job = run_script(2, INIT, launcher="env", env=env)
    assert job.exit_codes == [0, 0], job


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("kind", ["run", "env", "mpirun"])
def test_own_name_that_does_not_resolve(kind: str, transport: str) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    rename = ["unshare", "--uts", "sh", "-c", "hostname unknown-to-all.invalid"]
    if subprocess.run(rename, capture_output=True).returncode != 0:
        pytest.skip("this user may not rename a host")
    script = f"""
import os, socket, sys
import ctypes
if os.environ.get("RENAMED") is None:
    os.environ["RENAMED"] = "1"
    command = [sys.executable, "-c", {INIT!r}]
    words = " ".join(f"'{{word}}'" for word in command)
    os.execvp("unshare", ["unshare", "--uts", "sh", "-c",
              'hostname unknown-to-all.invalid; exec "$0" "$@"', *command])
"""
    env = {"PYCOMM_TRANSPORT": transport}
    if kind == "env":
        env["MASTER_ADDR"] = "unknown-to-all.invalid"
    job = run_script(2, script, launcher=kind, env=env)
    wanted = "shm" if transport == "auto" else "tcp"
    lines = sorted("".join(job.stdout).splitlines())
    assert lines == [f"{rank} 2 {wanted}" for rank in range(2)], job


@pytest.mark.parametrize("kind", ["run", "env"])
def test_unknown_interface(kind: str) -> None:
    env = {"PYCOMM_IFNAME": "nosuch0", "PYCOMM_TRANSPORT": "tcp"}
    job = run_script(2, INIT, launcher=kind, env=env)
    assert job.exit_code == 1 and job.seconds < 10, job
    for err in job.stderr:
        assert "nosuch0" in err and "lo (127.0.0.1)" in err, err
    interfaces = [name for _, name in socket.if_nameindex()]
    assert "lo" in interfaces


def test_known_interface() -> None:
    env = {"PYCOMM_IFNAME": "lo", "PYCOMM_TRANSPORT": "tcp"}
    job = run_script(2, INIT, launcher="env", env=env)
    assert job.exit_codes == [0, 0] and os.environ.get("PYCOMM_IFNAME") is None, job
