"""Several jobs of a test at the same time, for jobs that mostly wait."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from ranks import _quiet_interrupts


def side_by_side(calls: Mapping[str, Callable[[], Any]], workers: int = 4) -> None:
    """Runs all ``calls``, ``workers`` at a time; fails with names and errors of the bad ones."""
    failures: list[str] = []
    with _quiet_interrupts(), ThreadPoolExecutor(workers) as pool:
        futures: dict[str, Future[Any]] = {name: pool.submit(call) for name, call in calls.items()}
        for name, future in futures.items():
            if error := future.exception():
                if isinstance(error, pytest.skip.Exception):
                    raise error
                failures.append(f"{name}: " + "".join(traceback.format_exception(error)[-3:]))
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
