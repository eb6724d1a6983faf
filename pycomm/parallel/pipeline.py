"""Pipelines: layers are split over ranks, a batch flows through them in microbatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pycomm._arrays import check_int
from pycomm.errors import ArgumentError
from pycomm.nn import Array, Buffer, Module, Parameter, Sequential, cross_entropy
from pycomm.parallel import verify
from pycomm.parallel.batches import join, row_count, split_rows
from pycomm.parallel.data_parallel import DataParallel
from pycomm.parallel.messages import Message
from pycomm.parallel.plan import check_agreement, check_not_shared, make_actions, split_layers
from pycomm.parallel.runner import Runner
from pycomm.parallel.schedules import Action, Actions, owners
from pycomm.parallel.timeline import format_schedule

if TYPE_CHECKING:
    from pycomm.communicator import Communicator

Loss = Callable[[Any, Any, float], tuple[float, Any]]
"""(output, labels, divisor) -> (the rows' losses / divisor, its gradient), as `cross_entropy`."""


class Pipeline:
    """Splits a model over the ranks of a communicator and runs batches through it.

    Every rank builds the same whole model (from the same seed), then keeps its own stage.
    `train_step` leaves in the stage's parameters the gradient of the mean loss over the batch,
    the same as one process would compute. All methods that compute are collective. An exception
    while a batch is on its way, such as a wrong label found by the last stage, aborts `comm` (and
    `replicas`) with its text: the other stages are waiting for this one, and raise AbortedError
    instead.

    Args:
        model: A `Sequential`, or its layers.
        comm: The ranks of the pipeline; rank s is stage s, unless `schedule` says otherwise.
        schedule: "gpipe", "1f1b", a function (stages, microbatches) -> lists of actions, or the
            lists, one per rank, with or without sends and receives. It is verified here, before
            anything runs.
        microbatches: Parts a batch is split into, as evenly as possible; a batch of fewer rows
            leaves some parts empty, and nothing is computed for these.
        partition: How layers are split: "layers" (equal numbers), "parameters" (equal parameter
            counts), or the number of layers of each stage.
        costs: A cost per layer instead: the dearest stage gets as cheap as can be.
        loss: Called with the model's output and labels of a microbatch, and what to divide the
            sum of its rows' losses by; returns that and its gradient, as `cross_entropy` does.
        replicas: The ranks that hold the same stage of other copies of the pipeline, to average
            gradients and losses with: data and pipeline parallelism combined. See `Mesh`.
        bucket_mb: Bucket size for `replicas`, see `DataParallel`.
        find_unused: For `replicas`, see `DataParallel`.
        buffers: Messages between two stages that may be on their way.

    Raises:
        ArgumentError: the layers do not fit the stages, a parameter belongs to two stages, or ranks
            disagree about the plan.
        ScheduleError: the schedule is wrong or deadlocks.
    """

    def __init__(
        self,
        model: Sequential | Sequence[Module],
        comm: Communicator,
        *,
        schedule: str | Callable[[int, int], Actions] | Actions = "1f1b",
        microbatches: int = 4,
        partition: str | Sequence[int] = "layers",
        costs: Sequence[float] | None = None,
        loss: Loss = cross_entropy,
        replicas: Communicator | None = None,
        bucket_mb: float = 4.0,
        find_unused: bool = False,
        buffers: int = verify.DEFAULT_BUFFERS,
    ) -> None:
        layers = model.layers if isinstance(model, Sequential) else list(model)
        self.comm = comm
        what = "a number of microbatches from 1"
        self.microbatches = microbatches = check_int(microbatches, "microbatches", 1, None, what)
        self._loss = loss
        self._replicas = replicas
        self._share_seconds = 0.0
        self._actions = make_actions(schedule, comm.size, microbatches)
        self._owner = owners(self._actions)
        self.num_stages = len(self._owner)
        verify.check(
            self._actions, stages=self.num_stages, microbatches=microbatches, buffers=buffers
        )
        self.partition = split_layers(layers, self.num_stages, partition, costs)
        check_agreement(
            comm,
            {
                "layers": [type(layer).__name__ for layer in layers],
                "microbatches": microbatches,
                "buffers": buffers,
                "partition": [(part.start, part.stop) for part in self.partition],
                "schedule": [" ".join(map(str, actions)) for actions in self._actions],
            },
        )
        check_not_shared(layers, self.partition)
        self.stages: dict[int, Module] = {}
        for stage, rank in sorted(self._owner.items()):
            if rank == comm.rank:
                part = self.partition[stage]
                own = Sequential(*(layers[i] for i in part), first_index=part.start)
                self.stages[stage] = own
                if replicas is not None:
                    self.stages[stage] = DataParallel(
                        own, replicas, loss="sum", bucket_mb=bucket_mb, find_unused=find_unused
                    )
        self._runner = Runner(comm, self._owner, self.stages, microbatches, buffers)
        # Inference needs the forwards of the same lists, with their messages.
        self._forwards = [[a for a in actions if a.op.endswith("F")] for actions in self._actions]
        verify.check(
            self._forwards,
            stages=self.num_stages,
            microbatches=microbatches,
            buffers=buffers,
            backward=False,
        )

    @property
    def is_first(self) -> bool:
        """Whether this rank has the first stage, the one that reads inputs."""
        return 0 in self.stages

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last stage, the one that reads labels."""
        return self.num_stages - 1 in self.stages

    @property
    def comm_seconds(self) -> float:
        """Time this rank spent communicating so far, waiting for other stages included."""
        reducing = [s.comm_seconds for s in self.stages.values() if isinstance(s, DataParallel)]
        return self._runner.comm_seconds + self._share_seconds + sum(reducing)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield this rank's parameters under the names they have in the whole model."""
        for stage in self.stages.values():
            yield from stage.named_parameters()

    def named_buffers(self) -> Iterator[tuple[str, Buffer]]:
        """Yield this rank's buffers under the names they have in the whole model."""
        for stage in self.stages.values():
            yield from stage.named_buffers()

    def parameters(self) -> list[Parameter]:
        """Return this rank's parameters, for an optimizer."""
        return [parameter for _, parameter in self.named_parameters()]

    def parameter_bytes(self) -> int:
        """Return the bytes of this rank's parameters."""
        return sum(parameter.data.nbytes for parameter in self.parameters())

    def zero_grad(self) -> None:
        """Forget the gradients of this rank's parameters."""
        for stage in self.stages.values():
            stage.zero_grad()

    def train_step(self, x: Any, labels: Any) -> float:
        """Run a batch forward and backward; gradients are added to the parameters' `grad`.

        Args:
            x: The batch, an array or a tuple of arrays with rows along axis 0. Read by the first
                stage; other ranks may pass None. With `replicas`, this copy's share of the batch,
                which may have any number of rows.
            labels: One entry per row, an array or a tuple of arrays. Read by the last stage;
                other ranks may pass None.

        Returns:
            The mean loss over the batch (over all replicas' rows), the same on every rank; 0.0
            for no rows.
        """
        with self._telling_others():
            return self._run_with_loss(self._actions[self.comm.rank], x, labels, train=True)

    def evaluate(self, x: Any, labels: Any) -> float:
        """Return the mean loss over a batch, without a backward; arguments as for `train_step`."""
        with self._telling_others(), _Evaluating(self.stages.values()):
            return self._run_with_loss(self._forwards[self.comm.rank], x, labels, train=False)

    def infer(self, x: Any, *, everywhere: bool = False) -> Any:
        """Run a batch forward only, with the stages in evaluation mode.

        Args:
            x: The batch, as for `train_step`.
            everywhere: Give the output to every rank of the pipeline.

        Returns:
            The model's output for all rows on the rank of the last stage; None on others, unless
            `everywhere`.
        """
        with self._telling_others():
            with _Evaluating(self.stages.values()):
                outputs = self._runner.run(self._forwards[self.comm.rank], self._feed(x), None)
            parts = [outputs[m].value for m in sorted(outputs) if not outputs[m].skip]
            output = join(parts) if self.is_last else None
            return self._give_to_all(output) if everywhere else output

    def schedule_text(self) -> str:
        """Return the training schedule drawn as ranks by time, with the share of the bubble."""
        return format_schedule(self._actions)

    def print_schedule(self) -> None:
        """Print `schedule_text` on rank 0 of the pipeline; nothing on others."""
        if self.comm.rank == 0:
            print(self.schedule_text())

    def _feed(self, x: Any) -> list[Message] | None:
        """Split the input into messages for stage 0. The first is run even when it is empty."""
        if not self.is_first:
            return None
        if x is None:
            raise ArgumentError("the rank of the first stage needs the input, it got None")
        parts = split_rows(x, self.microbatches)
        messages = [Message(part, row_count(part)) for part in parts]
        empty = Message(None, 0, skip=True)
        return [
            empty if m > 0 and not message.rows else message for m, message in enumerate(messages)
        ]

    @contextmanager
    def _telling_others(self) -> Iterator[None]:
        """When a batch fails here, wrong arguments included, let the ranks that wait know."""
        try:
            yield
        except BaseException as error:
            reason = f"Pipeline: {type(error).__name__}: {error}"
            for comm in (self.comm, self._replicas):
                if comm is not None and comm.size > 1:
                    comm.abort(reason)
            raise

    def _run_with_loss(
        self, actions: Sequence[Action], x: Any, labels: Any, *, train: bool
    ) -> float:
        """Run a list and return the loss shared by all ranks."""
        sums = np.zeros(2)  # the rows' losses, rows
        parts: list[Any] = []
        divisor = 1.0
        if self.is_last:
            if labels is None:
                raise ArgumentError("the rank of the last stage needs the labels, it got None")
            if x is not None and row_count(x) != row_count(labels):
                raise ArgumentError(f"{row_count(x)} rows came with {row_count(labels)} labels")
            parts = split_rows(labels, self.microbatches)
            sums[1] = row_count(labels)
            if self._replicas is None:
                divisor = max(sums[1], 1.0)

        def turn(microbatch: int, output: Any) -> Any:
            loss, grad = self._loss(output, parts[microbatch], divisor)
            sums[0] += loss * divisor
            return grad

        outputs = self._runner.run(actions, self._feed(x), turn if train else None)
        for microbatch, message in outputs.items():
            if not message.skip:
                turn(microbatch, message.value)
        return self._share_loss(sums)

    def _share_loss(self, sums: Array) -> float:
        """Return the mean loss on every rank, from the sums on the last stage's."""
        started = perf_counter()
        if self._replicas is not None and self.is_last:
            self._replicas.all_reduce(sums, op="sum")
        self.comm.broadcast(sums, root=self._owner[self.num_stages - 1])
        self._share_seconds += perf_counter() - started
        return float(sums[0] / max(sums[1], 1.0))

    def _give_to_all(self, output: Any) -> Any:
        """Broadcast the last stage's output: first its shapes, then its arrays."""
        root = self._owner[self.num_stages - 1]
        plan = None
        if self.comm.rank == root:
            entries = output if isinstance(output, tuple) else (output,)
            plan = isinstance(output, tuple), [(a.shape, str(a.dtype)) for a in entries]
        is_tuple, kinds = self.comm.broadcast_object(plan, root=root)
        arrays = []
        for index, (shape, dtype) in enumerate(kinds):
            array = np.empty(shape, dtype)
            if self.comm.rank == root:
                array[...] = output[index] if is_tuple else output
            self.comm.broadcast(array, root=root)
            arrays.append(array)
        return tuple(arrays) if is_tuple else arrays[0]


class _Evaluating:
    """Puts stages into evaluation mode for a while."""

    def __init__(self, stages: Any) -> None:
        self._modules = [module for stage in stages for _, module in stage.named_modules()]

    def __enter__(self) -> None:
        self._before = [module.training for module in self._modules]
        for module in self._modules:
            module.training = False

    def __exit__(self, *_: object) -> None:
        for module, training in zip(self._modules, self._before, strict=True):
            module.training = training
