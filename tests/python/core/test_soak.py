# Thousands of random operations; see core/soak.py, also for longer runs and other seeds.
from __future__ import annotations

import pytest
from core.soak import soak
from ranks import run_ranks

OPERATIONS = 3000


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_threads(transport: str) -> None:
    environment = {"PYCOMM_TRANSPORT": transport}
    outcomes = run_ranks(4, soak, 1, OPERATIONS, launcher="threads", env=environment, timeout=100)
    for outcome in outcomes:
        assert sum(outcome.get().values()) == OPERATIONS


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_processes(transport: str) -> None:
    environment = {"PYCOMM_TRANSPORT": transport}
    outcomes = run_ranks(
        4, "core.soak:soak", 2, OPERATIONS, launcher="run", env=environment, timeout=100
    )
    for outcome in outcomes:
        assert sum(outcome.get().values()) == OPERATIONS
