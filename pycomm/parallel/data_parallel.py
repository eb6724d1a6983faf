"""Data-parallel training: every rank holds the model, computes on its own rows, and gradients are
averaged.

The average is over rows, not over ranks: 3 rows here and 5 there give the gradient of all 8. To
overlap communication with computation, the gradients are packed into buckets in the order in
which the backward completes them, and each bucket's all-reduce starts as soon as its last
gradient is there:

    backward:   layer 3 | layer 2 | layer 1 | layer 0 | wait
    all-reduce:         | bucket 0 (3, 2)   | bucket 1 (1, 0)

A layer is complete when its backward ran as often in this pass as its forward did, which the
forward counts. The idea of buckets and overlap is from Li et al., "PyTorch Distributed", 2020.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pycomm.errors import ArgumentError
from pycomm.nn import Array, Module, Parameter
from pycomm.nn.module import no_gradient
from pycomm.parallel.buckets import make_buckets
from pycomm.parallel.replicas import (
    buffer_arrays,
    check_same_model,
    copy_from_root,
    state_arrays,
)

if TYPE_CHECKING:
    from pycomm.communicator import Communicator
    from pycomm.work import Work

Context = tuple[Counter[int], Any]
"""What a forward leaves: how often each layer (by id) ran, and the model's own context."""


class DataParallel(Module):
    """Wraps a model so that `backward` leaves the gradient of all ranks' rows in every rank.

    At the start the ranks' models are compared and rank 0's parameters and buffers are copied to
    all. Forwards and inference never communicate. A backward outside `no_sync` is collective.

    Args:
        model: This rank's copy of the model.
        comm: The ranks that hold the same model.
        bucket_mb: Size of a bucket in MiB.
        loss: What the gradient given to `backward` is the gradient of: "mean" of the rows'
            losses, or "sum". Both end in the gradient of the mean over all rows.
        find_unused: Accept parameters that took no part on some ranks; they count as zero there.
            Without it they are an error that names them.

    Between a `no_sync` backward and the next synchronised one a parameter's `grad` holds the sum
    over this rank's rows. After it, `grad` holds the sum over all ranks and backwards since the
    last synchronisation, divided by their number of rows (the sum of `weight`). A gradient that
    stood there before the first of these backwards, because it was not zeroed after the last
    synchronisation, is added.

    Attributes:
        comm_seconds: Time spent in packing, starting and waiting for communication.
    """

    def __init__(
        self,
        model: Module,
        comm: Communicator,
        *,
        bucket_mb: float = 4.0,
        loss: str = "mean",
        find_unused: bool = False,
    ) -> None:
        if loss not in ("mean", "sum"):
            raise ArgumentError(f"loss must be 'mean' or 'sum', not {loss!r}")
        if not isinstance(bucket_mb, (int, float)) or not 0 < bucket_mb < float("inf"):
            raise ArgumentError(f"bucket_mb is {bucket_mb!r}, expected a positive number of MiB")
        self.model = model
        self.comm = comm
        self.loss = loss
        self.find_unused = find_unused
        self.comm_seconds = 0.0
        check_same_model(model, comm)
        copy_from_root(state_arrays(model), comm)
        trained = [(n, p) for n, p in model.named_parameters() if p.trainable]
        for name, parameter in trained:
            if parameter.data.dtype.name not in ("float32", "float64"):
                raise ArgumentError(
                    f"parameter {name} is {parameter.data.dtype}; gradients are averaged in "
                    "float32 and float64 only"
                )
        self._buckets = make_buckets(reversed(trained), int(bucket_mb * 2**20), comm)
        self._bucket_of = {id(p): i for i, b in enumerate(self._buckets) for p in b.parameters}
        self._layers = self._find_layers()
        self._sync = True
        self._window = _Window()

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the wrapped model without a name, so that parameters keep theirs."""
        yield "", self.model

    def own_members(self, kind: type[Any]) -> Iterator[tuple[str, Any]]:
        """Yield nothing: all parameters and buffers are the model's."""
        yield from ()

    def forward(self, x: Any) -> tuple[Any, Context]:
        """Run the model, counting which layers take part. Local."""
        counts: Counter[int] = Counter()
        with self._watch("forward", lambda layer: counts.update([id(layer)])):
            y, context = self.model.forward(x)
        return y, (counts, context)

    def __call__(self, x: Any) -> Any:
        """Return the output alone, for inference. Local."""
        return self.model(x)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it backwards are local; the next backward outside reduces the sum of all."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def backward(self, context: Context, grad: Any, weight: float | None = None) -> Any:
        """Run the model's backward; outside `no_sync` also average the gradients over all ranks.

        Args:
            context: What `forward` returned.
            grad: Gradient of this rank's loss with respect to the output, see `loss`.
            weight: How much it counts; None means its number of rows. With weight=1 everywhere the
                result is the average over ranks instead of rows.

        Returns:
            The gradient of this rank's loss with respect to the input.

        Raises:
            ArgumentError: without `find_unused`, on every rank: parameters took no part on some
                ranks.
        """
        counts, inner = context
        weight = _rows(grad) if weight is None else float(weight)
        scale = weight if self.loss == "mean" else 1.0
        if not 0 <= weight < float("inf"):
            raise ArgumentError(f"weight must be a number >= 0, not {weight}")
        self._begin(weight)
        if self._sync:
            reduction = _Reduction(self, counts)
            reduction.start_ready()
            with self._watch("backward", reduction.before_layer, reduction.after_layer):
                grad_in = self.model.backward(inner, _scaled(grad, scale))
            self._finish(reduction)
        else:
            grad_in = self.model.backward(inner, _scaled(grad, scale))
            self._window.filled = any(p.grad is not None for p in self._trained())
        return _scaled(grad_in, 1 / scale if scale else 1.0)

    def synchronize(self) -> None:
        """Average what local backwards accumulated, without another one. Collective.

        It stands for the synchronised backward on a rank that has no rows left, or none at all.
        """
        self._finish(_Reduction(self, Counter()))

    def _trained(self) -> Iterator[Parameter]:
        return (parameter for bucket in self._buckets for parameter in bucket.parameters)

    def _find_layers(self) -> dict[int, tuple[Module, list[Parameter]]]:
        """Find the modules that hold trained parameters themselves."""
        layers = {}
        for _, module in self.model.named_modules():
            own = [p for _, p in module.own_members(Parameter) if id(p) in self._bucket_of]
            if own:
                layers[id(module)] = module, own
        return layers

    @contextmanager
    def _watch(
        self,
        method: str,
        before: Callable[[Module], None],
        after: Callable[[Module], None] | None = None,
    ) -> Iterator[None]:
        """Within it, call `before` and `after` around a method of every layer with parameters."""

        def watched(layer: Module) -> Callable[..., Any]:
            original = getattr(layer, method)

            def call(*args: Any) -> Any:
                before(layer)
                result = original(*args)
                if after is not None:
                    after(layer)
                return result

            return call

        displaced = {id(m): vars(m)[method] for m, _ in self._layers.values() if method in vars(m)}
        try:
            for layer, _ in self._layers.values():
                vars(layer)[method] = watched(layer)
            yield
        finally:
            for layer, _ in self._layers.values():
                vars(layer).pop(method, None)
                if id(layer) in displaced:
                    vars(layer)[method] = displaced[id(layer)]

    def _begin(self, weight: float) -> None:
        """Note a backward; the first one of a window sets aside the gradients that stand there."""
        if self._window.filled and all(p.grad is None for p in self._trained()):
            self._window = _Window()  # they were zeroed meanwhile, so nothing is accumulated
        if not self._window.active:
            for parameter in self._trained():
                if parameter.grad is not None:
                    self._window.carried[id(parameter)] = parameter.grad
                    parameter.grad = None
        self._window.active = True
        self._window.weight += weight

    def _finish(self, reduction: _Reduction) -> None:
        """Start what is left, wait for all, check that all took part, give out the results."""
        started = perf_counter()
        reduction.start_all()
        copy_from_root(buffer_arrays(self.model), self.comm)
        reduction.wait()
        window, self._window = self._window, _Window()
        if not self.find_unused:
            self._check_used()
        for bucket in self._buckets:
            bucket.unpack(window.carried)
        self.comm_seconds += perf_counter() - started

    def _check_used(self) -> None:
        """Raise, on every rank alike, when a parameter took no part where a backward ran."""
        unused = [
            f"{name} (no gradient on {bucket.active - used} of {bucket.active} ranks"
            + (", this one included)" if parameter.grad is None else ")")
            for bucket in self._buckets
            for name, parameter, used in zip(
                bucket.names, bucket.parameters, bucket.used, strict=True
            )
            if used < bucket.active
        ]
        if unused:
            raise ArgumentError(
                f"DataParallel, rank {self.comm.rank}: parameters took no part in the backward: "
                f"{', '.join(unused)}; pass find_unused=True if that is meant"
            )


class _Window:
    """The backwards since the last synchronisation.

    Attributes:
        active: Whether there was one.
        filled: Whether they left gradients.
        weight: The sum of their weights.
        carried: Gradients that stood there before, by the parameter's id.
    """

    def __init__(self) -> None:
        self.active = False
        self.filled = False
        self.weight = 0.0
        self.carried: dict[int, Array] = {}


class _Reduction:
    """One synchronisation: which gradients are still to come, and which buckets are on their way.

    Buckets start in their fixed order, on every rank the same, however the gradients arrive.
    """

    def __init__(self, owner: DataParallel, counts: Counter[int]) -> None:
        self._owner = owner
        self._layers = owner._layers
        self._buckets = owner._buckets
        self._bucket_of = owner._bucket_of
        self._works: list[Work] = []
        self._calls = Counter({layer: n for layer, n in counts.items() if layer in self._layers})
        self._pending = [0] * len(self._buckets)  # backward calls still to come, per bucket
        for layer, calls in self._calls.items():
            for parameter in self._layers[layer][1]:
                self._pending[self._bucket_of[id(parameter)]] += calls

    def before_layer(self, layer: Module) -> None:
        """Refuse a gradient that comes after its bucket was sent."""
        if self._calls[id(layer)] <= 0:
            raise ArgumentError(
                f"DataParallel: the backward of a {type(layer).__name__} runs more often than "
                "its forward "
                "did; its gradient is already being reduced"
            )

    def after_layer(self, layer: Module) -> None:
        """Count a layer's backward and start what became complete."""
        self._calls[id(layer)] -= 1
        for parameter in self._layers[id(layer)][1]:
            self._pending[self._bucket_of[id(parameter)]] -= 1
        self.start_ready()

    def start_ready(self) -> None:
        """Start the next buckets in order as long as they are complete."""
        started = perf_counter()
        before = len(self._works)
        while len(self._works) < len(self._buckets) and not self._pending[len(self._works)]:
            self._start_next()
        if len(self._works) > before:
            self._owner.comm_seconds += perf_counter() - started

    def start_all(self) -> None:
        """Start every bucket that is left; what has not come by now does not come."""
        while len(self._works) < len(self._buckets):
            self._start_next()

    def wait(self) -> None:
        """Wait for every bucket."""
        for work in self._works:
            work.wait()

    def _start_next(self) -> None:
        bucket, window = self._buckets[len(self._works)], self._owner._window
        bucket.pack(window.weight, window.active)
        self._works.append(self._owner.comm.all_reduce(bucket.flat, op="sum", async_op=True))


def _rows(grad: Any) -> float:
    """Return the length of axis 0 of the first array of a gradient."""
    first = next((g for g in grad if g is not None), None) if isinstance(grad, tuple) else grad
    return float(first.shape[0]) if first is not None and first.ndim else 1.0


def _scaled(grad: Any, factor: float) -> Any:
    """Return the gradient times `factor`, keeping None and tuples."""
    if factor == 1.0 or no_gradient(grad):
        return grad
    if isinstance(grad, tuple):
        return tuple(_scaled(g, factor) for g in grad)
    return grad * grad.dtype.type(factor)
