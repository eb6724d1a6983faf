"""DataParallel against one process with all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parallel.replicated import (
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
from pycomm.nn import Array
from pycomm.parallel import DataParallel

RunRanks = Callable[[int, Callable[[Any], Any]], list[Any]]


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
