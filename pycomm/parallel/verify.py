"""Proves that a schedule computes everything once, in order, and cannot deadlock, before anything
runs.

Two passes over plain data, no transport:

1. Each rank's list alone: every action once, and after what it needs (a forward after its
   receive, a backward after its forward and its receive, a send after its compute).
2. All lists together, executed symbolically. A rank runs until it must wait: a receive waits for
   the matching send, and a send waits while `buffers` earlier messages on the same channel (stage
   to neighbouring stage) are still unreceived. When no rank can move and one is not finished, the
   schedule deadlocks, and the error says what each rank waits for. Receives are taken by name,
   not by order, as the runner's tags do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pycomm.parallel.schedules import (
    RECEIVES,
    SENDS,
    Action,
    Actions,
    ScheduleError,
    neighbour,
    owners,
)

DEFAULT_BUFFERS = 2


def check(
    lists: Actions,
    *,
    stages: int,
    microbatches: int,
    backward: bool = True,
    buffers: int = DEFAULT_BUFFERS,
) -> None:
    """Check a schedule with its sends and receives.

    Args:
        lists: One list of actions per rank.
        stages: Stages of the model; each must appear.
        microbatches: Microbatches per step; each must pass every stage.
        backward: Whether it trains (every forward has its backward) or only infers.
        buffers: Unreceived messages a channel holds before a send waits, at least 1.

    Raises:
        ScheduleError: what is wrong, with the action and the rank.
    """
    if buffers < 1 or microbatches < 1 or stages < 1:
        raise ScheduleError(
            f"stages, microbatches and buffers must be at least 1, not {stages}, {microbatches}, "
            f"{buffers}"
        )
    owner = owners(lists)
    if sorted(owner) != list(range(stages)):
        raise ScheduleError(
            f"the actions belong to stages {sorted(owner)}, expected 0 to {stages - 1}"
        )
    for rank, actions in enumerate(lists):
        _check_list(rank, actions, owner, microbatches, backward)
    _check_complete(lists, stages, microbatches, backward)
    _check_matches(lists)
    _simulate(lists, buffers)


def peak_in_flight(lists: Actions) -> dict[int, int]:
    """Return for each stage the most contexts (forwards without their backward) it holds."""
    peak: dict[int, int] = {}
    held: Counter[int] = Counter()
    for actions in lists:
        for action in actions:
            if action.op in ("F", "B"):
                held[action.stage] += 1 if action.op == "F" else -1
                peak[action.stage] = max(peak.get(action.stage, 0), held[action.stage])
    return peak


def _needs(action: Action, owner: dict[int, int], stages: int) -> Iterable[Action]:
    """Yield what must stand before `action` in the list of the same rank."""
    stage, op, m = action
    if op in SENDS:
        yield Action(stage, op[1], m)
    elif op in ("F", "B"):
        before = stage - 1 if op == "F" else stage + 1
        if 0 <= before < stages:
            local = owner[before] == owner[stage]
            yield Action(before, op, m) if local else Action(stage, "R" + op, m)
        if op == "B":
            yield Action(stage, "F", m)


def _check_list(
    rank: int, actions: Iterable[Action], owner: dict[int, int], microbatches: int, backward: bool
) -> None:
    """Check one rank's list alone."""
    stages, done = len(owner), set()
    for action in actions:
        stage, op, m = action
        where = f"rank {rank}, action {action}"
        if op not in ("F", "B", *RECEIVES, *SENDS):
            raise ScheduleError(f"{where}: unknown kind {op!r}")
        if not 0 <= m < microbatches:
            raise ScheduleError(f"{where}: there are microbatches 0 to {microbatches - 1}")
        if not backward and op.endswith("B"):
            raise ScheduleError(f"{where}: a forward-only schedule has no backward")
        if action in done:
            raise ScheduleError(f"{where}: it is in the list twice")
        if op in (*RECEIVES, *SENDS):
            other = neighbour(stage, op)
            if not 0 <= other < stages:
                raise ScheduleError(f"{where}: there is no stage {other}")
            if owner[other] == rank:
                raise ScheduleError(f"{where}: stage {other} is on the same rank, nothing is sent")
        for needed in _needs(action, owner, stages):
            if needed not in done:
                raise ScheduleError(f"{where}: {needed} must come before it")
        done.add(action)


def _check_complete(lists: Actions, stages: int, microbatches: int, backward: bool) -> None:
    """Check that every microbatch passes every stage."""
    present = {action for actions in lists for action in actions}
    for stage in range(stages):
        for op in ("F", "B") if backward else ("F",):
            for m in range(microbatches):
                if Action(stage, op, m) not in present:
                    raise ScheduleError(f"{Action(stage, op, m)} is missing")


def _matching(action: Action) -> Action:
    """Return the receive of a send, or the send of a receive."""
    stage, op, m = action
    return Action(neighbour(stage, op), ("R" if op[0] == "S" else "S") + op[1], m)


def _check_matches(lists: Actions) -> None:
    """Check that every send has its receive and every receive its send."""
    present = {action for actions in lists for action in actions}
    for rank, actions in enumerate(lists):
        for action in actions:
            if action.op not in ("F", "B") and _matching(action) not in present:
                raise ScheduleError(
                    f"rank {rank}, action {action}: {_matching(action)}, its other end, is missing"
                )


def _simulate(lists: Actions, buffers: int) -> None:
    """Run all lists symbolically until they end or nobody can move."""
    position = [0] * len(lists)
    sent: set[Action] = set()
    unreceived: Counter[tuple[int, str]] = Counter()  # by channel: sending stage and direction

    def can_run(action: Action) -> bool:
        if action.op in SENDS:
            return unreceived[action.stage, action.op] < buffers
        return action.op not in RECEIVES or _matching(action) in sent

    def run(action: Action) -> None:
        if action.op in SENDS:
            sent.add(action)
            unreceived[action.stage, action.op] += 1
        elif action.op in RECEIVES:
            other = _matching(action)
            unreceived[other.stage, other.op] -= 1

    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(lists):
            while position[rank] < len(actions) and can_run(actions[position[rank]]):
                run(actions[position[rank]])
                position[rank] += 1
                moved = True
    stuck = [
        f"rank {rank} waits at {actions[at]} for {_matching(actions[at])}"
        if actions[at].op in RECEIVES
        else f"rank {rank} waits at {actions[at]} for one of {buffers} buffers to be received"
        for rank, (actions, at) in enumerate(zip(lists, position, strict=True))
        if at < len(actions)
    ]
    if stuck:
        raise ScheduleError("the schedule deadlocks: " + "; ".join(stuck))
