"""Decided before a pipeline runs: the actions, the split of the layers, and that all agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pycomm.errors import ArgumentError
from pycomm.nn import Module
from pycomm.parallel.partition import split_by_cost, split_by_sizes, split_evenly
from pycomm.parallel.schedules import SCHEDULES, Actions, has_communication, with_communication

if TYPE_CHECKING:
    from pycomm.communicator import Communicator


def make_actions(
    schedule: str | Callable[[int, int], Actions] | Actions, ranks: int, microbatches: int
) -> Actions:
    """Return a schedule's lists with their sends and receives, not yet verified.

    Args:
        schedule: A name, a function (stages, microbatches) -> lists, or the lists.
        ranks: Ranks of the pipeline; a named schedule has as many stages.
        microbatches: Microbatches per step.

    Raises:
        ArgumentError: no such schedule, or one for another number of ranks.
    """
    if microbatches < 1:
        raise ArgumentError(f"microbatches must be at least 1, not {microbatches}")
    if isinstance(schedule, str):
        if schedule not in SCHEDULES:
            raise ArgumentError(
                f"schedule must be one of {', '.join(SCHEDULES)}, a function or lists of "
                "actions, not "
                f"{schedule!r}"
            )
        schedule = SCHEDULES[schedule]
    lists = schedule(ranks, microbatches) if callable(schedule) else schedule
    if len(lists) != ranks:
        raise ArgumentError(f"the schedule is for {len(lists)} ranks, the pipeline has {ranks}")
    return lists if has_communication(lists) else with_communication(lists)


def split_layers(
    layers: Sequence[Module],
    stages: int,
    partition: str | Sequence[int],
    costs: Sequence[float] | None,
) -> list[range]:
    """Split the layers into stages, by the given costs or else as `partition` says.

    Raises:
        ArgumentError: the layers cannot be split so.
    """
    if costs is not None:
        if len(costs) != len(layers):
            raise ArgumentError(f"{len(costs)} costs were given for {len(layers)} layers")
        return split_by_cost(costs, stages)
    if partition == "layers":
        return split_evenly(len(layers), stages)
    if partition == "parameters":
        sizes = [sum(p.data.size for p in layer.parameters()) for layer in layers]
        return split_by_cost(sizes, stages)
    if isinstance(partition, str):
        raise ArgumentError(
            f"partition must be 'layers', 'parameters' or a list of sizes, not {partition!r}"
        )
    return split_by_sizes(len(layers), partition, stages)


def check_not_shared(layers: Sequence[Module], parts: Sequence[range]) -> None:
    """Refuse a parameter in two stages: their copies would drift apart.

    Raises:
        ArgumentError: names the parameter and both stages.
    """
    seen: dict[int, tuple[int, str]] = {}
    for stage, part in enumerate(parts):
        for index in part:
            for name, parameter in layers[index].named_parameters(str(index)):
                other, other_name = seen.setdefault(id(parameter), (stage, name))
                if other != stage:
                    raise ArgumentError(
                        f"parameter {name} of stage {stage} is also {other_name} of stage "
                        f"{other}; a shared "
                        "parameter must stay within one stage"
                    )


def check_agreement(comm: Communicator, plan: Mapping[str, Any]) -> None:
    """Check that all ranks plan the same. Collective.

    Raises:
        ArgumentError: names what differs, this rank and the other, and both values.
    """
    for rank, other in enumerate(comm.all_gather_object(dict(plan))):
        for key, value in plan.items():
            if other[key] != value:
                raise ArgumentError(
                    f"Pipeline: rank {comm.rank} and rank {rank} differ in {key}: {value} and "
                    f"{other[key]}"
                )
