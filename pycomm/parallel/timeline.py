"""Draws a schedule: ranks by time, with the share of time in which ranks idle (the bubble)."""

from __future__ import annotations

from dataclasses import dataclass

from pycomm.parallel.schedules import COMPUTE, Action, Actions, ScheduleError

FORWARD_COST = 1
BACKWARD_COST = 2


@dataclass(frozen=True)
class Timeline:
    """When each compute action runs.

    Attributes:
        slots: Per rank (start, action) in order; starts and costs are in units of one forward.
        length: End of the last action.
        bubble: Share of all ranks' time, from 0 to `length`, in which they do not compute.
    """

    slots: list[list[tuple[int, Action]]]
    length: int
    bubble: float


def timeline(
    lists: Actions, forward_cost: int = FORWARD_COST, backward_cost: int = BACKWARD_COST
) -> Timeline:
    """Place every F and B as early as its list and the stages before it allow; sending takes no
    time.

    Raises:
        ScheduleError: the order can never run.
    """
    cost = {"F": forward_cost, "B": backward_cost}
    compute = [[action for action in actions if action.op in COMPUTE] for actions in lists]
    stages = {action.stage for actions in compute for action in actions}
    ends: dict[Action, int] = {}
    slots: list[list[tuple[int, Action]]] = [[] for _ in compute]
    free = [0] * len(compute)

    def ready(action: Action) -> int | None:
        before = action.stage + (-1 if action.op == "F" else 1)
        needed = [Action(before, action.op, action.microbatch)] if before in stages else []
        if action.op == "B":
            needed.append(Action(action.stage, "F", action.microbatch))
        return max((ends[n] for n in needed), default=0) if all(n in ends for n in needed) else None

    waiting = True
    while waiting:
        moved = waiting = False
        for rank, actions in enumerate(compute):
            while len(slots[rank]) < len(actions):
                action = actions[len(slots[rank])]
                earliest = ready(action)
                if earliest is None:
                    waiting = True
                    break
                start = max(free[rank], earliest)
                slots[rank].append((start, action))
                ends[action] = free[rank] = start + cost[action.op]
                moved = True
        if waiting and not moved:
            raise ScheduleError("the schedule can never run to its end")
    length = max(free, default=0)
    busy = sum(cost[action.op] for row in slots for _, action in row)
    return Timeline(slots, length, 1 - busy / (length * len(compute)) if length else 0.0)


def format_schedule(
    lists: Actions, forward_cost: int = FORWARD_COST, backward_cost: int = BACKWARD_COST
) -> str:
    """Return the schedule as text: a line per rank, a column per unit of time, and the bubble's
    share.

    An action stands where it starts; equal signs fill the rest of its time, dots are idle.
    """
    cost = {"F": forward_cost, "B": backward_cost}
    drawn = timeline(lists, forward_cost, backward_cost)
    names = [str(action) for row in drawn.slots for _, action in row]
    width = max([len(name) for name in names] + [len(str(drawn.length))])
    lines = ["time    " + " ".join(str(t).rjust(width) for t in range(drawn.length))]
    for rank, row in enumerate(drawn.slots):
        cells = ["." * width] * drawn.length
        for start, action in row:
            cells[start] = str(action).rjust(width)
            for more in range(start + 1, start + cost[action.op]):
                cells[more] = "=" * width
        lines.append(f"rank {rank:<2} " + " ".join(cells))
    lines.append(f"bubble {drawn.bubble:.1%} of {drawn.length} units per rank")
    return "\n".join(lines)
