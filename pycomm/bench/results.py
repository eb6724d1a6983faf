# What a benchmark found out, as plain data.
"""Results of a benchmark."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Measurement:
    """One size, run in one place (out of place or in place).

    Attributes:
        time_us: Microseconds per call, average over ranks (over pairs for point-to-point).
        min_us: The shortest over ranks or pairs.
        max_us: The longest over ranks or pairs.
        algbw: Size / time in GB/s (1e9 bytes per second).
        busbw: algbw times the factor of the operation.
        wrong: Elements that were wrong, over all ranks; None when not checked.
        iterations: Timed calls.
        peers_us: Average microseconds per call of other libraries; None where one cannot do it.
        peers_wrong: Elements that were wrong with other libraries, over all ranks.
        limit_us: Microseconds in which the machine's memory allows the operation (see `limit`);
            None when not measured.
        percent_of_limit: How near `time_us` comes to it; None when not measured.
        pairs_us: For point-to-point, microseconds per message for each pair, as ``"0-1"``.
    """

    time_us: float
    min_us: float
    max_us: float
    algbw: float
    busbw: float
    wrong: int | None
    iterations: int
    peers_us: dict[str, float | None] = field(default_factory=dict)
    peers_wrong: dict[str, int] = field(default_factory=dict)
    limit_us: float | None = None
    percent_of_limit: float | None = None
    pairs_us: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One size.

    Attributes:
        size: Bytes, as nccl-tests counts them.
        count: Elements of the smaller buffer.
        places: Measurements by place.
    """

    size: int
    count: int
    places: dict[str, Measurement]


@dataclass
class Report:
    """All sizes of one operation.

    Attributes:
        operation: Its name.
        ranks: Number of ranks.
        dtype: Element type.
        op: Reduction, or "none".
        root: Root, or -1.
        rows: One per size, in the order measured.
    """

    operation: str
    ranks: int
    dtype: str
    op: str
    root: int
    rows: list[Row] = field(default_factory=list)

    @property
    def measurements(self) -> list[Measurement]:
        """All measurements of all sizes."""
        return [measurement for row in self.rows for measurement in row.places.values()]

    @property
    def wrong(self) -> int:
        """Wrong elements over all sizes, places and ranks."""
        return sum(measurement.wrong or 0 for measurement in self.measurements)

    @property
    def peers_wrong(self) -> dict[str, int]:
        """Wrong elements of other libraries, over all sizes, places and ranks."""
        wrong: dict[str, int] = {}
        for measurement in self.measurements:
            for peer, count in measurement.peers_wrong.items():
                wrong[peer] = wrong.get(peer, 0) + count
        return wrong

    @property
    def checked(self) -> bool:
        """Whether the results were checked."""
        return any(measurement.wrong is not None for measurement in self.measurements)

    @property
    def average_busbw(self) -> float:
        """Average of all bus bandwidths in GB/s."""
        found = [measurement.busbw for measurement in self.measurements]
        return sum(found) / len(found) if found else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Returns everything as plain data, for JSON."""
        return {**asdict(self), "wrong": self.wrong, "average_busbw": self.average_busbw}
