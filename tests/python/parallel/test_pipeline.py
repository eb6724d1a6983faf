"""Pipeline against one process: losses, gradients, outputs, shapes that change, bad plans."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pycomm import nn
from pycomm.errors import AbortedError, ArgumentError
from pycomm.nn import Array
from pycomm.parallel import Action, Pipeline, ScheduleError, gpipe

RunRanks = Callable[[int, Callable[[Any], Any]], list[Any]]


def make_model(seed: int = 0) -> nn.Sequential:
    rng = np.random.default_rng(seed)
    return nn.Sequential(
        nn.Linear(6, 16, rng=rng, dtype=np.float64),
        nn.ReLU(),
        nn.Linear(16, 12, rng=rng, dtype=np.float64),
        nn.GELU(),
        nn.LayerNorm(12, dtype=np.float64),
        nn.Linear(12, 4, rng=rng, dtype=np.float64),
    )


def batch(rows: int, seed: int = 1) -> tuple[Array, Array]:
    rng = np.random.default_rng([rows, seed])
    return rng.standard_normal((rows, 6)), rng.integers(0, 4, rows)


def reference(x: Any, labels: Array, model: Any = None) -> tuple[float, dict[str, Array]]:
    model = model or make_model()
    y, context = model.forward(x)
    loss, grad = nn.cross_entropy(y, labels)
    model.backward(context, grad)
    return loss, {n: p.grad.copy() for n, p in model.named_parameters() if p.grad is not None}


def gradients(pipe: Pipeline) -> dict[str, Array]:
    return {n: p.grad.copy() for n, p in pipe.named_parameters() if p.grad is not None}


def assert_same(parts: list[dict[str, Array]], expected: dict[str, Array]) -> None:
    """The ranks' gradients together are the model's, each once."""
    names = [name for part in parts for name in part]
    assert sorted(names) == sorted(expected)
    for part in parts:
        for name, array in part.items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-11, atol=1e-15, err_msg=name)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_loss_and_gradients_equal_one_process(
    run_ranks: RunRanks, stages: int, schedule: str
) -> None:
    """Microbatches 1 to 8, of 8, of 5 rows and of 2 (some microbatches are empty then)."""

    def one_rank(comm: Any) -> list[tuple[float, dict[str, Array]]]:
        results = []
        for microbatches in range(1, 9):
            pipe = Pipeline(make_model(), comm, schedule=schedule, microbatches=microbatches)
            for rows in (8, 5, 2):
                pipe.zero_grad()
                results.append((pipe.train_step(*batch(rows)), gradients(pipe)))
        return results

    ranks = run_ranks(stages, one_rank)
    for index, results in enumerate(zip(*ranks, strict=True)):
        loss, grads = reference(*batch((8, 5, 2)[index % 3]))
        for got, _ in results:
            assert type(got) is float
            assert got == results[0][0]
            assert got == pytest.approx(loss, rel=1e-12)
        assert_same([part for _, part in results], grads)


def test_only_the_ends_need_the_batch(run_ranks: RunRanks) -> None:
    x, labels = batch(7)

    def one_rank(comm: Any) -> tuple[float, float, dict[str, Array]]:
        pipe = Pipeline(make_model(), comm, microbatches=3)
        mine = (x if pipe.is_first else None, labels if pipe.is_last else None)
        return pipe.evaluate(*mine), pipe.train_step(*mine), gradients(pipe)

    ranks = run_ranks(3, one_rank)
    loss, grads = reference(x, labels)
    for before, got, _ in ranks:
        assert before == pytest.approx(loss, rel=1e-12)
        assert got == pytest.approx(loss, rel=1e-12)
    assert_same([part for _, _, part in ranks], grads)


def test_train_evaluate_train_with_other_shapes(run_ranks: RunRanks) -> None:
    """8 rows, 5 to evaluate, 8 others, then none: nothing of a step stays for the next."""
    first, small, second = batch(8, 1), batch(5, 2), batch(8, 3)

    def one_rank(comm: Any) -> Any:
        pipe = Pipeline(make_model(), comm, schedule="1f1b", microbatches=3)
        optimizer = nn.SGD(pipe.parameters(), 0.1, momentum=0.9)
        losses = [pipe.train_step(*first)]
        optimizer.step()
        pipe.zero_grad()
        before = [p.data.copy() for p in pipe.parameters()]
        outputs = pipe.infer(small[0])
        everywhere = pipe.infer(small[0], everywhere=True)
        assert all((p.data == b).all() for p, b in zip(pipe.parameters(), before, strict=True))
        assert all(p.grad is None for p in pipe.parameters())
        assert (outputs is not None) == pipe.is_last
        if outputs is not None:
            np.testing.assert_array_equal(outputs, everywhere)
        assert pipe.infer(small[0][:0], everywhere=True).shape == (0, 4)
        losses.append(pipe.train_step(*second))
        optimizer.step()
        assert pipe.train_step(first[0][:0], first[1][:0]) == 0.0
        losses.append(pipe.evaluate(*small))
        return losses, everywhere

    model = make_model()
    optimizer = nn.SGD(model, 0.1, momentum=0.9)
    expected = [reference(*first, model)[0]]
    optimizer.step()
    model.zero_grad()
    outputs = model(small[0])
    expected.append(reference(*second, model)[0])
    optimizer.step()
    expected.append(nn.cross_entropy(model(small[0]), small[1])[0])
    for losses, everywhere in run_ranks(2, one_rank):
        assert losses == pytest.approx(expected, rel=1e-11)
        np.testing.assert_allclose(everywhere, outputs, rtol=1e-11)


def test_labels_belong_to_their_batch(run_ranks: RunRanks) -> None:
    """The same inputs with other labels, step after step."""
    x, _ = batch(6)
    all_labels = [np.array(row) for row in ([0] * 6, [1] * 6, [0, 1, 2, 3, 0, 1])]

    def one_rank(comm: Any) -> list[float]:
        pipe = Pipeline(make_model(), comm, schedule="gpipe", microbatches=4)
        return [pipe.train_step(x, labels) for labels in all_labels]

    expected = [reference(x, labels)[0] for labels in all_labels]
    for losses in run_ranks(4, one_rank):
        assert losses == pytest.approx(expected, rel=1e-12)


class Front(nn.Module):
    """From rows to a tuple: float32 features, int64 numbers, a float32 mask without gradient."""

    def __init__(self) -> None:
        self.linear = nn.Linear(6, 5, rng=1)

    def forward(self, x: Array) -> tuple[tuple[Array, ...], Any]:
        y, context = self.linear.forward(x)
        return (y, (x[:, 0] > 0).astype(np.int64), (x[:, 1:6] > 0).astype(np.float32)), context

    def backward(self, context: Any, grad: Any) -> Array:
        assert grad[1] is None and grad[2] is None
        return self.linear.backward(context, grad[0])


class Middle(nn.Module):
    """Scales the features by the mask, adds an embedding of the numbers; passes all three on."""

    def __init__(self) -> None:
        self.table = nn.Embedding(2, 5, rng=2)

    def forward(self, x: tuple[Array, ...]) -> tuple[tuple[Array, ...], Any]:
        features, numbers, mask = x
        assert [array.dtype.name for array in x] == ["float32", "int64", "float32"]
        added, context = self.table.forward(numbers)
        return (features * mask + added, numbers, mask), (context, mask)

    def backward(self, context: Any, grad: Any) -> tuple[Array, None, None]:
        self.table.backward(context[0], grad[0])
        return grad[0] * context[1], None, None


class Back(nn.Module):
    """Classifies the features, shifted by a number per row that has no gradient."""

    def __init__(self) -> None:
        self.linear = nn.Linear(5, 4, rng=3)

    def forward(self, x: tuple[Array, ...]) -> tuple[Array, Any]:
        y, context = self.linear.forward(x[0] + x[1][:, None].astype(np.float32))
        return y, context

    def backward(self, context: Any, grad: Array) -> tuple[Array, None, None]:
        return self.linear.backward(context, grad), None, None


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_tuples_cross_the_boundaries(run_ranks: RunRanks, schedule: str) -> None:
    x, labels = batch(8)
    x = x.astype(np.float32)

    def one_rank(comm: Any) -> tuple[float, dict[str, Array]]:
        layers = [Front(), Middle(), Middle(), Back()]
        pipe = Pipeline(layers, comm, schedule=schedule, microbatches=3)
        return pipe.train_step(x, labels), gradients(pipe)

    ranks = run_ranks(4, one_rank)
    loss, grads = reference(x, labels, nn.Sequential(Front(), Middle(), Middle(), Back()))
    merged = {name: grad for _, part in ranks for name, grad in part.items()}
    assert merged.keys() == grads.keys()
    for name, grad in grads.items():
        np.testing.assert_allclose(merged[name], grad, rtol=1e-4, atol=1e-7, err_msg=name)
    assert [got for got, _ in ranks] == pytest.approx([loss] * 4, rel=1e-5)


def test_tuples_go_in_and_come_out(run_ranks: RunRanks) -> None:
    class Add(nn.Module):
        def forward(self, x: Any) -> tuple[Any, None]:
            return (x[0] + x[1], x[1] * 2), None

    x = np.arange(10.0).reshape(5, 2), np.arange(10).reshape(5, 2)

    def one_rank(comm: Any) -> Any:
        return Pipeline([Add(), Add()], comm, microbatches=3).infer(x, everywhere=True)

    for floats, integers in run_ranks(2, one_rank):
        np.testing.assert_array_equal(floats, x[0] + 3 * x[1])
        np.testing.assert_array_equal(integers, 4 * x[1])
        assert integers.dtype == np.int64


def test_a_stage_before_integers_gets_no_gradient(run_ranks: RunRanks) -> None:
    class Bucketize(nn.Module):
        def __init__(self) -> None:
            self.unused = nn.Parameter(np.ones(1, np.float64))

        def forward(self, x: Array) -> tuple[Array, None]:
            return (x > 0).sum(axis=1), None

        def backward(self, context: None, grad: Any) -> Any:
            raise AssertionError("there is no gradient to go back")

    def layers() -> list[nn.Module]:
        table = nn.Embedding(7, 4, rng=1, dtype=np.float64)
        return [Bucketize(), table, nn.GELU()]

    x, labels = batch(8)

    def one_rank(comm: Any) -> tuple[float, dict[str, Array]]:
        pipe = Pipeline(layers(), comm, microbatches=4)
        return pipe.train_step(x, labels), gradients(pipe)

    ranks = run_ranks(3, one_rank)
    model = nn.Sequential(*layers()[1:], first_index=1)
    loss, grads = reference((x > 0).sum(axis=1), labels, model)
    assert [got for got, _ in ranks] == pytest.approx([loss] * 3, rel=1e-12)
    assert_same([part for _, part in ranks], grads)


def test_any_verified_list_runs(run_ranks: RunRanks) -> None:
    """Two stages per rank, interleaved; and backwards in an order of their own."""

    def parse(*ranks: str) -> list[list[Action]]:
        return [[Action.parse(word) for word in rank.split()] for rank in ranks]

    interleaved = parse(
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    )
    backwards = parse(
        "0F0 0SF0 0F1 0SF1 0RB1 0B1 0RB0 0B0",
        "1RF1 1RF0 1F1 1F0 1B0 1B1 1SB0 1SB1",
    )
    x, labels = batch(5)

    def one_rank(comm: Any) -> list[tuple[float, dict[str, Array], Any]]:
        results = []
        for schedule in (interleaved, backwards, gpipe):
            pipe = Pipeline(make_model(), comm, schedule=schedule, microbatches=2)
            results.append((pipe.train_step(x, labels), gradients(pipe), pipe.infer(x)))
        return results

    ranks = run_ranks(2, one_rank)
    loss, grads = reference(x, labels)
    for results in zip(*ranks, strict=True):
        assert [got for got, _, _ in results] == pytest.approx([loss] * 2, rel=1e-12)
        assert_same([part for _, part, _ in results], grads)
        np.testing.assert_allclose(results[1][2], make_model()(x), rtol=1e-12)


def test_gradients_accumulate_over_steps(run_ranks: RunRanks) -> None:
    (x1, l1), (x2, l2) = batch(8, 1), batch(6, 2)

    def one_rank(comm: Any) -> dict[str, Array]:
        pipe = Pipeline(make_model(), comm, microbatches=2)
        pipe.train_step(x1, l1)
        pipe.train_step(x2, l2)
        return gradients(pipe)

    model = make_model()
    reference(x1, l1, model)
    assert_same(run_ranks(2, one_rank), reference(x2, l2, model)[1])


def test_partition_and_names(run_ranks: RunRanks) -> None:
    def one_rank(comm: Any) -> dict[str, Any]:
        def parts(**options: Any) -> list[list[int]]:
            pipe = Pipeline(make_model(), comm, **options)
            return [list(part) for part in pipe.partition]

        pipe = Pipeline(make_model(), comm)
        return {
            "even": parts(),
            "sizes": parts(partition=[1, 5]),
            "parameters": parts(partition="parameters"),
            "costs": parts(costs=[9, 1, 1, 1, 1, 1]),
            "names": [name for name, _ in pipe.named_parameters()],
            "bytes": pipe.parameter_bytes(),
        }

    first, second = run_ranks(2, one_rank)
    assert first["even"] == [[0, 1, 2], [3, 4, 5]]
    assert first["sizes"] == [[0], [1, 2, 3, 4, 5]]
    assert first["parameters"] == [[0], [1, 2, 3, 4, 5]]
    assert first["costs"] == [[0], [1, 2, 3, 4, 5]]
    assert first["names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert second["names"] == ["4.weight", "4.bias", "5.weight", "5.bias"]
    assert (first["bytes"], second["bytes"]) == (8 * (96 + 16 + 192 + 12), 8 * (24 + 48 + 4))


def shared_across_stages() -> list[nn.Module]:
    layer = nn.Linear(6, 6, rng=1, dtype=np.float64)
    return [layer, nn.ReLU(), layer]


BAD: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "layers": (
        lambda comm: Pipeline([nn.ReLU()], comm),
        ArgumentError,
        "1 layers cannot be split into 2 stages",
    ),
    "name": (
        lambda comm: Pipeline(make_model(), comm, schedule="zigzag"),
        ArgumentError,
        "one of gpipe, 1f1b, .* not 'zigzag'",
    ),
    "partition name": (
        lambda comm: Pipeline(make_model(), comm, partition="size"),
        ArgumentError,
        "'layers', 'parameters' or a list of sizes, not 'size'",
    ),
    "sizes": (
        lambda comm: Pipeline(make_model(), comm, partition=[3, 4]),
        ArgumentError,
        r"add up to 6 layers, not \[3, 4\]",
    ),
    "costs": (
        lambda comm: Pipeline(make_model(), comm, costs=[1.0]),
        ArgumentError,
        "1 costs were given for 6 layers",
    ),
    "microbatches": (
        lambda comm: Pipeline(make_model(), comm, microbatches=0),
        ArgumentError,
        "microbatches is 0, expected a number",
    ),
    "ranks": (
        lambda comm: Pipeline(make_model(), comm, schedule=gpipe(3, 4)),
        ArgumentError,
        "for 3 ranks, the pipeline has 2",
    ),
    "deadlock": (
        lambda comm: Pipeline(
            make_model(),
            comm,
            schedule=[gpipe(2, 1)[0], [Action(1, "B", 0), Action(1, "F", 0)]],
            microbatches=1,
        ),
        ScheduleError,
        "rank 1, action 1B0: 1F0 must come before it",
    ),
    "shared": (
        lambda comm: Pipeline(shared_across_stages(), comm),
        ArgumentError,
        "2.weight of stage 1 is also 0.weight of stage 0",
    ),
    "plans": (
        lambda comm: Pipeline(make_model(), comm, microbatches=2 + comm.rank),
        ArgumentError,
        "rank 0 and rank 1 differ in microbatches: 2 and 3|rank 1 and rank 0 .* 3 and 2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_plan_is_an_error_before_anything_runs(run_ranks: RunRanks, name: str) -> None:
    wrong, kind, message = BAD[name]

    def one_rank(comm: Any) -> None:
        with pytest.raises(kind, match=message):
            wrong(comm)

    run_ranks(2, one_rank)


def test_the_ends_say_what_they_miss(run_ranks: RunRanks) -> None:
    def one_rank(comm: Any) -> None:
        pipe = Pipeline(make_model(), comm)
        x, labels = batch(4)
        with pytest.raises(ArgumentError, match="labels, it got None"):
            pipe.train_step(x, None)
        with pytest.raises(ArgumentError, match="input, it got None"):
            pipe.train_step(None, labels)
        with pytest.raises(ArgumentError, match="rows along axis 0"):
            pipe.train_step(np.float64(1), labels)
        with pytest.raises(ArgumentError, match=r"differ in their number of rows: \[4, 3\]"):
            pipe.infer((x, x[:3]))

    run_ranks(1, one_rank)


@pytest.mark.parametrize("method", ["train_step", "evaluate"])
def test_a_failing_stage_releases_the_others(run_ranks: RunRanks, method: str) -> None:
    """Only the last stage sees the wrong label; the others would wait for its gradient."""
    x, labels = batch(8)
    labels[5] = 4

    def one_rank(comm: Any) -> float:
        pipe = Pipeline(make_model(), comm, microbatches=4)
        started = time.monotonic()
        if pipe.is_last:
            with pytest.raises(ArgumentError, match=r"row 1 has label 4, outside \[0, 4\)"):
                getattr(pipe, method)(x, labels)
        else:
            with pytest.raises(
                AbortedError, match="rank 2 aborted: Pipeline: ArgumentError: row 1"
            ):
                getattr(pipe, method)(x, labels)
        return time.monotonic() - started

    assert max(run_ranks(3, one_rank)) < 5


@pytest.mark.parametrize("method", ["train_step", "evaluate"])
def test_wrong_arguments_on_one_stage_release_the_others(run_ranks: RunRanks, method: str) -> None:
    x, labels = batch(8)

    def one_rank(comm: Any) -> float:
        pipe = Pipeline(make_model(), comm, microbatches=4)
        started = time.monotonic()
        if pipe.is_last:
            with pytest.raises(ArgumentError, match="8 rows came with 5 labels"):
                getattr(pipe, method)(x, labels[:5])
        else:
            with pytest.raises(AbortedError, match="rank 1 aborted: Pipeline: ArgumentError: 8"):
                getattr(pipe, method)(x, labels)
        return time.monotonic() - started

    assert max(run_ranks(2, one_rank)) < 5


def test_the_schedule_prints_on_rank_0_alone(
    run_ranks: RunRanks, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_rank(comm: Any) -> None:
        Pipeline(make_model(), comm, schedule="1f1b", microbatches=2).print_schedule()

    run_ranks(2, one_rank)
    assert capsys.readouterr().out.splitlines() == [
        "time      0   1   2   3   4   5   6   7   8",
        "rank 0  0F0 0F1 ... ... 0B0 === ... 0B1 ===",
        "rank 1  ... 1F0 1B0 === 1F1 1B1 === ... ...",
        "bubble 33.3% of 9 units per rank",
    ]
