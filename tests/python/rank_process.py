"""The program of one rank of `ranks.run_ranks`: calls the function, writes what came of it.

Usage: rank_process.py FOLDER. FOLDER/job holds the pickled Job; the outcome goes to FOLDER/rank.N.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Job:
    """What every rank is to do: call function `name` of a module (or of a file) with `args`."""

    module: str
    file: str
    name: str
    args: tuple[Any, ...]
    init: bool
    init_timeout: float | None
    limit: float


@dataclass
class Report:
    """What a call gave: a value, or the exception in words."""

    value: Any = None
    error: str = ""
    text: str = ""
    bases: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    traceback: str = ""
    seconds: float = 0.0


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """Calls the function and describes the result or the exception."""
    start = time.monotonic()
    report = Report()
    try:
        report.value = function(*args, **kwargs)
    except BaseException as error:
        report = describe(error)
    report.seconds = time.monotonic() - start
    return report


def describe(error: BaseException) -> Report:
    names = ("ranks", "missing", "rank", "errno", "code")
    attributes = {name: getattr(error, name) for name in names if hasattr(error, name)}
    return Report(
        error=type(error).__name__,
        text=str(error),
        bases=tuple(base.__name__ for base in type(error).__mro__),
        ranks=tuple(attributes.get("ranks", ())),
        attributes=attributes,
        traceback="".join(traceback.format_exception(error)),
    )


def load(job: Job) -> Callable[..., Any]:
    if job.file:
        spec = importlib.util.spec_from_file_location(job.module, job.file)
        assert spec is not None and spec.loader is not None, job.file
        module = importlib.util.module_from_spec(spec)
        sys.modules[job.module] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(job.module)
    found: Any = module
    for part in job.name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def own_rank() -> int:
    for name in ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"):
        if name in os.environ:
            return int(os.environ[name])
    return 0


def main() -> None:
    folder = Path(sys.argv[1])
    job: Job = pickle.loads((folder / "job").read_bytes())
    # Shortly before the test gives up, say where this rank hangs.
    faulthandler.dump_traceback_later(max(job.limit - 1.5, 0.5))

    def body() -> Any:
        function = load(job)
        if not job.init:
            return function(*job.args)
        import pycomm

        return function(pycomm.init(timeout=job.init_timeout), *job.args)

    rank = own_rank()
    report = call(body)
    try:
        data = pickle.dumps(report)
    except Exception as error:
        data = pickle.dumps(describe(error))
    temporary = folder / f"unfinished.{rank}"
    temporary.write_bytes(data)
    temporary.rename(folder / f"rank.{rank}")
    # A reported exception is no failed process: launchers would end the other ranks.
    if report.error == "SystemExit":
        sys.exit(report.attributes.get("code"))


if __name__ == "__main__":
    # As a module of its own name, so that reports can be unpickled elsewhere.
    from rank_process import main as start

    start()
