"""Compares pycomm with MPICH, Open MPI and Intel MPI over a grid of operations, sizes and ranks.

    python bench/compare.py --markdown table.md --json all.json --plot bandwidth.png
    python bench/compare.py --quick --venv mpich=/path/to/venv --peers mpich
    python bench/compare.py --python --peers mpich gloo --ops all_reduce

Each MPI has a virtual environment: those given by --venv, or new ones in the cache folder. For each
of them pycomm-perf is built and run under its mpirun; there pycomm and MPI, both without Python,
take turns block by block in the same processes, and every result is checked. With --python the same
from Python, with `python -m pycomm.bench --compare`: mpi4py on each MPI; Gloo has this way only.

A ratio is the peer's time divided by pycomm's in the same run. Runs with different MPIs are
different runs, so "the best" of them is the one with the least ratio. Before a call of broadcast,
scatter, gather and reduce there is a barrier, and calls are timed alone: otherwise a root that only
sends runs ahead, and its time says little.

To keep other programs away, prepare first, then measure with priority (as root):
`python bench/compare.py --prepare && chrt -f 50 python bench/compare.py ...`.

Exit code: 0; 1 when a result was wrong or a run failed; 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import KINDS, Failure, Progress, Workshop, run
from figures import ROOTED, Record, markdown, plot

OPERATIONS = [
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter",
    "all_to_all", "barrier", "sendrecv",
]  # fmt: skip
_RUN_LIMIT_S = 1800.0


@dataclass(frozen=True)
class Run:
    """One start of a benchmark: one operation, all sizes."""

    layer: str
    peer: str
    ranks: int
    memory: str
    operation: str

    def __str__(self) -> str:
        return f"{self.layer}: {self.operation}, {self.peer}, {self.ranks} ranks, {self.memory}"


def _venv(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if name not in KINDS or not path:
        raise argparse.ArgumentTypeError(
            f"expected NAME=PATH with one of {', '.join(KINDS)}, got {text!r}"
        )
    if not (Path(path) / "bin" / "python").exists():
        raise argparse.ArgumentTypeError(f"{path} is no virtual environment")
    return name, Path(path).absolute()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--ops", nargs="+", choices=OPERATIONS, default=OPERATIONS, metavar="OP")
    add("--peers", nargs="+", choices=list(KINDS), default=["mpich", "openmpi", "impi"])
    add("-n", "--ranks", nargs="+", type=int, default=[2, 4], metavar="N")
    memory = ["private", "symmetric"]
    add("--memory", nargs="+", choices=memory, default=memory, help="of pycomm's arrays")
    add("-b", "--min-bytes", default="4", metavar="SIZE")
    add("-e", "--max-bytes", default="256M", metavar="SIZE")
    add("-f", "--factor", default="4", metavar="F", help="from one size to the next (4)")
    add("--dtype", default="float32")
    add("--seconds", default="1", metavar="S", help="for one size, without Python (1)")
    add("--python", action="store_true", help="measure from Python as well")
    add("--quick", action="store_true", help="two ranks, few and small sizes, short runs")
    add("--venv", action="append", type=_venv, default=[], metavar="NAME=PATH")
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "pycomm-compare"
    add("--cache", type=Path, default=cache, help=f"environments and builds ({cache})")
    add("--prepare", action="store_true", help="make environments and builds, measure nothing")
    add("--json", type=Path, metavar="FILE")
    add("--markdown", type=Path, metavar="FILE", help="instead of to stdout")
    add("--plot", type=Path, metavar="FILE", help="of more numbers of ranks: FILE-N")
    parsed = parser.parse_args(arguments)
    if min(parsed.ranks) < 2:
        parser.error("-n: at least 2 ranks")
    if parsed.plot is not None:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            parser.error("--plot needs matplotlib")
    if parsed.quick:
        parsed.ranks, parsed.max_bytes, parsed.factor, parsed.seconds = [2], "1M", "64", "0.1"
    return parsed


class Comparison:
    """The runs of a grid, and what they gave."""

    def __init__(self, options: argparse.Namespace, workshop: Workshop, say: Progress) -> None:
        self._options = options
        self._workshop = workshop
        self._say = say
        self.records: list[Record] = []
        self.failures: list[str] = []

    def runs(self) -> Iterator[Run]:
        """Everything to measure."""
        options = self._options
        layers = ["C", "Python"] if options.python else ["C"]
        for ranks in options.ranks:
            for operation in options.ops:
                for memory in options.memory:
                    if operation == "barrier" and memory != options.memory[0]:
                        continue
                    for peer in options.peers:
                        for layer in layers if KINDS[peer].headers else ["Python"]:
                            yield Run(layer, peer, ranks, memory, operation)

    def prepare(self) -> None:
        """Makes environments and builds."""
        for peer in self._options.peers:
            if KINDS[peer].headers:
                self._workshop.perf(peer)
            if self._options.python or not KINDS[peer].headers:
                self._workshop.python_path(peer)

    def measure(self) -> None:
        """Makes all runs; those that fail are noted."""
        runs = list(self.runs())
        for number, one in enumerate(runs, 1):
            self._say(f"{number} of {len(runs)}: {one}")
            try:
                found = self._from_c(one) if one.layer == "C" else self._from_python(one)
            except Failure as failure:
                self.failures.append(f"{one}: {failure}")
                self._say(f"FAILED: {failure}")
                continue
            self.records += found
            ratios = [record.ratio for record in found if record.ratio is not None]
            if ratios:
                self._say(f"    ratios {min(ratios):.2f} to {max(ratios):.2f}")

    def _sizes(self) -> list[str]:
        options = self._options
        return ["-b", options.min_bytes, "-e", options.max_bytes, "-f", options.factor]

    def _start(self, one: Run, command: list[str], variables: dict[str, str]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "results.json"
            words = [*command, *self._sizes(), "--dtype", self._options.dtype]
            if one.memory == "symmetric":
                words.append("--symmetric")
            run([*words, "--json", str(target)], _RUN_LIMIT_S, variables)
            results: dict[str, Any] = json.loads(target.read_text())
        return results

    def _from_c(self, one: Run) -> list[Record]:
        command = self._workshop.mpirun(one.peer, one.ranks)
        command += [str(self._workshop.perf(one.peer)), one.operation, "--separate"]
        command += ["--seconds", self._options.seconds]
        results = self._start(one, command, self._workshop.variables(one.peer))
        records = []
        for row in results["rows"]:
            own, peer = row["systems"]
            records.append(
                Record(
                    layer="C",
                    peer=one.peer,
                    library=peer["system"],
                    ranks=one.ranks,
                    memory=one.memory,
                    operation=one.operation,
                    size=row["size"],
                    separate=one.operation in ROOTED,
                    pycomm_us=own["median_us"],
                    peer_us=peer.get("median_us"),
                    limit_us=row.get("limit", {}).get("median_us"),
                    wrong=own["wrong"] + peer.get("wrong", 0),
                )
            )
        return records

    def _from_python(self, one: Run) -> list[Record]:
        python = str(self._workshop.environment(one.peer) / "bin" / "python")
        library = "mpi4py" if KINDS[one.peer].headers else one.peer
        command = [python, "-m", "pycomm.run", "-n", str(one.ranks), "-m"]
        if library == "mpi4py":
            command = [*self._workshop.mpirun(one.peer, one.ranks), python, "-m"]
        command += ["pycomm.bench", one.operation, "--compare", library]
        variables = self._workshop.variables(one.peer)
        variables["PYTHONPATH"] = str(self._workshop.python_path(one.peer))
        results = self._start(one, command, variables)
        records = []
        for row in results["operations"][0]["rows"]:
            places = row["places"]
            # Out of place where the peer can do it.
            for name in ("out_of_place", "in_place"):
                found = places.get(name)
                if found is not None and found["peers_us"].get(library) is not None:
                    break
            else:
                found = next(iter(places.values()))
            records.append(
                Record(
                    layer="Python",
                    peer=one.peer,
                    library=f"{library} on {one.peer}" if library == "mpi4py" else "Gloo",
                    ranks=one.ranks,
                    memory=one.memory,
                    operation=one.operation,
                    size=row["size"],
                    separate=False,
                    pycomm_us=found["time_us"],
                    peer_us=found["peers_us"].get(library),
                    limit_us=found["limit_us"],
                    wrong=(found["wrong"] or 0) + sum(found["peers_wrong"].values()),
                )
            )
        return records


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    model = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    except OSError:
        pass
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _write(options: argparse.Namespace, comparison: Comparison) -> None:
    records, about = comparison.records, machine()
    where = f"{about['processor']}, {about['cores']} cores, {options.dtype}"
    if options.json is not None:
        settings = {name: str(value) for name, value in vars(options).items() if name != "venv"}
        found = {
            "machine": about,
            "settings": settings,
            "failures": comparison.failures,
            "records": [record.as_dict() for record in records],
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    libraries = dict.fromkeys(r.library for r in records if r.layer == "C")
    notes = [
        f"{where}. Times are those of pycomm; `against` says how many times as long the other "
        f"library takes in the same run; the best is the one with the least ratio. "
        f"{', '.join(libraries)}.",
        *(f"\nNot measured: {failure}" for failure in comparison.failures),
    ]
    text = markdown(records, notes)
    if options.markdown is not None:
        options.markdown.write_text(text)
    else:
        print(text, end="", flush=True)
    if options.plot is None:
        return
    for ranks in options.ranks:
        part = [r for r in records if r.layer == "C" and r.ranks == ranks]
        part = part or [r for r in records if r.ranks == ranks]
        target = options.plot
        if ranks != options.ranks[0]:
            target = target.with_name(f"{target.stem}-{ranks}{target.suffix}")
        if part:
            plot(part, target, f"Bandwidth of {ranks} ranks on one node: {where}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures as told by the command line; returns the exit code."""
    options = _parse(arguments)
    say = Progress()
    comparison = Comparison(options, Workshop(options.cache, dict(options.venv), say), say)
    try:
        comparison.prepare()
    except Failure as failure:
        print(f"compare: {failure}", file=sys.stderr)
        return 1
    if options.prepare:
        return 0
    comparison.measure()
    _write(options, comparison)
    wrong = sum(record.wrong for record in comparison.records)
    if wrong:
        say(f"FAILED: {wrong} elements were wrong")
    return 1 if wrong or comparison.failures else 0


if __name__ == "__main__":
    sys.exit(main())
