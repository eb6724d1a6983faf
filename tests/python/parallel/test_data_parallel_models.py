"""DataParallel and the models it meets: branches, shared layers, dtypes, copies, bad settings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parallel.replicated import (
    Branches,
    Counting,
    RunningMean,
    assert_same,
    backward,
    batch,
    gradients,
    make_model,
    reference,
)

from pycomm import nn
from pycomm.errors import ArgumentError
from pycomm.nn import Array
from pycomm.parallel import DataParallel

RunRanks = Callable[[int, Callable[[Any], Any]], list[Any]]


def test_buckets_start_during_the_backward(run_ranks: RunRanks) -> None:
    """The last layers' bucket must be on its way before the first layer's backward runs."""

    def one_rank(comm: Any) -> list[int]:
        counting: Any = Counting(comm)
        model = make_model()
        started = []
        for layer in (model.layers[2], model.layers[0]):
            original = layer.backward

            def spy(context: Any, grad: Any, original: Any = original) -> Any:
                started.append(counting.calls.count("all_reduce"))
                return original(context, grad)

            layer.backward = spy  # type: ignore[method-assign]
        wrapped = DataParallel(model, counting, bucket_mb=1e-6)
        counting.calls.clear()
        backward(wrapped, *batch(4))
        return [*started, counting.calls.count("all_reduce")]

    # Layer 5 has two parameters, layer 4 two, layer 2 two, layer 0 two; each in a bucket of its
    # own.
    assert run_ranks(2, one_rank) == [[4, 6, 8]] * 2


@pytest.mark.parametrize("bucket_mb", [1e-6, 4.0])
def test_branches_that_differ_between_ranks(run_ranks: RunRanks, bucket_mb: float) -> None:
    x = np.random.default_rng(0).standard_normal((8, 3))
    labels = np.array([0, 1, 1, 0, 1, 0, 0, 1])

    def one_rank(comm: Any) -> dict[str, Array]:
        rows = slice(0, 4) if comm.rank == 0 else slice(4, 8)
        inner = Branches()
        model = DataParallel(inner, comm, bucket_mb=bucket_mb, find_unused=True)
        inner.use = "ab"[comm.rank]
        backward(model, x[rows], labels[rows])
        found = gradients(model)

        strict = DataParallel(Branches(), comm, bucket_mb=bucket_mb)
        strict.model.use = "ab"[comm.rank]  # type: ignore[attr-defined]
        mine, other = "ab"[comm.rank], "ba"[comm.rank]
        with pytest.raises(ArgumentError, match="took no part") as error:
            backward(strict, x[rows], labels[rows])
        assert f"{other}.weight (no gradient on 1 of 2 ranks, this one included)" in str(
            error.value
        )
        assert f"{mine}.weight (no gradient on 1 of 2 ranks)" in str(error.value)

        strict.zero_grad()  # the ranks are still in step and can go on
        strict.model.use = "a"  # type: ignore[attr-defined]
        strict.find_unused = True
        backward(strict, x[rows], labels[rows])
        assert inner.a.weight.grad is not None
        assert strict.model.b.weight.grad is None  # type: ignore[attr-defined]
        return found

    a, b = Branches(), Branches()
    b.use = "b"
    backward(a, x[:4], labels[:4])
    backward(b, x[4:], labels[4:])
    expected = {}
    for name, parameter in a.named_parameters():
        grad = (
            parameter.grad if parameter.grad is not None else dict(b.named_parameters())[name].grad
        )
        assert grad is not None
        expected[name] = grad / 2
    for got in run_ranks(2, one_rank):
        assert_same(got, expected)


def test_a_layer_used_twice_is_reduced_once(run_ranks: RunRanks) -> None:
    def twice() -> nn.Sequential:
        shared = nn.Linear(6, 6, rng=1, dtype=np.float64)
        return nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(6, 4, rng=2, dtype=np.float64))

    x, labels = batch(8)

    def one_rank(comm: Any) -> tuple[dict[str, Array], int, int]:
        counting: Any = Counting(comm)
        model = DataParallel(twice(), counting, bucket_mb=1e-6)
        counting.calls.clear()
        half = slice(comm.rank, None, 2)
        backward(model, x[half], labels[half])
        return gradients(model), counting.calls.count("all_reduce"), len(model._buckets)

    for got, reductions, buckets in run_ranks(2, one_rank):
        assert reductions == buckets == 4
        assert_same(got, reference(x, labels, twice()))


def test_a_second_backward_of_a_layer_is_refused(run_ranks: RunRanks) -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(6, 4, rng=1, dtype=np.float64)

        def forward(self, x: Array) -> tuple[Array, Any]:
            return self.layer.forward(x)

        def backward(self, context: Any, grad: Array) -> Array:
            self.layer.backward(context, grad)
            return self.layer.backward(context, grad)

    def one_rank(comm: Any) -> None:
        with pytest.raises(ArgumentError, match="Linear runs more often than its forward"):
            backward(DataParallel(Wrong(), comm), *batch(4))

    run_ranks(2, one_rank)


def test_evaluation_on_one_rank_issues_no_collective(run_ranks: RunRanks) -> None:
    x, labels = batch(6)

    def one_rank(comm: Any) -> dict[str, Array]:
        counting: Any = Counting(comm)
        model = DataParallel(nn.Sequential(RunningMean(6), *make_model().layers), counting)
        counting.calls.clear()
        y, context = model.forward(x[comm.rank :: 2])
        if comm.rank == 0:
            before = model.state_dict()
            model.eval()
            assert model(batch(3)[0]).shape == (3, 4)
            model.forward(batch(5)[0])
            model.train()
            for name, array in model.state_dict().items():
                np.testing.assert_array_equal(array, before[name], err_msg=name)
        assert counting.calls == []
        model.backward(context, nn.cross_entropy(y, labels[comm.rank :: 2])[1])
        return gradients(model)

    for got in run_ranks(2, one_rank):
        expected = reference(x, labels, nn.Sequential(RunningMean(6), *make_model().layers))
        assert_same(got, expected)


def test_frozen_parameters_and_two_dtypes(run_ranks: RunRanks) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            self.first = nn.Linear(6, 5, rng=1, dtype=np.float64)
            self.second = nn.Linear(5, 4, rng=2, dtype=np.float32)
            assert self.first.bias is not None
            self.first.bias.trainable = False

        def forward(self, x: Array) -> tuple[Array, Any]:
            y, first = self.first.forward(x)
            z, second = self.second.forward(y.astype(np.float32))
            return z, (first, second)

        def backward(self, context: Any, grad: Array) -> Array:
            back = self.second.backward(context[1], grad)
            return self.first.backward(context[0], back.astype(np.float64))

    x, labels = batch(8)
    x = x.astype(np.float64)

    def one_rank(comm: Any) -> tuple[dict[str, Array], bool]:
        inner = Mixed()
        model = DataParallel(inner, comm)
        backward(model, x[comm.rank :: 2], labels[comm.rank :: 2])
        assert inner.first.bias is not None
        frozen = inner.first.bias.grad is None
        assert inner.second.weight.grad is not None
        assert inner.second.weight.grad.dtype == np.float32
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, frozen

    single = Mixed()
    backward(single, x, labels)
    for got, frozen in run_ranks(2, one_rank):
        assert frozen
        expected = {n: p.grad for n, p in single.named_parameters() if p.grad is not None}
        assert_same(got, expected, rtol=2e-5)


DIFFERENCES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "shape": (
        lambda: nn.Sequential(nn.Linear(6, 4, dtype=np.float64), nn.Linear(4, 3)),
        r"rank 0 has parameter 1.weight \(float32\[2, 4\]\), rank 2 has parameter 1.weight "
        r"\(float32\[3, 4\]\)",
    ),
    "dtype": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)),
        r"0.weight \(float64\[4, 6\]\), rank 2 has parameter 0.weight \(float32\[4, 6\]\)",
    ),
    "fewer": (
        lambda: nn.Sequential(nn.Linear(6, 4, dtype=np.float64)),
        r"rank 0 has parameter 1.weight \(float32\[2, 4\]\), rank 2 does not",
    ),
    "more": (
        lambda: nn.Sequential(nn.Linear(6, 4, dtype=np.float64), nn.Linear(4, 2), nn.LayerNorm(2)),
        r"rank 2 has parameter 2.weight \(float32\[2\]\), rank 0 does not",
    ),
    "buffer": (
        lambda: nn.Sequential(nn.Linear(6, 4, dtype=np.float64), nn.Linear(4, 2), RunningMean(2)),
        r"rank 2 has buffer 2.mean \(float64\[2\]\), rank 0 does not",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_models_that_differ_are_named_on_every_rank(run_ranks: RunRanks, name: str) -> None:
    other, message = DIFFERENCES[name]

    def one_rank(comm: Any) -> None:
        model: nn.Module = nn.Sequential(nn.Linear(6, 4, dtype=np.float64), nn.Linear(4, 2))
        with pytest.raises(ArgumentError, match=message):
            DataParallel(other() if comm.rank == 2 else model, comm)

    run_ranks(3, one_rank)


def test_a_wrapped_model_can_be_copied(run_ranks: RunRanks) -> None:
    def one_rank(comm: Any) -> None:
        model = make_model()
        wrapped = DataParallel(model, comm)
        backward(wrapped, *batch(4))
        twin = copy.deepcopy(model)
        for parameter in twin.parameters():
            parameter.data *= 2
        assert (twin(batch(4)[0]) != model(batch(4)[0])).any()

    run_ranks(1, one_rank)


def test_bad_settings(run_ranks: RunRanks) -> None:
    def one_rank(comm: Any) -> None:
        with pytest.raises(ArgumentError, match="'mean' or 'sum', not 'max'"):
            DataParallel(make_model(), comm, loss="max")
        for bucket_mb in (0, -1.0, float("inf"), float("nan"), "4"):
            with pytest.raises(ArgumentError, match="bucket_mb is .* expected a positive number"):
                DataParallel(make_model(), comm, bucket_mb=bucket_mb)  # type: ignore[arg-type]
        model = DataParallel(make_model(), comm)
        y, context = model.forward(batch(2)[0])
        for weight in (-1.0, float("nan")):
            with pytest.raises(ArgumentError, match="weight must be a number >= 0, not"):
                model.backward(context, y, weight=weight)
        half = nn.Sequential(nn.Linear(2, 2))
        half[0].weight.data = half[0].weight.data.astype(np.float16)  # type: ignore[attr-defined]
        with pytest.raises(ArgumentError, match="0.weight is float16"):
            DataParallel(half, comm)

    run_ranks(1, one_rank)
