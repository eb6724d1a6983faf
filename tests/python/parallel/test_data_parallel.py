"""DataParallel against one process with all rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pycomm import nn
from pycomm.errors import ArgumentError
from pycomm.nn import Array
from pycomm.parallel import DataParallel

RunRanks = Callable[[int, Callable[[Any], Any]], list[Any]]

COLLECTIVES = ("all_reduce", "broadcast", "all_gather_object", "broadcast_object", "barrier")


class Counting:
    """A communicator that notes the collectives it is asked for."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in COLLECTIVES:
            self.calls.append(name)
        return getattr(self.comm, name)


class RunningMean(nn.Module):
    """Passes its input on and keeps the mean of what it saw in a buffer."""

    def __init__(self, width: int) -> None:
        self.mean = nn.Buffer(np.zeros(width))
        self.batches = nn.Buffer(np.zeros((), np.int64))

    def forward(self, x: Array) -> tuple[Array, None]:
        if self.training:
            self.mean.data += 0.1 * (x.mean(axis=0) - self.mean.data)
            self.batches.data += 1
        return x, None

    def backward(self, context: None, grad: Array) -> Array:
        return grad


class Branches(nn.Module):
    """Only one of its two layers takes part."""

    def __init__(self) -> None:
        self.a = nn.Linear(3, 2, rng=1, dtype=np.float64)
        self.b = nn.Linear(3, 2, rng=2, dtype=np.float64)
        self.use = "a"

    def forward(self, x: Array) -> tuple[Array, Any]:
        layer = self.a if self.use == "a" else self.b
        y, context = layer.forward(x)
        return y, (layer, context)

    def backward(self, context: Any, grad: Array) -> Any:
        return context[0].backward(context[1], grad)


def make_model(seed: int = 0) -> nn.Sequential:
    rng = np.random.default_rng(seed)
    return nn.Sequential(
        nn.Linear(6, 16, rng=rng, dtype=np.float64),
        nn.ReLU(),
        nn.Linear(16, 16, rng=rng, dtype=np.float64),
        nn.GELU(),
        nn.LayerNorm(16, dtype=np.float64),
        nn.Linear(16, 4, rng=rng, dtype=np.float64),
    )


def batch(rows: int, seed: int = 1) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 6)), rng.integers(0, 4, rows)


def gradients(model: nn.Module) -> dict[str, Array]:
    grads = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        grads[name] = parameter.grad.copy()
    return grads


def backward(model: Any, x: Array, labels: Array, divisor: float | None = None) -> Array:
    y, context = model.forward(x)
    grad_in: Array = model.backward(context, nn.cross_entropy(y, labels, divisor)[1])
    return grad_in


def reference(x: Array, labels: Array, model: nn.Module | None = None) -> dict[str, Array]:
    model = model or make_model()
    backward(model, x, labels)
    return gradients(model)


def assert_same(got: dict[str, Array], expected: dict[str, Array], rtol: float = 1e-12) -> None:
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=rtol, atol=1e-15, err_msg=name)


def test_every_rank_starts_with_rank_0s_state_and_stays_equal(run_ranks: RunRanks) -> None:
    def one_rank(comm: Any) -> list[dict[str, Array]]:
        inner = nn.Sequential(RunningMean(6), *make_model(seed=comm.rank).layers)
        inner.state_dict()
        for _, buffer in inner.named_buffers():
            buffer.data += comm.rank + 5
        model = DataParallel(inner, comm, bucket_mb=0.001)
        states = [model.state_dict()]
        optimizer = nn.SGD(model, 0.1, momentum=0.9)
        for step in range(3):
            x, labels = batch(5 + comm.rank, seed=10 * step + comm.rank)
            model.zero_grad()
            backward(model, x, labels)
            optimizer.step()
            states.append(model.state_dict())
        return states

    all_states = run_ranks(3, one_rank)
    expected = nn.Sequential(RunningMean(6), *make_model(seed=0).layers).state_dict()
    for states in all_states:
        for name, array in states[0].items():
            buffer = name in ("0.mean", "0.batches")
            np.testing.assert_array_equal(array, expected[name] + (5 if buffer else 0))
        for state, first in zip(states, all_states[0], strict=True):
            for name, array in state.items():
                np.testing.assert_array_equal(array, first[name], err_msg=name)
    assert (all_states[1][3]["1.weight"] != all_states[1][0]["1.weight"]).any()
    assert all_states[2][3]["0.batches"] == 8


@pytest.mark.parametrize("shares", [(8,), (4, 4), (3, 5), (5, 0, 3), (1, 2, 2, 3)])
@pytest.mark.parametrize("bucket_mb", [1e-6, 0.002, 4.0])
@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_any_split_of_the_rows_equals_one_process(
    run_ranks: RunRanks, shares: tuple[int, ...], bucket_mb: float, loss: str
) -> None:
    x, labels = batch(8)
    ends = np.cumsum((0, *shares))

    def one_rank(comm: Any) -> dict[str, Array]:
        model = DataParallel(make_model(), comm, bucket_mb=bucket_mb, loss=loss)
        rows = slice(ends[comm.rank], ends[comm.rank + 1])
        backward(model, x[rows], labels[rows], divisor=1.0 if loss == "sum" else None)
        return gradients(model)

    results = run_ranks(len(shares), one_rank)
    for got in results:
        assert_same(got, reference(x, labels))
        for name, array in got.items():
            np.testing.assert_array_equal(array, results[0][name])


def test_a_rank_without_rows_can_synchronize_instead(run_ranks: RunRanks) -> None:
    x, labels = batch(6)

    def one_rank(comm: Any) -> dict[str, Array]:
        model = DataParallel(make_model(), comm)
        if comm.rank == 1:
            model.synchronize()
        else:
            rows = slice(0, 2) if comm.rank == 0 else slice(2, 6)
            backward(model, x[rows], labels[rows])
        return gradients(model)

    for got in run_ranks(3, one_rank):
        assert_same(got, reference(x, labels))


def test_accumulation_reduces_each_bucket_once(run_ranks: RunRanks) -> None:
    """Four microbatches of unequal size, three without synchronisation, twice in a row."""
    x, labels = batch(20)
    cuts = [[(0, 3), (3, 4), (4, 8), (8, 10)], [(10, 11), (11, 15), (15, 18), (18, 20)]]

    def one_rank(comm: Any) -> tuple[list[dict[str, Array]], list[int], int]:
        counting: Any = Counting(comm)
        model = DataParallel(make_model(), counting, bucket_mb=1e-6)
        counting.calls.clear()
        grads, counts = [], []
        for _ in range(2):
            model.zero_grad()
            with model.no_sync():
                for a, b in cuts[comm.rank][:3]:
                    backward(model, x[a:b], labels[a:b])
                assert counting.calls == []
            a, b = cuts[comm.rank][3]
            backward(model, x[a:b], labels[a:b])
            counts.append(len(counting.calls))
            assert set(counting.calls) == {"all_reduce"}
            counting.calls.clear()
            grads.append(gradients(model))
        return grads, counts, len(model._buckets)

    for grads, counts, buckets in run_ranks(2, one_rank):
        assert buckets == 8
        assert counts == [buckets, buckets]
        for got in grads:
            assert_same(got, reference(x, labels))


def test_gradients_that_were_not_zeroed_are_added_to(run_ranks: RunRanks) -> None:
    (x1, l1), (x2, l2), (x3, l3) = batch(8, 1), batch(6, 2), batch(4, 3)

    def one_rank(comm: Any) -> list[dict[str, Array]]:
        model = DataParallel(make_model(), comm)
        half = slice(comm.rank, None, 2)
        backward(model, x1[half], l1[half])
        backward(model, x2[half], l2[half])
        added = gradients(model)
        with model.no_sync():  # thrown away below
            backward(model, x1[half], l1[half])
        model.zero_grad()
        backward(model, x3[half], l3[half])
        return [added, gradients(model)]

    model = make_model()
    backward(model, x1, l1)
    expected = reference(x2, l2, model), reference(x3, l3)
    for added, fresh in run_ranks(2, one_rank):
        assert_same(added, expected[0])
        assert_same(fresh, expected[1])


def test_weight_1_averages_over_ranks(run_ranks: RunRanks) -> None:
    x, labels = batch(8)

    def one_rank(comm: Any) -> dict[str, Array]:
        model = DataParallel(make_model(), comm)
        rows = slice(0, 3) if comm.rank == 0 else slice(3, 8)
        y, context = model.forward(x[rows])
        model.backward(context, nn.cross_entropy(y, labels[rows])[1], weight=1)
        return gradients(model)

    a, b = reference(x[:3], labels[:3]), reference(x[3:], labels[3:])
    for got in run_ranks(2, one_rank):
        assert_same(got, {name: (a[name] + b[name]) / 2 for name in a})


def test_the_input_gradient_is_that_of_the_local_loss(run_ranks: RunRanks) -> None:
    x, labels = batch(7)

    def one_rank(comm: Any) -> list[Array]:
        model = DataParallel(make_model(), comm)
        with model.no_sync():
            first = backward(model, x[comm.rank :], labels[comm.rank :])
        return [first, backward(model, x[comm.rank :], labels[comm.rank :])]

    for rank, grads in enumerate(run_ranks(2, one_rank)):
        expected = backward(make_model(), x[rank:], labels[rank:])
        for grad in grads:
            np.testing.assert_allclose(grad, expected, rtol=1e-12, atol=1e-16)


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
        with pytest.raises(ArgumentError, match="bucket_mb must be positive, not 0"):
            DataParallel(make_model(), comm, bucket_mb=0)
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
