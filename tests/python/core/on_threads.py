"""Runs a test's body on ranks that are threads of this process, over a transport of choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ranks import run_ranks

each_transport = pytest.mark.parametrize("transport", ["auto", "shm", "tcp"])


def on_threads(
    n: int, body: Callable[..., Any], transport: str = "auto", *args: Any, timeout: float = 60
) -> list[Any]:
    environment = {"PYCOMM_TRANSPORT": transport}
    outcomes = run_ranks(n, body, *args, launcher="threads", env=environment, timeout=timeout)
    return [outcome.get() for outcome in outcomes]
