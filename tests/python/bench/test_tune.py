# Tuning, and the profile that init reads.
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks, run_script

from pycomm import _core
from pycomm.bench.tune import KINDS, thresholds

HEAD = f"pycomm-profile 1\nmachine {_core.machine_name()}\n"
ROWS = "shm 2 all_reduce 4096 ring\nshm 2 all_reduce any pairwise\nshm 1 all_reduce any ring\n"


def test_thresholds() -> None:
    sizes = (16, 64, 256, 1024)
    assert thresholds(sizes, ["a", "a", "b", "b"]) == [(128, "a"), (None, "b")]
    assert thresholds(sizes, ["a", "b", "a", "a"]) == [(32, "a"), (128, "b"), (None, "a")]
    assert thresholds(sizes[:1], ["a"]) == [(None, "a")]


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


def choices(profile: Path | str, **environment: str) -> tuple[set[str], list[str]]:
    """What the ranks chose, and the lines of rank 0's log."""
    env = {"PYCOMM_PROFILE": str(profile), **environment}
    job = run_script(2, SCRIPT, launcher="env", env=env)
    assert job.exit_codes == [0, 0], job
    assert job.stderr[1] == "", job
    return {out.strip() for out in job.stdout}, job.stderr[0].splitlines()


def test_a_profile_is_used(tmp_path: Path) -> None:
    path = tmp_path / "profile"
    path.write_text(HEAD + ROWS)
    assert choices(path) == ({"ring pairwise direct"}, [])
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


def mixed(comm: Any) -> str:
    assert comm.all_reduce(np.full(5000, comm.rank + 1.0))[0] == 3
    return str(comm._core.choice(_core.KINDS["all_reduce"], 100))


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
    assert {out.strip() for out in job.stdout} == {"ring pairwise direct"}


def forced(comm: Any) -> None:
    number = _core.KINDS["all_reduce"]
    for name in ("ring", "recursive_halving", "direct", "pairwise"):
        comm.barrier()
        comm._core.force(f"all_reduce:{name}")
        comm.barrier()
        assert comm._core.choice(number, 100) == name
        x = np.full(70_000, comm.rank + 1.0)
        assert (comm.all_reduce(x) == 6).all()
    with pytest.raises(ValueError, match="all_reduce has no algorithm 'star'"):
        comm._core.force("all_reduce:star")


def test_forcing() -> None:
    for outcome in run_ranks(3, forced, launcher="env"):
        outcome.get()


def test_tune(tmp_path: Path) -> None:
    path = tmp_path / "tuned"
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
    assert lines[:2] == HEAD.splitlines()
    assert {line.split()[2] for line in lines[2:]} == set(KINDS)
    assert [other.name for other in tmp_path.iterdir()] == ["tuned"]
    assert choices(path)[1] == []


def test_tune_alone_or_with_an_operation_is_refused(tmp_path: Path) -> None:
    for ranks, words, reason in (
        (1, ["--tune"], "needs 2 ranks"),
        (2, ["all_reduce", "--tune"], "expected no OP"),
        (2, ["--tune", "--out", "/nowhere/at/all"], "cannot write"),
    ):
        text = f"import sys\nfrom pycomm.bench.cli import main\nsys.exit(main({words!r}))"
        job = run_script(ranks, text, launcher="env")
        assert job.exit_codes == [2] * ranks and reason in "".join(job.stderr), job
    assert not list(tmp_path.iterdir())
