"""Schedules as data: their shape, their verifier, their drawing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pycomm.parallel import (
    SCHEDULES,
    Action,
    ScheduleError,
    check_schedule,
    format_schedule,
    forward_only,
    gpipe,
    one_f_one_b,
    peak_in_flight,
    timeline,
    with_communication,
)

Lists = list[list[Action]]


def parse(*ranks: str) -> Lists:
    return [[Action.parse(word) for word in rank.split()] for rank in ranks]


def text(lists: Lists) -> list[str]:
    return [" ".join(map(str, actions)) for actions in lists]


def interleaved() -> Lists:
    """Four stages on two ranks, rank r has stages r and r + 2; two microbatches."""
    return parse(
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    )


def test_actions_print_and_parse() -> None:
    assert str(Action(1, "F", 3)) == "1F3"
    for written in ("0F0", "12B345", "3RF1", "3SB20"):
        assert str(Action.parse(written)) == written
    for wrong in ("", "F1", "1F", "1X2", "1F2 ", "-1F2"):
        with pytest.raises(ScheduleError, match="is no action; 1F3 is stage 1"):
            Action.parse(wrong)


def test_gpipe_and_1f1b_as_in_the_papers() -> None:
    assert text(gpipe(2, 3)) == ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"]
    assert text(one_f_one_b(3, 4)) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]
    assert text(forward_only(2, 2)) == ["0F0 0F1", "1F0 1F1"]
    assert text(with_communication(one_f_one_b(2, 1))) == ["0F0 0SF0 0RB0 0B0", "1RF0 1F0 1B0 1SB0"]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_size_passes_the_verifier(name: str) -> None:
    for stages in range(1, 9):
        for microbatches in range(1, 13):
            lists = SCHEDULES[name](stages, microbatches)
            for buffers in (1, 2, 5):
                check_schedule(
                    with_communication(lists),
                    stages=stages,
                    microbatches=microbatches,
                    buffers=buffers,
                )
            ideal = (stages - 1) / (microbatches + stages - 1)
            assert timeline(lists).bubble == pytest.approx(ideal, abs=1e-12)
            in_flight = dict.fromkeys(range(stages), microbatches)
            if name == "1f1b":
                in_flight = {s: min(microbatches, stages - s) for s in range(stages)}
            assert peak_in_flight(lists) == in_flight


def test_other_valid_lists_pass() -> None:
    check_schedule(with_communication(interleaved()), stages=4, microbatches=2)
    check_schedule(with_communication(forward_only(3, 4)), stages=3, microbatches=4, backward=False)


def test_local_neighbours_send_nothing() -> None:
    one_rank = with_communication(parse("0F0 1F0 1B0 0B0"))
    assert text(one_rank) == ["0F0 1F0 1B0 0B0"]
    check_schedule(one_rank, stages=2, microbatches=1)


GOOD = (
    "0F0 0SF0 0F1 0SF1 0RB0 0B0 0RB1 0B1",
    "1RF0 1F0 1RF1 1F1 1B0 1SB0 1B1 1SB1",
)
BROKEN: dict[str, tuple[Callable[[str, str], tuple[str, str]], str]] = {
    "backward first": (
        lambda a, b: (a, b.replace("1F1 1B0 1SB0 1B1", "1B1 1F1 1B0 1SB0")),
        "rank 1, action 1B1: 1F1 must come before it",
    ),
    "send first": (
        lambda a, b: (a.replace("0F0 0SF0", "0SF0 0F0"), b),
        "rank 0, action 0SF0: 0F0 must come before it",
    ),
    "no receive before forward": (
        lambda a, b: (a, b.replace("1RF0 1F0", "1F0 1RF0")),
        "rank 1, action 1F0: 1RF0 must come before it",
    ),
    "send without receive": (
        lambda a, b: (a.replace("0RB1 0B1", ""), b),
        "0B1 is missing",
    ),
    "receive without send": (
        lambda a, b: (a, b.replace(" 1SB1", "")),
        "rank 0, action 0RB1: 1SB1, its other end, is missing",
    ),
    "twice": (lambda a, b: (a + " 0B1", b), "rank 0, action 0B1: it is in the list twice"),
    "missing": (lambda a, b: (a, b.replace(" 1B1 1SB1", "")), "1B1 is missing"),
    "microbatch": (
        lambda a, b: (a + " 0F2", b),
        "rank 0, action 0F2: there are microbatches 0 to 1",
    ),
    "owner": (lambda a, b: (a, b + " 0F0"), "0F0 is in the list of rank 1, but stage 0 belongs"),
    "no such stage": (
        lambda a, b: (a, b.replace("1SB1", "1SB1 1SF1")),
        "rank 1, action 1SF1: there is no stage 2",
    ),
    "deadlock": (
        lambda a, b: (a.replace("0F1 0SF1 0RB0 0B0", "0RB0 0B0 0F1 0SF1"), b),
        "deadlocks: rank 0 waits at 0RB0 for 1SB0; rank 1 waits at 1RF1 for 0SF1",
    ),
}


def test_the_starting_point_of_the_broken_lists_is_good() -> None:
    check_schedule(parse(*GOOD), stages=2, microbatches=2)


@pytest.mark.parametrize("name", BROKEN)
def test_the_verifier_names_the_action(name: str) -> None:
    change, message = BROKEN[name]
    with pytest.raises(ScheduleError, match=message):
        check_schedule(parse(*change(*GOOD)), stages=2, microbatches=2)


def test_bounded_buffers_are_respected() -> None:
    """Stage 0 sends three before it receives; stage 1 asks for the last first."""
    lists = parse(
        "0F0 0SF0 0F1 0SF1 0F2 0SF2",
        "1RF2 1F2 1RF0 1F0 1RF1 1F1",
    )
    check_schedule(lists, stages=2, microbatches=3, backward=False, buffers=3)
    message = "rank 0 waits at 0SF2 for one of 2 buffers .*; rank 1 waits at 1RF2 for 0SF2"
    with pytest.raises(ScheduleError, match=message):
        check_schedule(lists, stages=2, microbatches=3, backward=False, buffers=2)


def test_a_forward_only_schedule_has_no_backward() -> None:
    with pytest.raises(ScheduleError, match="action 0B0: a forward-only schedule"):
        check_schedule(parse("0F0 0B0"), stages=1, microbatches=1, backward=False)


def test_shuffled_lists_are_judged_as_a_brute_force_run_judges_them() -> None:
    """Random orders of a small schedule: the verifier says yes exactly when a naive run ends."""
    rng = random.Random(3)
    verdicts = set()
    for _ in range(400):
        lists = with_communication(one_f_one_b(3, 2))
        for actions in lists:
            for _ in range(rng.randrange(3)):
                i = rng.randrange(len(actions) - 1)
                actions[i], actions[i + 1] = actions[i + 1], actions[i]
        try:
            check_schedule(lists, stages=3, microbatches=2, buffers=1)
            verdict = True
        except ScheduleError:
            verdict = False
        assert verdict == runs_to_the_end(lists, rng)
        verdicts.add(verdict)
    assert verdicts == {True, False}


def runs_to_the_end(lists: Lists, rng: random.Random) -> bool:
    """Run with one buffer a channel, in a random order; False at a misplaced action."""
    at, values, channels = [0] * len(lists), set(), dict[tuple[int, str], set[int]]()
    while True:
        movable = []
        for rank, actions in enumerate(lists):
            if at[rank] == len(actions):
                continue
            stage, op, m = actions[at[rank]]
            full = bool(channels.get((stage, op)))
            other = (stage - 1, "SF") if op == "RF" else (stage + 1, "SB")
            if (op[0] == "S" and not full) or len(op) == 1 or m in channels.get(other, set()):
                movable.append(rank)
        if not movable:
            return all(at[rank] == len(actions) for rank, actions in enumerate(lists))
        rank = rng.choice(movable)
        stage, op, m = lists[rank][at[rank]]
        at[rank] += 1
        needs = {
            "F": [(stage, "RF", m)] if stage else [],
            "B": [(stage, "F", m)] + ([(stage, "RB", m)] if stage < len(lists) - 1 else []),
        }
        needed = [(stage, op[1], m)] if op[0] == "S" else needs.get(op, [])
        if any(value not in values for value in needed):
            return False
        values.add((stage, op, m))
        if op[0] == "S":
            channels.setdefault((stage, op), set()).add(m)
        if op[0] == "R":
            channels[(stage - 1, "SF") if op == "RF" else (stage + 1, "SB")].remove(m)


def test_drawing() -> None:
    assert format_schedule(one_f_one_b(2, 2)).splitlines() == [
        "time      0   1   2   3   4   5   6   7   8",
        "rank 0  0F0 0F1 ... ... 0B0 === ... 0B1 ===",
        "rank 1  ... 1F0 1B0 === 1F1 1B1 === ... ...",
        "bubble 33.3% of 9 units per rank",
    ]
    with pytest.raises(ScheduleError, match="never run to its end"):
        format_schedule(parse("0B0 0F0"))
