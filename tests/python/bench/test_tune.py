# Tuning, and the profile that init reads.
from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks, run_script

from pycomm import _core
from pycomm.bench.tune import KINDS, beats, best_limit, kept_rows, thresholds
from pycomm.bench.tune_calls import Call

HEAD = f"pycomm-profile 1\nmachine {_core.machine_name()}\n"
ROWS = (
    "shm 2 all_reduce 4096 recursive_halving\nshm 2 all_reduce any pairwise\n"
    "shm 1 all_reduce any recursive_doubling\n"
)


def test_thresholds() -> None:
    sizes = (16, 64, 256, 1024)
    assert thresholds(sizes, ["a", "a", "b", "b"]) == [(128, "a"), (None, "b")]
    assert thresholds(sizes, ["a", "b", "a", "a"]) == [(32, "a"), (128, "b"), (None, "a")]
    assert thresholds(sizes[:1], ["a"]) == [(None, "a")]


def test_limits() -> None:
    sizes = (16, 64, 256, 1024)
    below = [1.0, 1.0, 2.0, 4.0]
    above = [2.0, 2.0, 1.0, 1.0]
    assert best_limit(sizes, below, above, above) == 128
    assert best_limit(sizes, [1.0] * 4, [2.0] * 4, [1.0] * 4) is None
    assert best_limit(sizes, below, above, [1.0, 1.0, 1.0, 1.02]) is None
    assert best_limit(sizes, [2.0] * 4, [1.0] * 4, [2.0] * 4) == 0
    assert best_limit(sizes, [1.0] * 4, [2.0] * 4, [2.0] * 4) == 1024


def test_beats() -> None:
    assert beats([1.0] * 4, [1.06] * 4)
    assert not beats([1.0] * 4, [1.04] * 4)
    assert not beats([1.0, 1.0, 5.0, 5.0, 1.0], [2.0] * 5)
    assert beats([1.0, 1.0, 1.0, 5.0], [2.0] * 4)


LIMIT_NAMES = ("copied", "staged", "claimed", "piped")

SCRIPT = """
import numpy as np, pycomm
from pycomm import _core
comm = pycomm.init(timeout=20)
sub = comm.split(0)
number = _core.KINDS["all_reduce"]
for group in (comm, sub):
    for count in (4, 1000, 5000, 100_000):
        x = np.arange(count) + comm.rank
        assert (group.all_reduce(x) == np.arange(count) * 2 + 1).all()
choices = [comm._core.choice(number, size) for size in (4096, 4097)]
assert choices == [sub._core.choice(number, size) for size in (4096, 4097)]
print(*choices, comm._core.choice(_core.KINDS["reduce"], 5))
"""


def choices_of_all(profile: Path, **environment: str) -> tuple[set[str], list[list[str]]]:
    """What the ranks chose, and the lines of their logs."""
    env = {"PYCOMM_PROFILE": str(profile), **environment}
    job = run_script(2, SCRIPT, launcher="env", env=env)
    assert job.exit_codes == [0, 0], job
    return {out.strip() for out in job.stdout}, [text.splitlines() for text in job.stderr]


def choices(profile: Path, **environment: str) -> tuple[set[str], list[str]]:
    """What the ranks chose, and the lines of rank 0's log, the only one."""
    chosen, lines = choices_of_all(profile, **environment)
    assert lines[1] == []
    return chosen, lines[0]


def test_a_profile_is_used(tmp_path: Path) -> None:
    path = tmp_path / "profile"
    path.write_text(HEAD + ROWS)
    assert choices(path) == ({"recursive_halving pairwise direct"}, [])
    assert choices(path, PYCOMM_ALGO="all_reduce:direct")[0] == {"direct direct direct"}
    assert choices(path, PYCOMM_TRANSPORT="tcp")[0] == {
        "recursive_doubling recursive_doubling tree"
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HEAD + ROWS[:-3], "cut off"),
        (HEAD + ROWS + "shm 2 all_reduce any star\n", "no algorithm 'star'"),
        (HEAD.replace("machine ", "machine not ") + ROWS, "another machine"),
        ("\x00\x01\x02\n", "does not begin"),
        (HEAD + "shm 2 all_reduce any ring\n", "adds up in another order"),
        (HEAD + "x" * (1 << 20) + "\n", "larger than"),
        (HEAD + "\x1b[2J" * 30 + "\n", "line 3 is no text"),
        (None, "cannot be read"),
    ],
)
def test_a_profile_that_is_no_good_is_ignored(
    text: str | None, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "profile"
    if text is not None:
        path.write_text(text)
    chosen, lines = choices(path)
    assert chosen == {"direct direct direct"}
    assert len(lines) == 1 and f"{path} is ignored" in lines[0] and reason in lines[0], lines
    assert "warning" in lines[0]


def test_what_is_no_file_is_ignored(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe, Path("/dev/zero")):
        chosen, lines = choices(path)
        assert chosen == {"direct direct direct"}
        assert len(lines) == 1 and "it is no regular file" in lines[0], lines


def test_the_log_names_the_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile"
    path.write_text(HEAD + ROWS)
    _, lines = choices_of_all(path, PYCOMM_LOG="info")
    assert sum(f"profile {path}" in line for line in lines[0]) == 1, lines
    assert not any(f"profile {path}" in line for line in lines[1]), lines
    assert all(any("2 measured choices" in line for line in log) for log in lines), lines


def test_ranks_with_different_profiles_use_that_of_rank_0(tmp_path: Path) -> None:
    path = tmp_path / "profile"
    path.write_text(HEAD + ROWS)
    script = f"""
import os
if os.environ["RANK"] == "1":
    os.environ["PYCOMM_PROFILE"] = "/nowhere"
else:
    os.environ["PYCOMM_PROFILE"] = {str(path)!r}
{SCRIPT}
"""
    job = run_script(2, script, launcher="env")
    assert job.exit_codes == [0, 0] and job.stderr == ["", ""], job
    assert {out.strip() for out in job.stdout} == {"recursive_halving pairwise direct"}


def every_choice(comm: Any) -> None:
    """Every row that a profile may hold gives the right results, whatever the memory."""
    tcp = comm.transport == "tcp"
    for kind in KINDS:
        number = _core.KINDS[kind]
        names = [name for name in _core.algorithms_for(number) if _core.keeps_order(number, name)]
        for name in names if tcp else [*names, "direct"]:
            rows = [f"{kind} any {name}", *(f"limit 3000 {limit}" for limit in LIMIT_NAMES)]
            comm.barrier()
            text = HEAD + "".join(f"{comm.transport} {comm.size} {row}\n" for row in rows)
            comm._core.use_profile(text)
            comm.barrier()
            assert comm._core.choice(number, 100) == name
            for size in (4, 3000, 50_000, 3_000_000):
                for symmetric in (False, True):
                    call = Call(comm, kind, size, symmetric)
                    call.clear()
                    assert not (call.gets_result and call.is_right())
                    call.run()
                    assert call.is_right(), (kind, name, size, symmetric)
    check_uneven(comm)
    with pytest.raises(ValueError, match="all_reduce has no algorithm 'star'"):
        comm._core.use_profile(f"{HEAD}shm 2 all_reduce any star\n")


def check_uneven(comm: Any) -> None:
    """Sizes that differ between ranks, on both sides of a threshold."""
    kinds = ("all_gather", "gather", "scatter", "all_to_all")
    other = {"gather": "linear", "scatter": "linear"}
    first = "pairwise" if comm.transport == "tcp" else "direct"
    comm.barrier()
    comm._core.use_profile(
        HEAD
        + "".join(
            f"{comm.transport} {comm.size} {kind} {limit} {name}\n"
            for kind in kinds
            for limit, name in (
                (2000, other.get(kind, "pairwise") if first != "direct" else first),
                ("any", other.get(kind, "pairwise")),
            )
        )
    )
    comm.barrier()
    rank, size = comm.rank, comm.size
    counts = [10 + 400 * peer for peer in range(size)]
    want = np.concatenate([np.full(counts[peer], peer * 1.0) for peer in range(size)])
    own = np.full(counts[rank], rank * 1.0)
    assert np.array_equal(comm.all_gather(own, counts=counts), want)
    gathered = comm.gather(own, root=1, counts=counts)
    assert rank != 1 or np.array_equal(gathered, want)
    out = np.full(counts[rank], -1.0)
    comm.scatter(want if rank == 1 else None, root=1, out=out, counts=counts)
    assert np.array_equal(out, own)
    send = [10 + 300 * rank * peer for peer in range(size)]
    x = np.concatenate([np.full(count, rank * 10.0 + peer) for peer, count in enumerate(send)])
    got = comm.all_to_all(x, send_counts=send, recv_counts=send)
    assert np.array_equal(
        got, np.concatenate([np.full(send[peer], peer * 10.0 + rank) for peer in range(size)])
    )


def same_bits(comm: Any) -> None:
    random = np.random.default_rng(comm.rank)
    for kind in ("all_reduce", "reduce", "reduce_scatter"):
        number = _core.KINDS[kind]
        names = [name for name in _core.algorithms_for(number) if _core.keeps_order(number, name)]
        for dtype, op, count in itertools.product(("f4", "f2"), ("sum", "avg"), (17, 40_000)):
            x = (random.standard_normal(count) * 100).astype(dtype)
            results = []
            for name in [*names, "direct"]:
                comm.barrier()
                comm._core.use_profile(f"{HEAD}shm {comm.size} {kind} any {name}\n")
                comm.barrier()
                results.append(getattr(comm, kind)(x.copy(), op=op))
            if kind != "reduce" or comm.rank == 0:
                for name, result in zip(names, results, strict=False):
                    same = result.tobytes() == results[-1].tobytes()
                    assert same, (kind, name, dtype, op, count)


def test_a_profile_does_not_change_bits() -> None:
    for outcome in run_ranks(5, same_bits, launcher="env"):
        outcome.get()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_choice_is_right(ranks: int, transport: str) -> None:
    env = {"PYCOMM_TRANSPORT": transport}
    for outcome in run_ranks(ranks, every_choice, launcher="env", env=env, timeout=60):
        outcome.get()


def test_what_was_measured_for_others_stays(tmp_path: Path) -> None:
    path = tmp_path / "profile"
    rows = ["shm 2 reduce any tree", "shm 22 reduce any tree", "tcp 2 reduce any tree"]
    assert kept_rows(path, "shm", 2) == []
    path.write_text(HEAD + "\n".join(rows) + "\n")
    assert kept_rows(path, "shm", 2) == rows[1:]
    path.write_text(HEAD.replace("machine ", "machine not ") + "\n".join(rows) + "\n")
    assert kept_rows(path, "shm", 2) == []
    path.write_text(HEAD + "\n".join(rows))  # cut off
    assert kept_rows(path, "shm", 2) == []


def test_tune(tmp_path: Path) -> None:
    path = tmp_path / "tuned"
    path.write_text(HEAD + "shm 7 reduce any tree\n")
    text = f"""
import sys
from pycomm.bench.cli import main
sys.exit(main(["--tune", "--quick", "--out", {str(path)!r}]))
"""
    job = run_script(2, text, launcher="env", timeout=60)
    assert job.exit_codes == [0, 0] and job.stderr == ["", ""], job
    assert job.stdout[1] == "" and "wrote" in job.stdout[0]
    assert len(re.findall(r"^all_reduce ", job.stdout[0], re.MULTILINE)) == 2
    lines = path.read_text().splitlines()
    assert lines[:3] == [*HEAD.splitlines(), "shm 7 reduce any tree"]
    assert all(line.startswith("shm 2 ") for line in lines[3:])
    assert {line.split()[2] for line in lines[3:]} - {"limit"} == set(KINDS)
    assert not any(line.split()[4] == "ring" for line in lines[3:] if "reduce" in line)
    assert [other.name for other in tmp_path.iterdir()] == ["tuned"]
    assert choices(path)[1] == []


def test_tune_with_a_forced_algorithm_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tuned"
    text = f"""
import sys
from pycomm.bench.cli import main
sys.exit(main(["--tune", "--quick", "--out", {str(path)!r}]))
"""
    job = run_script(2, text, launcher="env", env={"PYCOMM_ALGO": "all_reduce:ring"})
    assert job.exit_codes == [1, 1], job
    assert "PYCOMM_ALGO says how to all_reduce" in job.stdout[0], job
    assert not list(tmp_path.iterdir())


def test_tune_alone_or_with_an_operation_is_refused(tmp_path: Path) -> None:
    for ranks, words, reason in (
        (1, ["--tune"], "needs 2 ranks"),
        (2, ["all_reduce", "--tune"], "expected no OP"),
        (2, ["--tune", "--out", "/nowhere/at/all"], "cannot write"),
        (2, ["--tune", "--out", str(tmp_path)], "is a directory"),
    ):
        text = f"import sys\nfrom pycomm.bench.cli import main\nsys.exit(main({words!r}))"
        job = run_script(ranks, text, launcher="env")
        assert job.exit_codes == [2] * ranks and reason in "".join(job.stderr), job
    assert not list(tmp_path.iterdir())
