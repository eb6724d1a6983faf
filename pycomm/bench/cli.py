# The command line of the benchmark tool. Errors are printed once, by rank 0.
"""Command line of ``python -m pycomm.bench``."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from pycomm.bench.data import DTYPE_ALIASES, DTYPES, REDUCE_OPS
from pycomm.bench.operations import IN_PLACE, OPERATIONS, OUT_OF_PLACE, PLACES, Operation
from pycomm.bench.peers import PEERS, Peer, find_peers
from pycomm.bench.report import Table, write_json
from pycomm.bench.results import Report, Row
from pycomm.bench.runner import BenchOptions, memory_needed, problem, run_benchmark
from pycomm.bench.sizes import parse_size, size_series
from pycomm.bench.timing import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    TARGET_S,
    WARMUP_CALLS,
    WARMUP_LIMIT_S,
    Effort,
)
from pycomm.bench.tune import QUICK, Plan, TuneError, tune

if TYPE_CHECKING:
    from pycomm.communicator import Communicator

_TIMEOUT_S = 120.0
_LAST_SIZE = 64 << 20
_ALL_PEERS = ",".join(PEERS)
_DESCRIPTION = """\
Measures operations on the ranks of this job. Start it with mpirun, or with python -m pycomm.run.
"""
_EPILOG = f"""\
Sizes are bytes; K, M, G stand for powers of 1024. The size of an operation is that of its larger
buffer: for all_gather, reduce_scatter, gather, scatter and all_to_all the total over all ranks. It
is rounded up to the same whole number of elements for each rank. sendrecv is a ping-pong between
ranks 0 and 1, with more ranks between all pairs in turn; its time is half of a round trip.

time is the average over ranks (sendrecv: pairs) of the time of a call; min and max are over ranks.
algbw = size / time. busbw = algbw times 2(n-1)/n for all_reduce, (n-1)/n for operations that split
the buffer, 1 for the others.

Without -n as many calls are timed as take about {TARGET_S:g} s: {MIN_ITERATIONS} to \
{MAX_ITERATIONS} calls.
Without -w there are about {WARMUP_CALLS} untimed calls before: fewer if they take over \
{WARMUP_LIMIT_S:g} s.
The check, on by default, is one more call on fresh data, and compares every bit.
With --tune, no OP: all algorithms of all operations take turns, and the best go to a profile. Jobs
use it when PYCOMM_PROFILE names the file.
With --compare, pycomm and the other libraries take turns within each size, and the results of all
are checked; time is then the median over turns, and ratio how many times as long the other library
takes. mpi4py is the MPI of the mpirun that started the job. Gloo reduces in place only, and does
the rest out of place only. With --symmetric only pycomm's buffers are symmetric memory.
limit is the time in which the ranks, all at once and without waiting for each other, move the bytes
that an ideal implementation has to move; %limit is how near pycomm comes to it.

Exit code: 0; 1 when a result was wrong; 2 for wrong arguments.
"""


class _UsageError(Exception):
    """Wrong arguments; the message says which."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing: every rank parses the same words, but only one may print."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(message)


def _reader(function: Callable[[str], int]) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            return function(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"expected a whole number of at least 0, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, got {text!r}")
    return value


def _make_parser() -> _Parser:
    parser = _Parser(
        prog="python -m pycomm.bench",
        usage="python -m pycomm.bench OP [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    size, count = _reader(parse_size), _reader(_count)
    add = parser.add_argument
    add("operation", nargs="?", metavar="OP", help=f"{', '.join(OPERATIONS)}, or all")
    add("-b", "--min-bytes", type=size, default=4, metavar="SIZE", help="first size (4)")
    add("-e", "--max-bytes", type=size, metavar="SIZE", help="last size (64M)")
    add("-f", "--factor", type=count, metavar="F", help="multiply the size by F each time (4)")
    add("-i", "--step", type=size, metavar="SIZE", help="add this to the size each time instead")
    add("-n", "--iterations", type=count, metavar="N", help="timed calls per size")
    add("-w", "--warmup", type=count, metavar="N", help="untimed calls per size")
    add("-d", "--dtype", default="float32", help="element type (float32)")
    add("-o", "--op", default="sum", choices=REDUCE_OPS, help="reduction (sum)")
    add("-r", "--root", type=count, default=0, help="root (0)")
    places = parser.add_mutually_exclusive_group()
    for flag, place in (("--in-place", IN_PLACE), ("--out-of-place", OUT_OF_PLACE)):
        text = f"measure only {flag[2:].replace('-', ' ')}"
        places.add_argument(flag, dest="places", action="store_const", const=(place,), help=text)
    add("--symmetric", action="store_true", help="use symmetric memory for the buffers")
    add("--check", action=argparse.BooleanOptionalAction, default=True, help="check results (yes)")
    add(
        "--compare",
        nargs="?",
        const=_ALL_PEERS,
        metavar="LIBRARIES",
        help=f"measure other libraries too: {', '.join(PEERS)} (default: what is installed)",
    )
    add(
        "--limit",
        action=argparse.BooleanOptionalAction,
        help="measure the machine's limit, too (with --compare: yes)",
    )
    add("--tune", action="store_true", help="measure which algorithms suit this machine")
    add("--out", metavar="FILE", default="pycomm.profile", help="--tune: file (pycomm.profile)")
    add("--quick", action="store_true", help="--tune: a few sizes only")
    add("--json", metavar="FILE", help="write all results to FILE")
    add("--timeout", type=_seconds, default=_TIMEOUT_S, metavar="S", help="limit of a call (120)")
    add("-h", "--help", action="store_true", help="show this and leave")
    return parser


def _operations(name: str | None, options: BenchOptions, ranks: int) -> list[Operation]:
    """Returns what to run: one operation, which must be possible, or all that are."""
    if name is None:
        raise _UsageError("expected an operation: " + ", ".join([*OPERATIONS, "all"]))
    if name == "all":
        found = [record for record in OPERATIONS.values() if not problem(record, options, ranks)]
        if not found:
            raise _UsageError("no operation can run with these options")
        return found
    if name not in OPERATIONS:
        known = ", ".join([*OPERATIONS, "all"])
        raise _UsageError(f"unknown operation {name!r}; there are {known}")
    obstacle = problem(OPERATIONS[name], options, ranks)
    if obstacle is not None:
        raise _UsageError(obstacle)
    return [OPERATIONS[name]]


def _make_options(parsed: argparse.Namespace) -> BenchOptions:
    dtype = DTYPE_ALIASES.get(parsed.dtype, parsed.dtype)
    if dtype not in DTYPES:
        raise _UsageError(f"unknown dtype {parsed.dtype!r}; there are {', '.join(DTYPES)}")
    if parsed.iterations == 0:
        raise _UsageError("-n must be at least 1")
    last = max(parsed.min_bytes, _LAST_SIZE) if parsed.max_bytes is None else parsed.max_bytes
    factor = 4 if parsed.factor is None and parsed.step is None else parsed.factor
    try:
        sizes = size_series(parsed.min_bytes, last, factor, parsed.step)
    except ValueError as error:
        raise _UsageError(str(error)) from error
    return BenchOptions(
        sizes=sizes,
        dtype=dtype,
        op=parsed.op,
        root=parsed.root,
        places=parsed.places or PLACES,
        check=parsed.check,
        effort=Effort(parsed.iterations, parsed.warmup),
        symmetric=parsed.symmetric,
        limit=parsed.compare is not None if parsed.limit is None else parsed.limit,
    )


def _peer_names(text: str | None) -> list[str]:
    names = text.split(",") if text else []
    for name in names:
        if name not in PEERS:
            known = ", ".join(PEERS)
            raise _UsageError(f"unknown library {name!r} to compare with; there are {known}")
    return names


def _check_machine(
    operations: Sequence[Operation], options: BenchOptions, comm: Communicator, path: str | None
) -> None:
    """Refuses, before any measurement, what would fail after it. Only rank 0 looks."""
    needed = max(memory_needed(operation, options, comm.size) for operation in operations)
    needed *= comm.local_size
    available = _available_memory()
    if available is not None and needed > available:
        raise _UsageError(
            f"the buffers of the {comm.local_size} rank(s) of this node need "
            f"{needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are free: choose a smaller -e"
        )
    if path is not None:
        try:
            with open(path, "a", encoding="utf-8"):
                pass
        except OSError as error:
            raise _UsageError(f"--json: {error}") from error


def _available_memory() -> int | None:
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


@dataclass
class _Plan:
    """What to run."""

    operations: list[Operation]
    options: BenchOptions
    peers: list[str]


def _prepare(parsed: argparse.Namespace, comm: Communicator) -> _Plan:
    """Turns the words into what to run.

    Raises:
        _UsageError: They are wrong, or this machine cannot do it.
    """
    options = _make_options(parsed)
    plan = _Plan(
        _operations(parsed.operation, options, comm.size), options, _peer_names(parsed.compare)
    )
    if comm.rank == 0:
        _check_machine(plan.operations, options, comm, parsed.json)
    return plan


def _make_peers(
    plan: _Plan, comm: Communicator, insist: bool
) -> tuple[list[Peer], dict[str, str], _UsageError | None]:
    """Makes the other libraries; all ranks call it.

    Args:
        plan: What to run.
        comm: The communicator to measure.
        insist: Whether a library that cannot be used is an error.

    Returns:
        The libraries, why others are not measured, and the error.
    """
    if not plan.peers:
        return [], {}, None
    peers, obstacles = find_peers(plan.peers, comm)
    if not insist or not obstacles:
        return peers, obstacles, None
    name, reason = next(iter(obstacles.items()))
    for peer in peers:
        peer.close()
    return [], obstacles, _UsageError(f"--compare {name}: {reason}")


def _refuse(comm: Communicator, parser: _Parser, error: _UsageError | None) -> bool:
    """Prints the error of the lowest rank that has one; False when no rank has one."""
    flags = np.asarray(comm.all_gather(np.array([error is not None], np.uint8)))
    if not flags.any():
        return False
    if comm.rank == int(flags.argmax()):
        print(f"{parser.format_usage()}pycomm.bench: error: {error}", file=sys.stderr, flush=True)
    # A rank that left before could make its launcher end the others, the printing one included.
    comm.barrier()
    return True


def _print(comm: Communicator, lines: Sequence[str]) -> None:
    if comm.rank == 0:
        print("\n".join(lines), flush=True)


def _run(comm: Communicator, plan: _Plan, obstacles: Mapping[str, str]) -> list[Report]:
    options = plan.options
    table = Table([peer.name for peer in options.peers], options.limit)
    reports: list[Report] = []

    def show(report: Report, row: Row) -> None:
        _print(comm, [table.line(report, row)])

    if obstacles:
        _print(comm, [f"# {name} not measured: {reason}" for name, reason in obstacles.items()])
    for operation in plan.operations:
        _print(comm, table.header(operation.name, comm))
        reports.append(run_benchmark(comm, operation.name, options, show))
        _print(comm, table.footer(reports[-1]))
    return reports


def _tune(comm: Communicator, parser: _Parser, parsed: argparse.Namespace) -> int:
    error: _UsageError | None = None
    path = Path(parsed.out)
    if parsed.operation is not None:
        error = _UsageError("--tune measures all operations; expected no OP")
    elif comm.size < 2:
        error = _UsageError("--tune needs 2 ranks or more: start it with pycomm.run or mpirun")
    elif comm.rank == 0 and path.is_dir():
        error = _UsageError(f"--out: {path} is a directory")
    elif comm.rank == 0 and not os.access(path.parent, os.W_OK):
        error = _UsageError(f"--out: cannot write to {path.parent}")
    if _refuse(comm, parser, error):
        return 2
    try:
        tune(comm, path, QUICK if parsed.quick else Plan(), lambda line: _print(comm, [line]))
    except TuneError as wrong:
        _print(comm, [f"pycomm.bench: {wrong}; no profile was written"])
        return 1
    _print(comm, [f"wrote {path}; jobs use it with PYCOMM_PROFILE={path.resolve()}"])
    return 0


def main(arguments: Sequence[str] | None = None, comm: Communicator | None = None) -> int:
    """Runs the benchmark as told by the command line; all ranks call it.

    Args:
        arguments: The words after ``python -m pycomm.bench``; those of this process when None.
        comm: The communicator to measure; the world, made by `pycomm.init`, when None.

    Returns:
        The exit code: 0; 1 when a result was wrong; 2 for wrong arguments.
    """
    parser = _make_parser()
    error: _UsageError | None = None
    parsed = argparse.Namespace(help=False, timeout=_TIMEOUT_S)
    try:
        parsed = parser.parse_args(arguments)
    except _UsageError as found:
        error = found
    if comm is None:
        import pycomm

        comm = pycomm.init(timeout=parsed.timeout)
    if parsed.help:
        _print(comm, [parser.format_help()])
        comm.barrier()
        return 0
    if error is None and parsed.tune:
        return _tune(comm, parser, parsed)
    plan: _Plan | None = None
    try:
        plan = _prepare(parsed, comm) if error is None else None
    except _UsageError as found:
        error = found
    if _refuse(comm, parser, error) or plan is None:
        return 2
    insist = parsed.compare != _ALL_PEERS
    peers, obstacles, error = _make_peers(plan, comm, insist)
    if _refuse(comm, parser, error):
        return 2
    plan.options = replace(plan.options, peers=peers)
    reports = _run(comm, plan, obstacles)
    if parsed.json is not None and comm.rank == 0:
        write_json(parsed.json, reports, obstacles)
    for peer in peers:
        peer.close()
    comm.barrier()
    wrong = any(report.wrong or any(report.peers_wrong.values()) for report in reports)
    return 1 if wrong else 0
