# The harness itself: values, errors, exit codes, outer limits and leftovers of ranks.
from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks, run_script

import pycomm


def add_ranks(comm: Any, count: int) -> tuple[int, Any]:
    return os.getpid(), comm.all_reduce(np.arange(count) + comm.rank)


def fail_on_one(comm: Any) -> int:
    if comm.rank == 1:
        raise pycomm.CommTimeoutError("planted", [2])
    return int(comm.rank)


def exit_on_one(comm: Any) -> None:
    print("said by", comm.rank)
    if comm.rank == 1:
        sys.exit(7)


def sleep_long(comm: Any) -> None:
    time.sleep(60)


@pytest.mark.parametrize("kind", ["run", "mpirun", "env", "threads"])
def test_values(kind: str) -> None:
    outcomes = run_ranks(3, add_ranks, 5, launcher=kind)
    values = [outcome.get() for outcome in outcomes]
    assert [v[1].tolist() for v in values] == [[3, 6, 9, 12, 15]] * 3
    assert len({v[0] for v in values}) == (1 if kind == "threads" else 3)
    assert [outcome.rank for outcome in outcomes] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["run", "env", "threads"])
def test_errors_are_described(kind: str) -> None:
    outcomes = run_ranks(2, fail_on_one, launcher=kind)
    assert outcomes[0].get() == 0
    bad = outcomes[1].expect("CommTimeoutError")
    assert (bad.ranks, bad.attributes["missing"], bad.text) == ((2,), [2], "planted")
    assert "TimeoutError" in bad.bases and "fail_on_one" in bad.traceback


def test_exit_codes_and_output() -> None:
    outcomes = run_ranks(2, exit_on_one, launcher="env")
    assert [outcome.exit_code for outcome in outcomes] == [0, 7]
    assert [outcome.stdout for outcome in outcomes] == ["said by 0\n", "said by 1\n"]
    outcomes[1].expect("SystemExit")


@pytest.mark.parametrize("kind", ["run", "env"])
def test_outer_limit(kind: str) -> None:
    start = time.monotonic()
    with pytest.raises(pytest.fail.Exception, match="not done after 3.0 s") as error:
        run_ranks(2, sleep_long, launcher=kind, timeout=3.0)
    assert time.monotonic() - start < 8
    assert "sleep_long" in str(error.value)  # the stacks


def test_script() -> None:
    text = """
        import os, sys
        print(os.environ["RANK"], sys.argv[1:])
    """
    job = run_script(2, text, "a", "b", launcher="env")
    assert job.exit_codes == [0, 0]
    assert job.stdout == ["0 ['a', 'b']\n", "1 ['a', 'b']\n"]
