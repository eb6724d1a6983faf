# How a job ends: exit codes, failures, signals, the time limit, and that nothing of it is left.
from __future__ import annotations

import signal
import subprocess
import time
from typing import Any

import pytest

SLEEPER = """
    import os, time
    rank = os.environ["RANK"]
    open(f"started{rank}", "w").close()
    time.sleep(300)
"""
# Starts a child in its own session whose parent then ends: it is in no group of the rank.
ESCAPER = """
    import os, subprocess, sys, time
    code = "import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True).wait()
    subprocess.Popen(["sleep", "300"])
    open("started" + os.environ["RANK"], "w").close()
"""


def test_all_succeed(launcher: Any) -> None:
    done = launcher.run("-n", "3", launcher.script("print('fine')"))
    assert done.returncode == 0
    assert done.stderr == b""
    assert sorted(done.stdout.splitlines()) == [b"[0] fine", b"[1] fine", b"[2] fine"]


def test_exit_code_of_the_failing_rank(launcher: Any) -> None:
    script = launcher.script("""
        import os, sys, time
        if os.environ["RANK"] == "1":
            sys.exit(3)
        time.sleep(300)
    """)
    start = time.monotonic()
    done = launcher.run("-n", "3", script)
    assert time.monotonic() - start < 5
    assert done.returncode == 3
    assert b"rank 1 (pid " in done.stderr and b"exited with code 3" in done.stderr


def test_exception_shows_its_traceback(launcher: Any) -> None:
    script = launcher.script("""
        import os, time
        if os.environ["RANK"] == "2":
            raise ValueError("bad input in rank two")
        time.sleep(300)  # stands for a barrier
    """)
    start = time.monotonic()
    done = launcher.run("-n", "3", script)
    assert time.monotonic() - start < 10
    assert done.returncode == 1
    traceback = done.stderr.index(b"[2] ValueError: bad input in rank two")
    assert traceback < done.stderr.index(b"pycomm.run: rank 2")


def test_exception_before_a_barrier(launcher: Any) -> None:
    script = launcher.script("""
        import pycomm
        comm = pycomm.init(timeout=60)
        total = comm.all_reduce(__import__("numpy").full(3, 1.0 + comm.rank))
        print("sum", *total)
        if comm.rank == 1:
            raise ValueError("before the barrier")
        comm.barrier()
    """)
    start = time.monotonic()
    done = launcher.run("-n", "3", script)
    assert time.monotonic() - start < 10
    assert done.returncode == 1
    assert b"[1] ValueError: before the barrier" in done.stderr
    assert b"[1] sum 6.0 6.0 6.0" in done.stdout


def test_killed_rank(launcher: Any) -> None:
    script = launcher.script("""
        import os, signal, time
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(300)
    """)
    done = launcher.run("-n", "2", script)
    assert done.returncode == 128 + 9
    assert b"rank 1" in done.stderr and b"SIGKILL" in done.stderr


def test_a_code_above_128_is_not_called_a_signal(launcher: Any) -> None:
    done = launcher.run("-n", "1", launcher.script("import sys; sys.exit(139)"))
    assert done.returncode == 139
    assert b"exited with code 139" in done.stderr


def test_first_failure_counts_even_when_seen_late(launcher: Any) -> None:
    script = launcher.script("""
        import os, sys, time
        rank = int(os.environ["RANK"])
        open(f"started{rank}", "w").close()
        while not os.path.exists(f"go{rank}"):
            time.sleep(0.01)
        sys.exit(10 + rank)
    """)
    process = launcher.start("-n", "3", script)
    launcher.wait_for_files("started0", "started1", "started2")
    process.send_signal(signal.SIGSTOP)
    for rank in (2, 0, 1):
        (launcher.folder / f"go{rank}").touch()
        # The exited ranks are zombies while the launcher is stopped.
        alive = 3 - len(list(launcher.folder.glob("go*")))
        launcher.wait_for(lambda alive=alive: len(launcher.leftovers()) == alive + 2, "exit")
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 12, err
    assert b"rank 2" in err


def test_a_rank_that_ignores_sigterm_is_killed(launcher: Any) -> None:
    script = launcher.script("""
        import os, signal, sys, time
        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open("ready", "w").close()
            time.sleep(300)
        while not os.path.exists("ready"):
            time.sleep(0.01)
        sys.exit(4)
    """)
    start = time.monotonic()
    done = launcher.run("-n", "2", script)
    assert 1.9 < time.monotonic() - start < 5
    assert done.returncode == 4


def test_a_rank_may_clean_up_at_sigterm(launcher: Any) -> None:
    script = launcher.script("""
        import os, signal, sys, time
        def clean(number, frame):
            time.sleep(0.5)
            print("cleaned up")
            sys.exit(0)
        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGTERM, clean)
            open("ready", "w").close()
            time.sleep(300)
        while not os.path.exists("ready"):
            time.sleep(0.01)
        sys.exit(4)
    """)
    done = launcher.run("-n", "2", script)
    assert done.returncode == 4
    assert done.stdout == b"[0] cleaned up\n"


def test_time_limit(launcher: Any) -> None:
    script = launcher.script("""
        import os, time
        time.sleep(0 if os.environ["RANK"] == "1" else 300)
    """)
    start = time.monotonic()
    done = launcher.run("-n", "3", "--timeout", "1.5", script)
    assert 1.4 < time.monotonic() - start < 5
    assert done.returncode == 124
    assert b"1.5 s" in done.stderr and b"ranks 0, 2\n" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_forwarded(launcher: Any, number: signal.Signals) -> None:
    script = launcher.script("""
        import os, signal, sys, time
        def leave(number, frame):
            time.sleep(0.3)
            print("got", number)
            sys.exit(7 if os.environ["RANK"] == "1" else 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, leave)
        open("started" + os.environ["RANK"], "w").close()
        time.sleep(300)
    """)
    process = launcher.start("-n", "2", script)
    launcher.wait_for_files("started0", "started1")
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert sorted(out.splitlines()) == [f"[{rank}] got {int(number)}".encode() for rank in range(2)]
    assert process.returncode == 7
    assert launcher.leftovers() == []


def test_interrupt_is_a_keyboard_interrupt(launcher: Any) -> None:
    process = launcher.start("-n", "2", launcher.script(SLEEPER))
    launcher.wait_for_files("started0", "started1")
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - start < 5
    assert process.returncode == 130
    assert b"[0] KeyboardInterrupt" in err and b"[1] KeyboardInterrupt" in err
    assert launcher.leftovers() == []


def test_second_signal_ends_stubborn_ranks(launcher: Any) -> None:
    script = launcher.script("""
        import os, signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("started" + os.environ["RANK"], "w").close()
        time.sleep(300)
    """)
    process = launcher.start("-n", "2", script)
    launcher.wait_for_files("started0", "started1")
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130
    assert launcher.leftovers() == []


def test_killed_launcher_takes_all_with_it(launcher: Any) -> None:
    script = launcher.script("""
        import os, subprocess, time
        subprocess.Popen(["sleep", "300"])
        subprocess.Popen(["sleep", "300"], preexec_fn=os.setpgrp)
        open("started" + os.environ["RANK"], "w").close()
        time.sleep(300)
    """)
    process = launcher.start("-n", "2", script, stdout=subprocess.DEVNULL)
    launcher.wait_for_files("started0", "started1")
    assert len(launcher.leftovers()) == 2 + 4 + 2  # launcher and guard, children, ranks
    process.kill()
    process.wait()
    assert launcher.leftovers(within=5) == []


@pytest.mark.parametrize("code", [0, 5])
def test_what_the_ranks_started_is_ended_too(launcher: Any, code: int) -> None:
    script = launcher.script(ESCAPER + f"    sys.exit({code})\n")
    start = time.monotonic()
    done = launcher.run("-n", "2", script)  # checks that nothing is left
    assert time.monotonic() - start < 10
    assert done.returncode == code


def test_a_stopped_rank_is_ended(launcher: Any) -> None:
    script = launcher.script("""
        import os, signal, sys, time
        if os.environ["RANK"] == "0":
            open("ready", "w").close()
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(300)
        while not os.path.exists("ready"):
            time.sleep(0.01)
        time.sleep(0.2)
        sys.exit(6)
    """)
    start = time.monotonic()
    assert launcher.run("-n", "2", script).returncode == 6
    assert time.monotonic() - start < 5


def test_adopted_orphans_are_reaped_while_the_job_runs(launcher: Any) -> None:
    script = launcher.script("""
        import os, subprocess, sys, time
        for _ in range(5):
            subprocess.run([sys.executable, "-c", "import subprocess; subprocess.Popen(['true'])"])
        time.sleep(0.5)
        parent = str(os.getppid())
        zombies = 0
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            zombies += fields[0] == "Z" and fields[1] == parent
        print("zombies", zombies)
    """)
    assert launcher.run("-n", "1", script).stdout == b"[0] zombies 0\n"


def test_reader_that_goes_away_ends_the_job(launcher: Any) -> None:
    script = launcher.script("""
        import time
        while True:
            print("line", flush=True)
            time.sleep(0.01)
    """)
    process = launcher.start("-n", "2", script)
    assert process.stdout.readline().endswith(b"line\n")
    process.stdout.close()
    assert process.wait(timeout=20) == 128 + signal.SIGPIPE
    assert launcher.leftovers() == []
    process.stderr.close()


def test_stuck_reader_does_not_stop_the_time_limit(launcher: Any) -> None:
    script = launcher.script("""
        import os, sys
        open("started" + os.environ["RANK"], "w").write(str(os.getpid()))
        while True:
            sys.stdout.buffer.write(b"x" * 99 + b"\\n")
    """)
    process = launcher.start("-n", "2", "--timeout", "1", script)
    launcher.wait_for_files("started0", "started1")
    pids = [int((launcher.folder / f"started{rank}").read_text()) for rank in range(2)]
    # Nobody reads, and the ranks are gone all the same (zombies until the launcher leaves).
    launcher.wait_for(lambda: not set(pids) & set(launcher.leftovers()), "ranks ended", within=10)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 124
    assert {line[4:] for line in out.splitlines()[:-2]} == {b"x" * 99}
    assert b"time limit" in err


def test_descriptors_are_not_leaked_into_ranks(launcher: Any) -> None:
    script = launcher.script("""
        import os
        print(sorted(int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2)[1:])
    """)
    done = launcher.run("-n", "2", script)
    # The first one above 2 is that of the listing itself.
    assert sorted(done.stdout.splitlines()) == [b"[0] []", b"[1] []"]
