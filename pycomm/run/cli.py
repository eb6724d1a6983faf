# The command line of the launcher, and the store that it hosts for the ranks.
"""Command line of ``python -m pycomm.run``."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shutil
import sys
from collections.abc import Iterator, Sequence

from pycomm.run.environment import BLAS_VARIABLES
from pycomm.run.job import KILL_GRACE_S, LEAVE_GRACE_S, Job, JobOptions

_STORE_HOST = "127.0.0.1"
_USAGE = "python -m pycomm.run -n N [options] (script.py | -m module | program) [arguments ...]"
_EPILOG = f"""\
Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
PYCOMM_STORE in its environment; variables of other launchers (mpirun, torchrun) are removed.
With more than one rank, and when none of {", ".join(BLAS_VARIABLES)} is set,
each of them is set to max(1, cores // N), so that the ranks share the cores. PYTHONUNBUFFERED is
set to 1 unless it is set already, so that lines show when they are printed.

Standard input goes to rank 0. SIGINT, SIGTERM and SIGHUP are forwarded; ranks that have not left
{LEAVE_GRACE_S:g} s later, or at a second signal, are ended. When one rank fails, all are ended:
SIGTERM, and {KILL_GRACE_S:g} s later SIGKILL. What the ranks started and left behind is ended with
the job.

Exit code: 0; that of the rank that failed first (128 + s when killed by signal s); 124 when the
time limit ended the job; 126 when the program cannot be started; 2 for wrong arguments; 1 when
the store cannot be hosted.
"""


def _positive_int(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return value


def _port(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, got {text!r}")
    return value


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pycomm.run",
        usage=_USAGE,
        description="Starts N ranks of a program on this host; needs no MPI.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-n", type=_positive_int, required=True, metavar="N", help="ranks to start")
    parser.add_argument(
        "--timeout", type=_seconds, metavar="S", help="end the whole job after S seconds (code 124)"
    )
    parser.add_argument(
        "--no-prefix",
        action="store_true",
        help="do not put the rank, as in '[0] text', before each line",
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=0,
        metavar="P",
        help=f"port of the store on {_STORE_HOST} (default: a free one)",
    )
    parser.add_argument(
        "-m", metavar="module", help="run a module, as 'python -m'; the rest are its arguments"
    )
    return parser


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Parts the launcher's own options from the command, which keeps its options to itself."""
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "-m":
            break
        if word == "--":
            return list(arguments[:index]), list(arguments[index + 1 :])
        if not word.startswith("-") or word == "-":
            break
        index += 2 if word in ("-n", "--timeout", "--port") else 1
    return list(arguments[:index]), list(arguments[index:])


def _make_command(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Turns the words after the options into a program and its arguments."""
    if not words:
        parser.error("expected a script, a module (-m) or a program to run")
    if words[0] == "-m":
        if len(words) < 2:
            parser.error("expected a module after -m")
        return [sys.executable, *words]
    name = words[0]
    is_python = name.endswith((".py", ".pyz")) or os.path.isfile(os.path.join(name, "__main__.py"))
    if is_python:
        if not os.path.exists(name):
            parser.error(f"script not found: {name}")
        return [sys.executable, *words]
    if shutil.which(name) is None:
        if os.path.isfile(name):
            parser.error(f"not a Python script (.py) and not executable: {name}")
        parser.error(f"program not found: {name}")
    return words


@contextlib.contextmanager
def host_store(port: int) -> Iterator[int]:
    """Hosts the store of a job on 127.0.0.1 while the context lasts, and gives its port.

    Args:
        port: Port to listen on; 0 takes a free one.
    """
    from pycomm._core import TcpStoreServer

    server = TcpStoreServer(host=_STORE_HOST, port=port)
    try:
        yield int(server.port)
    finally:
        server.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a job as told by the command line.

    Args:
        arguments: The words after ``python -m pycomm.run``; those of this process when None.

    Returns:
        The exit code. Wrong arguments raise SystemExit(2) after a usage message.
    """
    parser = _make_parser()
    own, words = _split(list(sys.argv[1:] if arguments is None else arguments))
    parsed = parser.parse_args(own)
    command = _make_command(parser, words)
    with contextlib.ExitStack() as stack:
        try:
            port = stack.enter_context(host_store(parsed.port))
        except (OSError, RuntimeError, ImportError) as error:
            where = f"{_STORE_HOST}:{parsed.port}"
            print(f"pycomm.run: cannot host the store on {where}: {error}", file=sys.stderr)
            return 1
        options = JobOptions(command, parsed.n, port, parsed.timeout, not parsed.no_prefix)
        return Job(options).run()
