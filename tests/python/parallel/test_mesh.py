"""Mesh, and data and pipeline parallelism combined, against one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pycomm import nn
from pycomm.errors import ArgumentError
from pycomm.nn import Array
from pycomm.parallel import Mesh

RunRanks = Callable[[int, Callable[[Any], Any]], list[Any]]


def make_model(seed: int = 0) -> nn.Sequential:
    rng = np.random.default_rng(seed)
    layers: list[nn.Module] = []
    for width in (6, 10, 9, 8):
        out = {6: 10, 10: 9, 9: 8, 8: 4}[width]
        layers += [nn.Linear(width, out, rng=rng, dtype=np.float64), nn.GELU()]
    return nn.Sequential(*layers[:-1])


def batch(rows: int, seed: int = 1) -> tuple[Array, Array]:
    rng = np.random.default_rng([rows, seed])
    return rng.standard_normal((rows, 6)), rng.integers(0, 4, rows)


def gradients(model: Any) -> dict[str, Array]:
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_the_grid(run_ranks: RunRanks) -> None:
    def one_rank(comm: Any) -> list[Any]:
        mesh = Mesh(comm, dp=2, pp=3)
        assert mesh.coordinates(comm.rank) == (mesh.replica, mesh.stage)
        assert mesh.rank_of(mesh.replica, mesh.stage) == comm.rank
        assert (mesh.dp_comm.size, mesh.dp_comm.rank) == (2, mesh.replica)
        assert (mesh.pp_comm.size, mesh.pp_comm.rank) == (3, mesh.stage)
        column = mesh.dp_comm.all_gather_object(comm.rank)
        row = mesh.pp_comm.all_gather_object(comm.rank)
        mesh.close()
        return [mesh.replica, mesh.stage, column, row]

    assert run_ranks(6, one_rank) == [
        [0, 0, [0, 3], [0, 1, 2]],
        [0, 1, [1, 4], [0, 1, 2]],
        [0, 2, [2, 5], [0, 1, 2]],
        [1, 0, [0, 3], [3, 4, 5]],
        [1, 1, [1, 4], [3, 4, 5]],
        [1, 2, [2, 5], [3, 4, 5]],
    ]


def test_one_side_can_be_left_out(run_ranks: RunRanks) -> None:
    def one_rank(comm: Any) -> list[tuple[int, int]]:
        meshes = [Mesh(comm), Mesh(comm, dp=2), Mesh(comm, pp=4), Mesh(comm, dp=1)]
        return [(mesh.dp, mesh.pp) for mesh in meshes]

    assert run_ranks(4, one_rank) == [[(4, 1), (2, 2), (1, 4), (1, 4)]] * 4


def test_rows_are_shared_as_evenly_as_can_be(run_ranks: RunRanks) -> None:
    def one_rank(comm: Any) -> list[slice]:
        mesh = Mesh(comm, dp=4)
        return [mesh.rows(10), mesh.rows(3)]

    ten, three = zip(*run_ranks(4, one_rank), strict=True)
    assert list(ten) == [slice(0, 3), slice(3, 6), slice(6, 8), slice(8, 10)]
    assert list(three) == [slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 3)]


def test_a_grid_that_does_not_fit(run_ranks: RunRanks) -> None:
    def one_rank(comm: Any) -> None:
        for sizes in ({"dp": 2, "pp": 2}, {"dp": 2}, {"pp": 2}, {"dp": 3, "pp": 7}):
            with pytest.raises(ArgumentError, match=r"[dp]p=[27] does not divide .* 3 ranks"):
                Mesh(comm, **sizes)
        for dp, pp in ((1, 1), (3, 3)):
            message = f"dp={dp} x pp={pp} needs {dp * pp} ranks, the communicator has 3"
            with pytest.raises(ArgumentError, match=message):
                Mesh(comm, dp=dp, pp=pp)
        for wrong in (0, -1, 1.5, "2"):
            with pytest.raises(ArgumentError, match="dp must be a positive integer, not"):
                Mesh(comm, dp=wrong)  # type: ignore[arg-type]
        mesh = Mesh(comm, dp=3)
        with pytest.raises(ArgumentError, match=r"rank 3 is outside \[0, 3\)"):
            mesh.coordinates(3)
        with pytest.raises(ArgumentError, match=r"\(0, 1\) is outside the 3 x 1 mesh"):
            mesh.rank_of(0, 1)

    run_ranks(3, one_rank)


@pytest.mark.parametrize(
    ("dp", "pp", "microbatches"), [(1, 1, 1), (4, 1, 2), (1, 4, 3), (2, 2, 4), (3, 2, 2), (2, 3, 4)]
)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_every_grid_trains_as_one_process(
    run_ranks: RunRanks, dp: int, pp: int, microbatches: int, schedule: str
) -> None:
    """Four steps, the last ones with fewer rows than replicas and microbatches want."""
    batches = [batch(rows, seed) for seed, rows in enumerate((16, 13, 5, 2))]

    def one_rank(comm: Any) -> tuple[list[float], float, Array, dict[str, Array]]:
        mesh = Mesh(comm, dp=dp, pp=pp)
        pipe = mesh.pipeline(
            make_model(seed=mesh.replica),  # replica 0's parameters count
            schedule=schedule,
            microbatches=microbatches,
            bucket_mb=1e-4,
        )
        optimizer = nn.SGD(pipe.parameters(), 0.5, momentum=0.9)
        losses = []
        for x, labels in batches:
            rows = mesh.rows(len(labels))
            pipe.zero_grad()
            losses.append(pipe.train_step(x[rows], labels[rows]))
            optimizer.step()
        rows = mesh.rows(16)
        evaluated = pipe.evaluate(batches[0][0][rows], batches[0][1][rows])
        outputs = pipe.infer(batches[0][0], everywhere=True)
        state = {n: p.data for n, p in pipe.named_parameters()}
        return losses, evaluated, outputs, state

    model = make_model()
    optimizer = nn.SGD(model, 0.5, momentum=0.9)
    expected = []
    for x, labels in batches:
        model.zero_grad()
        y, context = model.forward(x)
        loss, grad = nn.cross_entropy(y, labels)
        model.backward(context, grad)
        optimizer.step()
        expected.append(loss)
    parameters = dict(model.named_parameters())
    seen = set()
    for losses, evaluated, outputs, state in run_ranks(dp * pp, one_rank):
        assert losses == pytest.approx(expected, rel=1e-10)
        after = nn.cross_entropy(model(batches[0][0]), batches[0][1])[0]
        assert evaluated == pytest.approx(after, rel=1e-10)
        np.testing.assert_allclose(outputs, model(batches[0][0]), rtol=1e-9, atol=1e-12)
        for name, array in state.items():
            np.testing.assert_allclose(array, parameters[name].data, rtol=1e-9, atol=1e-12)
            seen.add(name)
    assert seen == parameters.keys()


def test_batch_8_in_one_process_data_parallel_and_pipeline(run_ranks: RunRanks) -> None:
    """The same rows as 4 + 4 and as two stages with four microbatches."""
    x, labels = batch(8)

    def one_rank(comm: Any) -> list[tuple[float, dict[str, Array]]]:
        results = []
        for sizes in ({"dp": 2}, {"pp": 2}):
            mesh = Mesh(comm, **sizes)
            pipe = mesh.pipeline(make_model(), microbatches=4)
            rows = mesh.rows(8)
            loss = pipe.train_step(x[rows], labels[rows])
            results.append((loss, gradients(pipe)))
        return results

    model = make_model()
    y, context = model.forward(x)
    loss, grad = nn.cross_entropy(y, labels)
    model.backward(context, grad)
    expected = gradients(model)
    for results in run_ranks(2, one_rank):
        for got, grads in results:
            assert got == pytest.approx(loss, abs=1e-12)
            assert grads
            for name, array in grads.items():
                np.testing.assert_allclose(array, expected[name], rtol=1e-10, atol=1e-14)
