"""Pipeline schedules as plain data: who computes and sends what, in which order.

A schedule has one list of actions per rank. An action is written like 1F3: stage 1, forward,
microbatch 3. The letters are

    F   forward                          B   backward
    RF  receive the forward's input      RB  receive the gradient that the backward starts from
    SF  send the forward's output        SB  send the gradient that the backward computed

The functions here yield the compute actions alone; `with_communication` adds the rest. Nothing
here runs: `verify.check` proves a schedule before the runner executes it, and `timeline` draws it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pycomm.errors import ArgumentError

COMPUTE = ("F", "B")
RECEIVES = ("RF", "RB")
SENDS = ("SF", "SB")


class ScheduleError(ArgumentError):
    """A schedule that would compute wrong results or deadlock; the message names the action."""


class Action(NamedTuple):
    """One entry of a rank's list.

    Attributes:
        stage: The stage it belongs to, counted from the input.
        op: One of F, B, RF, SF, RB, SB.
        microbatch: The microbatch it works on.
    """

    stage: int
    op: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.op}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read an action back from its text, such as "1F3".

        Raises:
            ScheduleError: the text is no action.
        """
        match = re.fullmatch(r"(\d+)(F|B|RF|SF|RB|SB)(\d+)", text)
        if match is None:
            raise ScheduleError(f"{text!r} is no action; 1F3 is stage 1, forward, microbatch 3")
        return cls(int(match[1]), match[2], int(match[3]))


Actions = Sequence[Sequence[Action]]
"""One list of actions per rank."""


def gpipe(stages: int, microbatches: int) -> list[list[Action]]:
    """All forwards, then all backwards (Huang et al., "GPipe", 2019).

    Every stage holds the contexts of all microbatches at the turn. The backwards run in the order
    of the forwards, so gradients are summed in the same order as by `one_f_one_b`.
    """
    return [
        [Action(stage, op, m) for op in COMPUTE for m in range(microbatches)]
        for stage in range(stages)
    ]


def one_f_one_b(stages: int, microbatches: int) -> list[list[Action]]:
    """One forward, one backward in turn (Narayanan et al., "PipeDream", 2019, with a flush, 2021).

    The same bubble as GPipe, but stage s holds at most `stages - s` contexts, however many
    microbatches.
    """

    def one_stage(stage: int) -> list[Action]:
        warm_up = min(microbatches, stages - 1 - stage)
        actions = [Action(stage, "F", m) for m in range(warm_up)]
        for m in range(microbatches - warm_up):  # steady state
            actions += [Action(stage, "F", warm_up + m), Action(stage, "B", m)]
        cool_down = range(microbatches - warm_up, microbatches)
        return actions + [Action(stage, "B", m) for m in cool_down]

    return [one_stage(stage) for stage in range(stages)]


def forward_only(stages: int, microbatches: int) -> list[list[Action]]:
    """All forwards and no backward, for inference."""
    return [[Action(stage, "F", m) for m in range(microbatches)] for stage in range(stages)]


SCHEDULES: dict[str, Callable[[int, int], list[list[Action]]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
}
"""The schedules that `Pipeline` knows by name."""


def neighbour(stage: int, op: str) -> int:
    """Return the stage at the other end of a send or receive."""
    return stage + 1 if op in ("SF", "RB") else stage - 1


def with_communication(compute: Actions) -> list[list[Action]]:
    """Add the sends and receives to lists of F and B.

    A receive stands right before the action that needs it, a send right after the action that
    made it. Between stages of the same rank nothing is sent.
    """
    owner = owners(compute)
    last = max(owner, default=0)

    def around(action: Action) -> list[Action]:
        stage, op, microbatch = action
        before, after = (stage - 1, stage + 1) if op == "F" else (stage + 1, stage - 1)
        remote = [
            0 <= other <= last and owner.get(other) != owner[stage] for other in (before, after)
        ]
        receive = [Action(stage, "R" + op, microbatch)] if remote[0] else []
        send = [Action(stage, "S" + op, microbatch)] if remote[1] else []
        return [*receive, action, *send]

    return [[added for action in actions for added in around(action)] for actions in compute]


def owners(lists: Actions) -> dict[int, int]:
    """Return which rank each stage belongs to.

    Raises:
        ScheduleError: two ranks have actions of one stage.
    """
    owner: dict[int, int] = {}
    for rank, actions in enumerate(lists):
        for action in actions:
            if owner.setdefault(action.stage, rank) != rank:
                raise ScheduleError(
                    f"{action} is in the list of rank {rank}, but stage {action.stage} belongs to "
                    f"rank {owner[action.stage]}"
                )
    return owner


def has_communication(lists: Actions) -> bool:
    """Whether the lists contain sends or receives already."""
    return any(action.op not in COMPUTE for actions in lists for action in actions)
