"""Training over real processes, under each launcher, against one process; float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

from pycomm import nn
from pycomm.nn import Array
from pycomm.parallel import DataParallel, Mesh

STEPS = 6
Result = tuple[list[float], dict[str, Array]]


def make_model(seed: int = 0) -> nn.Sequential:
    rng = np.random.default_rng(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, rng=rng),
        nn.GELU(),
        nn.Conv2d(8, 8, 3, stride=2, rng=rng),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 300, rng=rng),
        nn.LayerNorm(300),
        nn.Linear(300, 5, rng=rng),
    )


def batch(step: int) -> tuple[Array, Array]:
    rng = np.random.default_rng([step, 8])
    rows = 24 - step  # uneven over ranks and microbatches
    return rng.standard_normal((rows, 1, 8, 8)).astype(np.float32), rng.integers(0, 5, rows)


def state(model: Any) -> dict[str, Array]:
    return {name: p.data for name, p in model.named_parameters()}


def one_process() -> Result:
    model = make_model()
    optimizer = nn.Adam(model, 0.003)
    losses = []
    for step in range(STEPS):
        x, labels = batch(step)
        model.zero_grad()
        y, context = model.forward(x)
        loss, grad = nn.cross_entropy(y, labels)
        model.backward(context, grad)
        optimizer.step()
        losses.append(loss)
    return losses, state(model)


def data_parallel(comm: Any) -> Result:
    """The plain wrapper with a loop of one's own; ranks start from different seeds."""
    model = DataParallel(make_model(seed=comm.rank), comm, bucket_mb=0.02)
    optimizer = nn.Adam(model, 0.003)
    losses = []
    for step in range(STEPS):
        x, labels = (part[comm.rank :: comm.size] for part in batch(step))
        model.zero_grad()
        y, context = model.forward(x)
        loss, grad = nn.cross_entropy(y, labels)
        model.backward(context, grad)
        optimizer.step()
        sums = np.array([loss * len(labels), len(labels)])
        comm.all_reduce(sums)
        losses.append(float(sums[0] / sums[1]))
    return losses, state(model)


def on_a_mesh(comm: Any, dp: int, pp: int, schedule: str) -> Result:
    mesh = Mesh(comm, dp=dp, pp=pp)
    pipe = mesh.pipeline(make_model(seed=mesh.replica), schedule=schedule, microbatches=3)
    optimizer = nn.Adam(pipe.parameters(), 0.003)
    losses = []
    for step in range(STEPS):
        x, labels = batch(step)
        rows = mesh.rows(len(labels))
        pipe.zero_grad()
        losses.append(pipe.train_step(x[rows], labels[rows]))
        optimizer.step()
        pipe.infer(x[:5])
    return losses, state(pipe)


def assert_trained_alike(results: list[Result]) -> None:
    expected, parameters = one_process()
    seen = set()
    for losses, part in results:
        assert losses == results[0][0]
        np.testing.assert_allclose(losses, expected, atol=1e-5)
        for name, array in part.items():
            np.testing.assert_allclose(array, parameters[name], atol=2e-4, err_msg=name)
            seen.add(name)
    assert seen == parameters.keys()


def test_data_parallel(launcher: str) -> None:
    outcomes = run_ranks(3, data_parallel, launcher=launcher)
    results = [outcome.get() for outcome in outcomes]
    assert_trained_alike(results)
    for _, part in results:
        for name, array in part.items():
            np.testing.assert_array_equal(array, results[0][1][name], err_msg=name)


@pytest.mark.parametrize(
    ("dp", "pp", "schedule"), [(1, 3, "1f1b"), (2, 2, "1f1b"), (2, 2, "gpipe")]
)
def test_mesh(launcher: str, dp: int, pp: int, schedule: str) -> None:
    outcomes = run_ranks(dp * pp, on_a_mesh, dp, pp, schedule, launcher=launcher)
    assert_trained_alike([outcome.get() for outcome in outcomes])
