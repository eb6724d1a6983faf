# Shared memory that cannot be had, and what is printed.
from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import run_script
from side_by_side import side_by_side

INIT = """
import sys
import numpy as np, pycomm
comm = pycomm.init(timeout=20)
assert comm.all_reduce(np.full(3, comm.rank + 1.0)).tolist() == [3.0] * 3
comm.barrier()
sys.stdout.write(f"{comm.transport}\\n")  # in one piece
"""
SMALL_FILES = """
import os, resource
if "PMI_SIZE" in os.environ or "OMPI_COMM_WORLD_SIZE" in os.environ:
    import mpi4py.MPI  # MPI itself fails under the limit
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
"""
HUGE = str(1 << 34)  # for each rank


def warnings(texts: list[str]) -> list[str]:
    return [line for text in texts for line in text.splitlines() if line]


@pytest.mark.parametrize("why", ["file size", "machine"])
def test_error_when_shared_memory_is_asked_for(launcher: str, why: str) -> None:
    env = {"PYCOMM_TRANSPORT": "shm"}
    if why == "machine":
        env["PYCOMM_BUFFER_BYTES"] = HUGE
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if total > 8 * int(HUGE):
            pytest.skip("this machine has the memory")
    text = (SMALL_FILES if why == "file size" else "") + INIT
    n = 2 if why == "file size" else 8
    job = run_script(n, text, launcher=launcher, env=env)
    assert job.exit_code == 1 and job.seconds < 15, job
    assert re.search(
        r"TransportError: .*wanted \d+ MiB of shared memory, free are \d+ MiB", job.stderr[0]
    ), job.stderr[0]
    if why == "file size":
        assert "free are 1 MiB (RLIMIT_FSIZE)" in job.stderr[0]


@pytest.mark.parametrize("kind", ["run", "mpirun", "env"])
def test_tcp_with_one_warning_otherwise(kind: str) -> None:
    job = run_script(2, SMALL_FILES + INIT, launcher=kind)
    assert job.exit_code == 0, job
    assert "".join(job.stdout).split() == ["tcp", "tcp"]
    lines = warnings(job.stderr)
    assert len(lines) == 1, lines
    assert re.match(r"\[pycomm \S+ \d+ 0/2\] warning: ", lines[0])
    assert "shared memory, free are 1 MiB (RLIMIT_FSIZE)" in lines[0] and "TCP" in lines[0]


def test_symmetric_memory_that_cannot_be_had() -> None:
    text = """
import numpy as np, pycomm
comm = pycomm.init(timeout=20)
for _ in range(2):
    try:
        comm.empty(1 << 44, np.uint8)
    except MemoryError as error:
        assert isinstance(error, pycomm.OutOfMemoryError), error
        assert "rank 0 cannot have 17592186044416 bytes" in str(error), error
        assert "wanted" in str(error), error
    else:
        raise SystemExit("no error")
    assert comm.all_reduce(np.full(3, comm.rank + 1.0)).tolist() == [3.0] * 3
part = comm.empty(1000, np.float32)
assert not part.any()
comm.barrier()
"""
    job = run_script(2, text, launcher="env")
    assert job.exit_codes == [0, 0] and job.stderr == ["", ""], job


@pytest.fixture
def memory_group() -> Iterator[tuple[Path, Path]]:
    """A control group of its own for memory, and the file with its limit."""
    for mount, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup", mount, f"pycomm_test_{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        known = (group / limit).exists()
        if known:
            yield group, group / limit
        end = time.monotonic() + 10
        while group.exists() and time.monotonic() < end:  # until its last process has left
            try:
                group.rmdir()
            except OSError:
                time.sleep(0.1)
        assert not group.exists(), f"{group} cannot be removed"
        if known:
            return
    pytest.skip("control groups cannot be made here")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_memory_that_is_there_for_one_rank_only(
    transport: str, memory_group: tuple[Path, Path]
) -> None:
    """Two ranks in one control group want what it could give to one of them: both are told."""
    group, limit = memory_group
    limit.write_text(str(600 << 20))
    text = f"""
import os
open("{group}/cgroup.procs", "w").write(str(os.getpid()))
import numpy as np, pycomm
comm = pycomm.init(timeout=20)
comm.barrier()
for _ in range(3):
    try:
        comm.empty(300 << 20, np.uint8)
    except pycomm.OutOfMemoryError as error:
        assert "on each of 2 ranks" in str(error) and "control group" in str(error), error
    else:
        raise SystemExit("no error")
x = comm.empty(20 << 18, np.float32)
x[:] = comm.rank + 1
comm.all_reduce(x, out=x)
assert (x == 3).all()
"""
    job = run_script(2, text, launcher="env", env={"PYCOMM_TRANSPORT": transport})
    assert job.exit_codes == [0, 0] and job.stderr == ["", ""], job


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_logs(transport: str) -> None:
    levels = ["", "silent", "warn", "info", "debug"]
    side_by_side(lambda level: check_logs(level, transport), levels, 2)


def check_logs(level: str, transport: str) -> None:
    env = {"PYCOMM_LOG": level, "PYCOMM_TRANSPORT": transport}
    job = run_script(2, INIT, launcher="env", env=env)
    assert job.exit_codes == [0, 0], job
    assert [out.split() for out in job.stdout] == [[transport], [transport]]
    for rank, text in enumerate(job.stderr):
        lines = text.splitlines()
        if level in ("", "silent", "warn"):
            assert lines == [], lines
            continue
        host = re.escape(socket.gethostname())
        prefix = re.compile(rf"\[pycomm {host} \d+ {rank}/2\] \S")
        assert lines and all(prefix.match(line) for line in lines), lines
        if level == "info":
            assert len(lines) == 1 and f"transport {transport}" in lines[0], lines
