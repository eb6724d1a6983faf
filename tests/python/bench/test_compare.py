# bench/compare.py: what it makes of results, with an mpirun that only pretends; and once for real.
from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_BENCH = Path(__file__).resolve().parents[3] / "bench"

# Writes what pycomm-perf would: MPI takes 2, 3 or 0.5 times as long, by the name of its folder.
MPIRUN = """\
#!{python}
import json, sys
from pathlib import Path
words = sys.argv[1:]
peer = Path(sys.argv[0]).resolve().parents[1].name
operation = words[words.index("--separate") - 1]
if operation == "gather" and peer == "impi":
    sys.exit("no gather today")
factor = {{"mpich": 2.0, "openmpi": 3.0, "impi": 0.5}}[peer]
ranks = int(words[words.index("-n") + 1])
base = 1.0 if "--symmetric" in words else 2.0
rows = []
for size in (1024, 1048576):
    own = base * ranks * (1 if size == 1024 else 100)
    row = {{"size": size, "systems": [
        {{"system": "pycomm", "median_us": own, "wrong": 0}},
        {{"system": peer.upper(), "median_us": own * factor, "wrong": 0}},
    ]}}
    if operation == "all_gather":
        row["systems"][1] = {{"system": peer.upper(), "not_measured": "too hard"}}
    if operation == "reduce":
        row["systems"][0]["wrong"] = 3
    row["limit"] = {{"median_us": own / 4}}
    rows.append(row)
Path(words[words.index("--json") + 1]).write_text(json.dumps({{"rows": rows}}))
"""


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(_BENCH))
    names = ("compare", "environments", "figures")
    yield importlib.import_module("compare")
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def pretended(compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words that give a pretended environment for each MPI."""
    words = []
    for peer in ("mpich", "openmpi", "impi"):
        folder = tmp_path / peer / "bin"
        folder.mkdir(parents=True)
        (folder / "python").symlink_to(sys.executable)
        (folder / "mpirun").write_text(MPIRUN.format(python=sys.executable))
        (folder / "mpirun").chmod(0o755)
        words += ["--venv", f"{peer}={tmp_path / peer}"]
    monkeypatch.setattr(compare.Workshop, "perf", lambda self, peer: Path("pycomm-perf"))
    return [*words, "--cache", str(tmp_path / "cache"), "--json", str(tmp_path / "all.json")]


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "all.json").read_text())
    return found


def table(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_best_is_the_least_ratio(
    compare: ModuleType, pretended: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main([*pretended, "--ops", "all_reduce", "broadcast", "-n", "2", "4"]) == 0
    out, err = capsys.readouterr()
    assert "12 of 24: C: " in err
    head, first, *rest = table(out)
    assert head[-4:] == ["against mpich", "against openmpi", "against impi", "against the best"]
    assert first == [
        "all_reduce", "1 KiB", "4 us", "25 %", "2.00 x", "3.00 x", "0.50 x", "0.50 x"
    ]  # fmt: skip
    assert any(line[0] == "broadcast *" for line in rest)
    assert "### C, 4 ranks, symmetric arrays" in out
    assert "a barrier before each call" in out
    found = read(tmp_path)
    assert len(found["records"]) == 2 * 2 * 2 * 2 * 3 and found["failures"] == []
    record = found["records"][0]
    assert record["ratio"] == 2.0 and record["percent_of_limit"] == 25.0
    assert record["separate"] is False and found["machine"]["cores"] >= 1
    assert {r["separate"] for r in found["records"] if r["operation"] == "broadcast"} == {True}


def test_failed_runs_are_said_and_the_rest_goes_on(
    compare: ModuleType, pretended: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--ops", "gather", "all_gather", "-n", "2", "--memory", "private"]
    assert compare.main([*pretended, *words]) == 1
    out, err = capsys.readouterr()
    assert "FAILED" in err and "no gather today" in out
    rows = table(out)
    gather = next(line for line in rows if line[0] == "gather *")
    assert gather[-4:] == ["2.00 x", "3.00 x", "not measured", "2.00 x"]
    all_gather = next(line for line in rows if line[0] == "all_gather")
    assert set(all_gather[-4:]) == {"not measured"}
    assert len(read(tmp_path)["failures"]) == 1


def test_wrong_elements_are_a_failure(compare: ModuleType, pretended: list[str]) -> None:
    assert compare.main([*pretended, "--ops", "reduce", "-n", "2", "--peers", "mpich"]) == 1


def test_plots(compare: ModuleType, pretended: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["--ops", "all_reduce", "all_gather", "-n", "2", "3", "--plot", str(tmp_path / "f.png")]
    assert compare.main([*pretended, *words]) == 0
    for name in ("f.png", "f-3.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_curves(compare: ModuleType) -> None:
    figures = sys.modules["figures"]

    def record(peer: str, memory: str, pycomm_us: float, peer_us: float | None) -> Any:
        return figures.Record(
            "C", peer, peer, 2, memory, "all_reduce", 1000, False, pycomm_us, peer_us, 0.5, 0
        )

    records = [record("mpich", "private", 1.0, 4.0), record("impi", "private", 2.0, None)]
    records += [record("openmpi", "private", 3.0, 8.0), record("mpich", "symmetric", 0.8, 5.0)]
    found = figures.curves(records, "all_reduce")
    assert list(found) == ["pycomm, symmetric", "pycomm, private", "mpich", "openmpi", "limit"]
    # GB/s; of several runs the middle one.
    assert found["pycomm, private"] == {1000: pytest.approx(0.5)}
    assert found["mpich"] == {1000: pytest.approx(1 / 4.5)}
    assert found["limit"] == {1000: pytest.approx(2.0)}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--venv", "mpich"], "expected NAME=PATH"),
        (["--venv", "mpich=/nowhere"], "/nowhere is no virtual environment"),
        (["--peers", "nothing"], "invalid choice: 'nothing'"),
        (["-n", "1"], "at least 2 ranks"),
    ],
)
def test_bad_arguments(
    compare: ModuleType, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        compare.main(words)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_run_that_takes_too_long_leaves_no_process(compare: ModuleType) -> None:
    environments = sys.modules["environments"]
    sleep = "import time; time.sleep(60)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleep!r}])"
    with pytest.raises(environments.Failure, match=r"longer than 1 s"):
        environments.run([sys.executable, "-c", script], 1.0)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.timeout(1500)
@pytest.mark.skipif(
    shutil.which("cmake") is None
    or not (Path(sys.prefix) / "include" / "mpi.h").exists()
    or not (Path(sys.prefix) / "bin" / "mpirun").exists(),
    reason="needs cmake, and MPICH or Open MPI beside this Python",
)
def test_for_real(compare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peer = "openmpi" if list(Path(sys.prefix).glob("lib/openmpi*")) else "mpich"
    words = ["--quick", "--peers", peer, "--venv", f"{peer}={sys.prefix}", "--seconds", "0.02"]
    words += ["--ops", "all_reduce", "scatter", "barrier", "--cache", str(tmp_path)]
    assert compare.main([*words, "--json", str(tmp_path / "all.json")]) == 0
    for record in read(tmp_path)["records"]:
        assert record["ratio"] > 0 and record["wrong"] == 0
        assert record["operation"] == "barrier" or record["percent_of_limit"] > 0
    assert "against the best" in capsys.readouterr().out
