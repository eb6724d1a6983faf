# Programs that end without close(): within seconds, with the right exit code, quietly.
from __future__ import annotations

import pytest
from ranks import run_script
from side_by_side import side_by_side

QUICK = 5.0

# name -> what a program does after init(), on every rank unless it says otherwise.
PROGRAMS = {
    "no close": "comm.barrier()",
    "exit 0": "comm.barrier(); sys.exit(0)",
    "no reference": "comm = None",
    "async in flight": """
if comm.rank == 0:
    keep = comm.all_reduce(np.ones(1000), async_op=True)
    del keep
""",
    "large async in flight": """
works = [comm.all_reduce(np.ones(1 << 20), async_op=True) for _ in range(3)]
""",
    "async on a split in flight": """
sub = comm.split(0)
if comm.rank == 0:
    work = sub.all_reduce(np.ones(1 << 20), async_op=True)
""",
    "irecv in flight": "work = comm.recv(np.ones(5), 1 - comm.rank, async_op=True)",
    "isend in flight": "work = comm.send(np.ones(4 << 20), 1 - comm.rank, async_op=True)",
    "global cycle": """
class Holder:
    pass
holder = Holder()
holder.comm, holder.own = comm, holder
holder.sub = comm.split(comm.rank)
sys.modules["kept"] = holder
""",
    "shared allocator left open": """
held = pycomm.shared_allocator(comm)
held.__enter__()
sys.kept = np.zeros(100_000)
""",
    "symmetric memory kept": "sys.kept = comm.empty(1000); comm.barrier()",
    "closed twice": "comm.close(); comm.close()",
    "from another thread": """
def body():
    comm.barrier()
    comm.all_reduce(np.ones(3), async_op=True).wait()
thread = threading.Thread(target=body)
thread.start()
thread.join()
""",
    "daemon thread in a wait": """
def body():
    comm.recv(np.ones(3), 1 - comm.rank)
for _ in range(4):
    threading.Thread(target=body, daemon=True).start()
time.sleep(0.2)
""",
    "daemon thread in a loop": """
sub = comm.split(0)
def body():
    x = np.ones(10)
    while True:
        try:
            sub.all_reduce(x)
        except Exception:
            pass
threading.Thread(target=body, daemon=True).start()
time.sleep(0.3)
comm.barrier()
""",
    "daemon thread waits for work": """
def body():
    comm.recv(np.ones(3), 1 - comm.rank, async_op=True).wait()
threading.Thread(target=body, daemon=True).start()
time.sleep(0.2)
""",
    "threads of one process": """
ranks = pycomm.thread_world(3)
works = [rank.barrier(async_op=True) for rank in ranks[:2]]
""",
    "fork": """
import multiprocessing
def child(queue):
    queue.put(sum(range(10)))
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, args=(queue,))
process.start()
assert queue.get() == 45
process.join()
assert process.exitcode == 0
assert comm.all_reduce(np.full(3, comm.rank + 1.0)).tolist() == [3.0] * 3
comm.barrier()
""",
    "fork with work in flight": """
work = comm.all_reduce(np.full(3, comm.rank + 1.0), async_op=True)
pid = os.fork()
if pid == 0:
    try:
        comm.barrier()
    except pycomm.ArgumentError as error:
        assert "forked from rank" in str(error), error
    else:
        os._exit(3)
    try:
        pycomm.init()
    except pycomm.ArgumentError as error:
        assert "forked from rank" in str(error), error
    else:
        os._exit(4)
    comm.close()
    sys.exit(0)  # through the handlers at exit
assert os.waitpid(pid, 0)[1] == 0
assert work.wait().tolist() == [3.0] * 3
comm.barrier()
time.sleep(0.2)
comm.barrier()
""",
    "fork and drop": """
sub = comm.split(0)
sub.all_reduce(np.ones(3), async_op=True).wait()
pid = os.fork()
if pid == 0:
    del sub, comm
    gc.collect()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
sub.barrier()
comm.barrier()
""",
}
HEADER = """
import gc, os, sys, threading, time
import numpy as np
import pycomm
comm = pycomm.init(timeout=30)
"""


def test_ends_quietly() -> None:
    side_by_side(check_end, PROGRAMS, workers=2)


def check_end(name: str) -> None:
    job = run_script(2, HEADER + PROGRAMS[name], launcher="env", timeout=20)
    assert job.exit_codes == [0, 0], job
    assert job.stderr == ["", ""] and job.stdout == ["", ""], job
    assert job.seconds < QUICK, job.seconds


@pytest.mark.parametrize(
    "name", ["no close", "exit 0", "async in flight", "irecv in flight", "daemon thread in a wait"]
)
def test_ends_quietly_under_mpirun(name: str) -> None:
    job = run_script(2, HEADER + PROGRAMS[name], launcher="mpirun", timeout=20)
    assert job.exit_code == 0 and job.stderr == [""], job
    assert job.seconds < QUICK + 2, job.seconds


@pytest.mark.parametrize("name", ["async in flight", "isend in flight", "daemon thread in a wait"])
def test_ends_quietly_over_tcp(name: str) -> None:
    job = run_script(
        2, HEADER + PROGRAMS[name], launcher="env", timeout=20, env={"PYCOMM_TRANSPORT": "tcp"}
    )
    assert job.exit_codes == [0, 0] and job.stderr == ["", ""], job
    assert job.seconds < QUICK + 2, job.seconds


RAISES = """
if comm.rank == 1:
    raise ValueError("planted on rank 1")
comm.barrier()
"""
RAISES_BEFORE_INIT = """
import os
names = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
if "1" in [os.environ.get(name) for name in names]:
    raise ValueError("planted on rank 1")
import pycomm
pycomm.init(timeout=4).barrier()  # MPICH's mpirun does not tell of ranks that end before MPI starts
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_exception_on_one_rank_ends_the_job(launcher: str, transport: str) -> None:
    job = run_script(
        3, HEADER + RAISES, launcher=launcher, timeout=30, env={"PYCOMM_TRANSPORT": transport}
    )
    assert job.exit_code != 0 and job.seconds < 10, job
    assert "ValueError: planted on rank 1" in job.stderr[0]
    assert "Traceback" in job.stderr[0] and "Segmentation" not in job.stderr[0]


def test_exception_before_init_ends_the_job(launcher: str) -> None:
    job = run_script(3, RAISES_BEFORE_INIT, launcher=launcher, timeout=30)
    assert job.exit_code != 0 and job.seconds < 10, job
    assert "ValueError: planted on rank 1" in job.stderr[0]


def test_exit_code_of_a_rank_is_the_launchers() -> None:
    text = HEADER + "if comm.rank == 1: sys.exit(3)\ncomm.barrier(); time.sleep(60)"
    job = run_script(3, text, launcher="run", timeout=30)
    assert job.exit_code == 3 and job.seconds < 8, job


def test_exception_in_a_with_block_tells_the_others() -> None:
    text = HEADER + "\nwith comm:\n    if comm.rank == 0: raise KeyError('why')\n    comm.barrier()"
    job = run_script(2, text, launcher="env", timeout=30)
    assert job.exit_codes == [1, 1] and job.seconds < QUICK, job
    assert "AbortedError" in job.stderr[1] and "rank 0 aborted: KeyError: 'why'" in job.stderr[1]
