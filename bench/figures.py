"""What bench/compare.py found out, as a Markdown table and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOTED = ("broadcast", "scatter", "gather", "reduce")
COLORS = {
    "pycomm, symmetric": "tab:red",
    "pycomm, private": "tab:orange",
    "mpich": "tab:blue",
    "openmpi": "tab:green",
    "impi": "tab:purple",
    "gloo": "tab:brown",
}


@dataclass(frozen=True)
class Record:
    """One size of one operation, pycomm and a peer in turns in one run.

    Attributes:
        layer: "C" (C and C++ called directly) or "Python".
        peer: Name of the peer on the command line.
        library: What it says of itself.
        ranks: Number of ranks.
        memory: Of pycomm's arrays: "private" or "symmetric". The peer's are always private.
        operation: Its name.
        size: Bytes of the larger buffer.
        separate: Whether each call was timed alone, after a barrier.
        pycomm_us: Median of a call over turns, in microseconds.
        peer_us: The same of the peer; None where it cannot do it.
        limit_us: The same of the machine's limit; None where there is none.
        wrong: Elements that were wrong, of both.
    """

    layer: str
    peer: str
    library: str
    ranks: int
    memory: str
    operation: str
    size: int
    separate: bool
    pycomm_us: float
    peer_us: float | None
    limit_us: float | None
    wrong: int

    @property
    def ratio(self) -> float | None:
        """How many times as long the peer takes."""
        return self.peer_us / self.pycomm_us if self.peer_us and self.pycomm_us > 0 else None

    @property
    def percent_of_limit(self) -> float | None:
        """How near pycomm comes to the limit of the same run."""
        return 100 * self.limit_us / self.pycomm_us if self.limit_us else None

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**asdict(self), "ratio": self.ratio, "percent_of_limit": self.percent_of_limit}


def size_text(size: int) -> str:
    """Bytes in the largest unit that fits: 4 B, 64 KiB, 16 MiB."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.3g} {unit}"
    return f"{size} B"


def time_text(microseconds: float) -> str:
    """Three digits, in us or ms."""
    if microseconds < 1000:
        return f"{microseconds:.3g} us"
    return f"{microseconds / 1000:.3g} ms"


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


# ---- Markdown ------------------------------------------------------------------------------------


def markdown(records: Sequence[Record], notes: Sequence[str] = ()) -> str:
    """One table for each layer, number of ranks and kind of memory.

    Args:
        records: What was measured.
        notes: Lines for the start.
    """
    lines = [*notes]
    for layer, ranks, memory in _distinct((r.layer, r.ranks, r.memory) for r in records):
        part = [r for r in records if (r.layer, r.ranks, r.memory) == (layer, ranks, memory)]
        lines += ["", f"### {layer}, {ranks} ranks, {memory} arrays", "", *_table(part)]
    return "\n".join(lines).strip() + "\n"


def _table(records: Sequence[Record]) -> list[str]:
    peers = _distinct(r.peer for r in records)
    lines = [
        "| operation | size | pycomm | of the limit | "
        + " | ".join(f"against {peer}" for peer in peers)
        + " | against the best |",
        "|---" * (len(peers) + 5) + "|",
    ]
    for operation, size in _distinct((r.operation, r.size) for r in records):
        row = [r for r in records if (r.operation, r.size) == (operation, size)]
        ratios = {r.peer: r.ratio for r in row}
        percent = _middle(r.percent_of_limit for r in row)
        least = min([ratio for ratio in ratios.values() if ratio is not None], default=None)
        name = operation + (" *" if any(r.separate for r in row) else "")
        cells = [name, size_text(size), time_text(statistics.median(r.pycomm_us for r in row))]
        cells.append("" if percent is None else f"{percent:.0f} %")
        cells += [_ratio_text(ratios.get(peer)) for peer in peers]
        # Different peers are different runs: ratios within a run are what can be compared.
        cells.append(_ratio_text(least))
        lines.append("| " + " | ".join(cells) + " |")
    if any(r.separate for r in records):
        lines += [
            "",
            "\\* a barrier before each call, which is timed alone, until the last rank has",
        ]
        lines[-1] += " its data."
    return lines


def _ratio_text(ratio: float | None) -> str:
    return "not measured" if ratio is None else f"{ratio:.2f} x"


# ---- the picture ---------------------------------------------------------------------------------


def curves(records: Sequence[Record], operation: str) -> dict[str, dict[int, float]]:
    """Bandwidth (size / time, GB/s) by size, for every system and the limit."""
    times: dict[str, dict[int, list[float]]] = {}

    def add(name: str, size: int, microseconds: float | None) -> None:
        if microseconds and size > 0:
            times.setdefault(name, {}).setdefault(size, []).append(microseconds)

    for record in records:
        if record.operation == operation:
            add(f"pycomm, {record.memory}", record.size, record.pycomm_us)
            add(record.peer, record.size, record.peer_us)
            add("limit", record.size, record.limit_us)
    order = [*COLORS, "limit"]
    return {
        name: {
            # Of the same thing in several runs the middle one.
            size: size / statistics.median(found) / 1e3
            for size, found in sorted(times[name].items())
        }
        for name in order
        if name in times
    }


def plot(records: Sequence[Record], path: Path, title: str) -> None:
    """Draws bandwidth over size, one panel for each operation.

    Args:
        records: Of one layer and number of ranks.
        path: The picture; its ending decides the format.
        title: Above the panels.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = [op for op in _distinct(r.operation for r in records) if curves(records, op)]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(5.2 * columns, 3.9 * rows + 1.1), squeeze=False, sharex=True
    )
    libraries = {r.peer: r.library for r in records}
    shown: dict[str, Any] = {}
    for axis, operation in zip(axes.flat, panels, strict=False):
        for name, points in curves(records, operation).items():
            style = (
                {"color": "black", "linestyle": "--", "linewidth": 1.5}
                if name == "limit"
                else {"color": COLORS[name], "marker": "o", "markersize": 3.5, "linewidth": 1.5}
            )
            label = "the machine's limit" if name == "limit" else libraries.get(name, name)
            (line,) = axis.plot(list(points), list(points.values()), label=label, **style)
            shown.setdefault(label, line)
        axis.set_title(operation + (" (calls one by one)" if operation in ROOTED else ""))
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: size_text(int(value)))
        axis.tick_params(axis="x", labelrotation=30, labelbottom=True)
        axis.set_xlabel("size")
        axis.set_ylabel("size / time (GB/s)")
        axis.grid(True, which="major", alpha=0.4)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(title)
    figure.legend(list(shown.values()), list(shown), loc="lower center", ncols=min(4, len(shown)))
    figure.tight_layout(rect=(0, 0.4 / (3.9 * rows + 1.1) + 0.02, 1, 0.99))
    figure.savefig(path, dpi=130)
    plt.close(figure)
