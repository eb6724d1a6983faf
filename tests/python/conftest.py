# Makes the harness in tests/python/ranks.py importable, and runs tests under each launcher.
from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(params=["run", pytest.param("mpirun", marks=pytest.mark.mpi)])
def launcher(request: pytest.FixtureRequest) -> str:
    """The launchers under which a multi-process test runs; see ranks.run_ranks."""
    name: str = request.param
    if name == "mpirun":
        from ranks import mpirun

        mpirun()
    return name
