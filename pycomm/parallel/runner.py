"""Executes one rank's list of actions, whatever the schedule.

The runner knows no schedule. It walks the list; values wait under the name of the action that
will use them, between the action that made them (a compute, a receive, or a neighbouring stage of
the same rank) and it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from pycomm.nn import Module
from pycomm.nn.module import no_gradient
from pycomm.parallel.data_parallel import DataParallel
from pycomm.parallel.messages import Inbox, Message, Outbox
from pycomm.parallel.schedules import RECEIVES, SENDS, Action, neighbour

if TYPE_CHECKING:
    from pycomm.communicator import Communicator

Turn = Callable[[int, Any], Any]
"""(microbatch, the model's output) -> gradient of the loss: where forward turns into backward."""


class Runner:
    """Runs verified lists on this rank's stages.

    Args:
        comm: The ranks of the pipeline.
        owner: Which rank each stage is on.
        stages: This rank's stages. Gradients of a `DataParallel` stage are reduced once per run,
            overlapped with its last backward.
        microbatches: Microbatches per run.
        buffers: Messages per channel that may be on their way, as verified.
    """

    def __init__(
        self,
        comm: Communicator,
        owner: Mapping[int, int],
        stages: Mapping[int, Module],
        microbatches: int,
        buffers: int,
    ) -> None:
        self._comm = comm
        self._owner = owner
        self._stages = stages
        self._last_stage = max(owner)
        self._microbatches = microbatches
        self._buffers = buffers
        self._seconds = 0.0

    @property
    def comm_seconds(self) -> float:
        """Time spent in sending and in waiting for messages, the pipeline's bubble included."""
        return self._seconds

    def run(
        self, actions: Sequence[Action], inputs: Sequence[Message] | None, turn: Turn | None
    ) -> dict[int, Message]:
        """Execute a list to its end.

        Args:
            actions: This rank's list.
            inputs: The model's input per microbatch; None where this rank has not stage 0.
            turn: Gives the gradient at the model's output; None for a forward-only list.

        Returns:
            The model's outputs by microbatch, on the rank of the last stage in a forward-only run.
        """
        pass_ = _Pass(self._stages, self._last_stage, actions, turn)
        for microbatch, message in enumerate(inputs or ()):
            pass_.values[Action(0, "F", microbatch)] = message
        outbox = Outbox(self._comm, self._owner, self._microbatches, self._buffers)
        receives = [action for action in actions if action.op in RECEIVES]
        inbox = Inbox(self._comm, self._owner, self._microbatches, self._buffers, receives)
        for action in actions:
            stage, op, microbatch = action
            if op in RECEIVES:
                pass_.values[Action(stage, op[1], microbatch)] = inbox.take(action)
            elif op in SENDS:
                outbox.send(action, pass_.values.pop(action))
            else:
                pass_.compute(action)
                inbox.advance()
        pass_.reduce_gradients()
        outbox.flush()
        self._seconds += inbox.seconds + outbox.seconds
        return pass_.outputs


class _Pass:
    """The state of one run: values between actions, contexts between forward and backward."""

    def __init__(
        self,
        stages: Mapping[int, Module],
        last_stage: int,
        actions: Sequence[Action],
        turn: Turn | None,
    ) -> None:
        self._stages = stages
        self._last_stage = last_stage
        self._turn = turn
        self._contexts: dict[tuple[int, int], Any] = {}
        self._last_backward = {a.stage: a for a in actions if a.op == "B"}
        backwards = [a for a in actions if a.op == "B"]
        order = sorted(self._last_backward.values(), key=backwards.index)
        self._to_reduce = [a.stage for a in order if isinstance(stages[a.stage], DataParallel)]
        self.values: dict[Action, Message] = {}
        self.outputs: dict[int, Message] = {}

    def compute(self, action: Action) -> None:
        """Run a forward or a backward, and put its result where the next action looks for it."""
        message = self.values.pop(action)
        if action.op == "F":
            self._forward(action, message)
        else:
            self._backward(action, message)

    def reduce_gradients(self) -> None:
        """Reduce the stages whose last microbatch was empty, in their order."""
        while self._to_reduce:
            stage = self._stages[self._to_reduce.pop(0)]
            assert isinstance(stage, DataParallel)
            stage.synchronize()

    def _forward(self, action: Action, message: Message) -> None:
        stage, _, microbatch = action
        module = self._stages[stage]
        at_end = stage == self._last_stage
        if not message.skip:
            if self._turn is None:
                message = Message(module(message.value), message.rows)
            else:
                output, self._contexts[stage, microbatch] = module.forward(message.value)
                if at_end:
                    output = self._turn(microbatch, output)
                message = Message(output, message.rows)
        if not at_end:
            self.values[_taken_by(action, self._stages)] = message
        elif self._turn is None:
            self.outputs[microbatch] = message
        else:
            self.values[Action(stage, "B", microbatch)] = message

    def _backward(self, action: Action, message: Message) -> None:
        stage, _, microbatch = action
        if not message.skip:
            context = self._contexts.pop((stage, microbatch))
            grad = None
            if not no_gradient(message.value):
                grad = self._run_backward(action, context, message)
            message = Message(grad, message.rows)
        if stage > 0:
            self.values[_taken_by(action, self._stages)] = message

    def _run_backward(self, action: Action, context: Any, message: Message) -> Any:
        """Run the stage's backward; a replicated stage's last one also reduces its gradients."""
        module = self._stages[action.stage]
        if not isinstance(module, DataParallel):
            return module.backward(context, message.value)
        is_last = self._last_backward[action.stage] == action
        reduce_now = is_last and self._to_reduce[0] == action.stage
        if reduce_now:
            self._to_reduce.pop(0)
        with nullcontext() if reduce_now else module.no_sync():
            return module.backward(context, message.value, weight=message.rows)


def _taken_by(compute: Action, stages: Mapping[int, Module]) -> Action:
    """Return what takes a compute's result: the neighbour's compute when local, else the send."""
    stage, op, microbatch = compute
    send = Action(stage, "S" + op, microbatch)
    other = neighbour(stage, send.op)
    return Action(other, op, microbatch) if other in stages else send
