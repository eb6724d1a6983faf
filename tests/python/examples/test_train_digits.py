"""The example as users start it: it learns, and learns the same in every layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import Finished, run_script

pytest.importorskip("sklearn")

SCRIPT = Path(__file__).parents[3] / "examples" / "train_digits.py"
LAYOUTS = [(1, 1, "1f1b"), (4, 1, "1f1b"), (1, 4, "1f1b"), (1, 4, "gpipe"), (2, 2, "1f1b")]


def run(ranks: int, *arguments: Any, launcher: str = "run", timeout: float = 110) -> Finished:
    words = [str(word) for word in arguments]
    return run_script(ranks, SCRIPT.read_text(), *words, launcher=launcher, timeout=timeout)


@pytest.mark.slow
def test_the_main_job_reaches_its_accuracy(launcher: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run(4, "--dp", 2, "--pp", 2, "--json", report, launcher=launcher)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout[0].splitlines()
    found = json.loads(report.read_text())
    assert lines[-1] == f"test accuracy {found['test_accuracy']:.4f}"
    assert found["test_accuracy"] >= 0.97
    assert found["seconds"] < 60
    assert len(found["loss"]) == found["epochs"] == 20
    assert found["loss"][-1] < 0.05 < 0.3 < found["loss"][0]
    assert (found["dp"], found["pp"], found["ranks"]) == (2, 2, 4)
    assert len(found["communication_share"]) == 4
    assert all(0 < share < 1 for share in found["communication_share"])
    for stage, size in enumerate(found["parameter_bytes"]):
        assert sum(f"stage {stage}: " in line and f" {size} p" in line for line in lines) == 1
    assert sum(found["parameter_bytes"]) == 190632
    assert sum(line.startswith("epoch ") and "images/s" in line for line in lines) == 20
    assert sum("share of time communicating" in line for line in lines) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-10)])
def test_every_layout_has_the_same_losses(dtype: str, tolerance: float, tmp_path: Path) -> None:
    losses = []
    for index, (dp, pp, schedule) in enumerate(LAYOUTS):
        report = tmp_path / f"{index}.json"
        layout = ["--dp", dp, "--pp", pp, "--schedule", schedule]
        options = ["--epochs", 4, "--dtype", dtype, "--seed", 5, "--json", report]
        done = run(dp * pp, *layout, *options)
        assert done.exit_code == 0, done.stderr
        losses.append(json.loads(report.read_text())["loss"])
    assert len(losses[0]) == 4 and losses[0][3] < losses[0][0]
    for other in losses[1:]:
        np.testing.assert_allclose(other, losses[0], rtol=0, atol=tolerance)


def test_a_layout_that_does_not_fit_is_an_error() -> None:
    done = run(2, "--dp", 3)
    assert done.exit_code == 2
    text = "train_digits: dp=3 does not divide the communicator's 2 ranks"
    assert text in done.stderr[0]
    done = run(1, "--epochs", 0)
    assert done.exit_code == 2 and "--epochs must be at least 1" in done.stderr[0]


def test_the_schedule_and_the_curve(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "loss.png"
    arguments = ["--pp", 2, "--microbatches", 2, "--epochs", 1, "--batch", 256]
    done = run(2, *arguments, "--print-schedule", "--plot", picture)
    assert done.exit_code == 0, done.stderr
    assert "rank 1  ... 1F0 1B0 === 1F1 1B1 === ... ..." in done.stdout[0].splitlines()
    assert picture.read_bytes().startswith(b"\x89PNG")
