"""Several jobs of a test at the same time, for jobs that mostly wait."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from ranks import _quiet_interrupts

Case = TypeVar("Case")


def side_by_side(check: Callable[[Case], Any], cases: Iterable[Case], workers: int = 4) -> None:
    """Calls ``check`` for each of ``cases``, ``workers`` at a time; fails with all failures."""
    failures: list[str] = []
    with _quiet_interrupts(), ThreadPoolExecutor(workers) as pool:
        for case, future in [(case, pool.submit(check, case)) for case in cases]:
            if error := future.exception():
                if isinstance(error, pytest.skip.Exception):
                    raise error
                failures.append(f"{case}: " + "".join(traceback.format_exception(error)[-3:]))
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
