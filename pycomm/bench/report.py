# Prints results as a table, one line per size as soon as it is known, and writes JSON.
"""The table of results.

The first 13 columns are those of nccl-tests, in its order: size, count, type, redop, root, then
time, algbw, busbw, #wrong for out of place and again for in place. Behind them follow the shortest
and the longest time over ranks, with --compare the time of each other library and how many times as
long it takes as pycomm, and the time in which the machine's memory allows the operation with the
percentage of that speed which pycomm reaches.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pycomm.bench.operations import PLACES
from pycomm.bench.results import Measurement, Report, Row

if TYPE_CHECKING:
    from pycomm.communicator import Communicator

_ABSENT = "N/A"
_GROUP_WIDTH = 8 + 9 + 9 + 8


class Table:
    """Formats the lines of one table.

    Args:
        peers: Names of the other libraries.
        limit: Whether the machine's limit was measured.
    """

    def __init__(self, peers: Sequence[str] = (), limit: bool = False) -> None:
        self._peers = peers
        self._limit = limit

    def header(self, operation: str, comm: Communicator) -> list[str]:
        """Returns the lines above the table."""
        nodes = f"{comm.num_nodes} node" + ("s" if comm.num_nodes > 1 else "")
        ranks = f"{comm.size} rank" + ("s" if comm.size > 1 else "")
        names = self._lead("size", "count", "type", "redop", "root")
        units = self._lead("(B)", "(elements)", "", "", "")
        groups = " " * len(names)
        for place in PLACES:
            names += _group("time", "algbw", "busbw", "#wrong")
            units += _group("(us)", "(GB/s)", "(GB/s)", "")
            groups += f" {place.replace('_', '-'):^{_GROUP_WIDTH - 1}}"
        for place in PLACES:
            names += f"{'min':>10}{'max':>9}"
            units += f"{'(us)':>10}{'(us)':>9}"
            groups += f" {place.replace('_', '-'):^18}"
            for peer in self._peers:
                names += f"{peer:>10}{'ratio':>8}"
                units += f"{'(us)':>10}{'':>8}"
                groups += " " * 18
            if self._limit:
                names += f"{'limit':>10}{'%limit':>8}"
                units += f"{'(us)':>10}{'':>8}"
                groups += " " * 18
        return [
            f"# pycomm.bench {operation}: {ranks} on {nodes} ({platform.node()})",
            *(f"#{line[1:].rstrip()}" for line in (groups, names, units)),
        ]

    def line(self, report: Report, row: Row) -> str:
        """Returns the line of one size."""
        root = str(report.root)
        text = self._lead(str(row.size), str(row.count), report.dtype, report.op, root)
        for place in PLACES:
            text += _measured(row.places.get(place))
        for place in PLACES:
            text += self._details(row.places.get(place))
        return text

    def footer(self, report: Report) -> list[str]:
        """Returns the lines below the table."""
        wrong = "not checked"
        if report.checked:
            wrong = f"{report.wrong} ({'FAILED' if report.wrong else 'OK'})"
        return [
            f"# wrong elements       : {wrong}",
            f"# average bus bandwidth: {report.average_busbw:.4g} GB/s",
            *(
                f"# wrong elements, {peer}: {count} (FAILED)"
                for peer, count in report.peers_wrong.items()
                if count
            ),
        ]

    def _lead(self, size: str, count: str, dtype: str, op: str, root: str) -> str:
        return f"{size:>13}{count:>13}{dtype:>11}{op:>7}{root:>6}"

    def _details(self, found: Measurement | None) -> str:
        if found is None:
            others = len(self._peers) + self._limit
            return f"{_ABSENT:>10}{_ABSENT:>9}" + f"{_ABSENT:>10}{_ABSENT:>8}" * others
        text = f"{_time(found.min_us):>10}{_time(found.max_us):>9}"
        for peer in self._peers:
            peer_us = found.peers_us.get(peer)
            if peer_us is None or found.time_us <= 0:
                text += f"{_ABSENT:>10}{_ABSENT:>8}"
            else:
                text += f"{_time(peer_us):>10}{_ratio(peer_us / found.time_us):>8}"
        if self._limit:
            if found.limit_us is None or found.percent_of_limit is None:
                text += f"{_ABSENT:>10}{_ABSENT:>8}"
            else:
                text += f"{_time(found.limit_us):>10}{found.percent_of_limit:>7.1f}%"
        return text


def _group(time: str, algbw: str, busbw: str, wrong: str) -> str:
    return f"{time:>9}{algbw:>9}{busbw:>9}{wrong:>7}"


def _measured(found: Measurement | None) -> str:
    if found is None:
        return _group(_ABSENT, _ABSENT, _ABSENT, _ABSENT)
    wrong = _ABSENT if found.wrong is None else str(found.wrong)
    return _group(_time(found.time_us), f"{found.algbw:.2f}", f"{found.busbw:.2f}", wrong)


def _time(microseconds: float) -> str:
    """Writes a time with about four digits."""
    digits = 2 if microseconds < 100 else 1 if microseconds < 10000 else 0
    return f"{microseconds:.{digits}f}"


def _ratio(value: float) -> str:
    return f"{value:.{2 if value < 100 else 0}f}x"


def write_json(
    path: str, reports: Sequence[Report], not_measured: Mapping[str, str] | None = None
) -> None:
    """Writes all results to a file.

    Args:
        path: Where to.
        reports: One per operation.
        not_measured: Other libraries that were wanted, and why they were not measured.

    Raises:
        OSError: The file cannot be written.
    """
    operations = [report.as_dict() for report in reports]
    text = json.dumps(
        {"operations": operations, "not_measured": dict(not_measured or {})}, indent=1
    )
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")
