# Running benchmarks: bandwidths with a fake clock, all operations, wrong results, the command line.
from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pycomm.bench import OPERATIONS, BenchOptions, bandwidth, run_benchmark
from pycomm.bench.cli import main
from pycomm.bench.data import DTYPES, REDUCE_OPS, why_not
from pycomm.bench.operations import IN_PLACE, OUT_OF_PLACE
from pycomm.bench.timing import Effort

OnRanks = Callable[..., list[Any]]

FACTORS = {
    "all_reduce": 1.5,
    "all_gather": 0.75,
    "reduce_scatter": 0.75,
    "all_to_all": 0.75,
    "gather": 0.75,
    "scatter": 0.75,
    "broadcast": 1.0,
    "reduce": 1.0,
    "sendrecv": 1.0,
}
QUICK = Effort(iterations=2, warmup=1)


def quick(**options: Any) -> BenchOptions:
    return BenchOptions(**{"sizes": [4, 1000, 70000], "effort": QUICK, **options})


def flip_one(where: str, at_rank: int = 0) -> Callable[[str, int, Any], None]:
    """Flips one bit of one element of one rank's output, whenever the operation runs."""

    def corrupt(name: str, rank: int, out: Any) -> None:
        if name == where and rank == at_rank and len(out):
            out.view("u1")[len(out) // 2] ^= 4

    return corrupt


@pytest.mark.parametrize(("name", "factor"), FACTORS.items())
def test_bandwidth(name: str, factor: float) -> None:
    assert bandwidth(10**9, 1.0, OPERATIONS[name].factor(4)) == (1.0, factor)


@pytest.mark.parametrize(("name", "factor"), FACTORS.items())
def test_bandwidth_with_a_fake_clock(on_ranks: OnRanks, name: str, factor: float) -> None:
    def run(comm: Any) -> Any:
        seconds = itertools.count()  # each look at the clock is 1 s after the last
        effort = Effort(1, 1, clock=lambda: float(next(seconds)))
        return run_benchmark(comm, name, BenchOptions([1000], "uint8", effort=effort))

    for report in on_ranks(4, run):
        for found in report.measurements:
            messages = 2 if name == "sendrecv" else 1
            assert found.time_us == found.min_us == found.max_us == 1e6 / messages
            assert found.algbw * 1e9 == pytest.approx(1000 * messages)
            assert found.busbw * 1e9 == pytest.approx(1000 * messages * factor)
            assert found.wrong == 0 and found.iterations == 1
        assert report.rows[0].size == 1000


def test_time_is_over_the_ranks(on_ranks: OnRanks) -> None:
    def run(comm: Any) -> Any:
        step = float(comm.rank + 1)
        seconds = itertools.count()
        effort = Effort(2, 1, clock=lambda: step * next(seconds))
        return run_benchmark(comm, "all_reduce", BenchOptions([64], effort=effort))

    for report in on_ranks(3, run):
        for found in report.measurements:
            # Two calls take 1, 2 and 3 s.
            assert found.min_us == pytest.approx(0.5e6)
            assert found.time_us == pytest.approx(1e6)
            assert found.max_us == pytest.approx(1.5e6)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", OPERATIONS)
def test_all_operations(on_ranks: OnRanks, name: str, ranks: int) -> None:
    if ranks == 1 and OPERATIONS[name].pairwise:
        pytest.skip("needs two ranks")
    for root in {0, ranks - 1} if OPERATIONS[name].rooted else {0}:
        options = quick(root=root)
        reports = on_ranks(ranks, lambda comm, options=options: run_benchmark(comm, name, options))
        for report in reports:
            assert report.wrong == 0 and report.checked
            assert len(report.rows) == (3 if name != "barrier" else 1)
            for row in report.rows:
                assert set(row.places) == set(OPERATIONS[name].places)
        # The same on every rank, times included.
        assert all(report.as_dict() == reports[0].as_dict() for report in reports)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter", "all_gather", "sendrecv"])
def test_all_types(on_ranks: OnRanks, name: str, dtype: str) -> None:
    for op in REDUCE_OPS if OPERATIONS[name].reduces else ("sum",):
        if why_not(DTYPES[dtype], op) is None or not OPERATIONS[name].reduces:
            options = quick(dtype=dtype, op=op, sizes=[1000])
            reports = on_ranks(3, lambda comm, options=options: run_benchmark(comm, name, options))
            assert reports[0].wrong == 0, op


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "barrier"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64"])
def test_one_flipped_element(on_ranks: OnRanks, name: str, dtype: str) -> None:
    call = "recv" if name == "sendrecv" else name
    place = OPERATIONS[name].places[0]
    options = quick(dtype=dtype, sizes=[4096], places=[place])
    reports = on_ranks(2, lambda comm: run_benchmark(comm, name, options), corrupt=flip_one(call))
    assert [report.wrong for report in reports] == [1, 1]


def test_a_changed_input_is_wrong(on_ranks: OnRanks) -> None:
    def run(comm: Any) -> Any:
        all_reduce = comm.all_reduce

        def changing(x: Any, op: str, out: Any) -> Any:
            result = all_reduce(x, op, out)
            if out is not None and comm.rank == 1:
                x[3] += 1
            return result

        comm.all_reduce = changing
        return run_benchmark(comm, "all_reduce", quick(sizes=[4096], places=[OUT_OF_PLACE]))

    assert on_ranks(2, run)[0].wrong == 1


def test_a_missing_result_is_wrong(on_ranks: OnRanks) -> None:
    def run(comm: Any) -> Any:
        all_gather = comm.all_gather
        comm.all_gather = lambda x, out=None: all_gather(x) if out is None else comm.barrier()
        return run_benchmark(comm, "all_gather", quick(sizes=[4096], places=[OUT_OF_PLACE]))

    assert on_ranks(2, run)[0].wrong == 2 * 1024


def test_unchecked(on_ranks: OnRanks) -> None:
    options = quick(check=False)
    reports = on_ranks(
        2, lambda comm: run_benchmark(comm, "all_reduce", options), corrupt=flip_one("all_reduce")
    )
    assert reports[0].wrong == 0 and not reports[0].checked
    assert all(found.wrong is None for found in reports[0].measurements)


def test_sizes_are_rounded_up_alike_for_all_ranks(on_ranks: OnRanks) -> None:
    options = quick(sizes=[1, 4, 13, 24, 50], places=[OUT_OF_PLACE])
    report = on_ranks(3, lambda comm: run_benchmark(comm, "all_gather", options))[0]
    assert [(row.size, row.count) for row in report.rows] == [(12, 1), (24, 2), (60, 5)]
    report = on_ranks(3, lambda comm: run_benchmark(comm, "all_reduce", options))[0]
    assert [(row.size, row.count) for row in report.rows] == [
        (4, 1), (16, 4), (24, 6), (52, 13)
    ]  # fmt: skip


def test_iterations_adapt_to_the_time_of_a_call(on_ranks: OnRanks) -> None:
    def run(comm: Any, call_s: float) -> Any:
        now = 0.0
        all_reduce = comm.all_reduce

        def slow(*words: Any) -> Any:
            nonlocal now
            now += call_s * (1 + comm.rank)
            return all_reduce(*words)

        comm.all_reduce = slow
        options = BenchOptions([64], effort=Effort(clock=lambda: now), places=[IN_PLACE])
        return run_benchmark(comm, "all_reduce", options).measurements[0]

    # 0.2 s of calls, by the slowest rank; never fewer than 3 of them.
    assert [found.iterations for found in on_ranks(2, lambda comm: run(comm, 0.002))] == [50, 50]
    slow = on_ranks(2, lambda comm: run(comm, 10.0))
    assert [found.iterations for found in slow] == [3, 3]
    assert slow[0].time_us == pytest.approx(15e6)


def test_ping_pong_runs_all_pairs(on_ranks: OnRanks) -> None:
    report = on_ranks(3, lambda comm: run_benchmark(comm, "sendrecv", quick(sizes=[64])))[0]
    found = report.measurements[0]
    assert set(found.pairs_us) == {"0-1", "0-2", "1-2"}
    assert found.min_us == min(found.pairs_us.values())
    assert found.max_us == max(found.pairs_us.values())


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("nothing", {}, "unknown operation 'nothing'"),
        ("all_reduce", {"dtype": "int7"}, "unknown dtype 'int7'"),
        ("all_reduce", {"dtype": "int8", "op": "avg"}, "avg needs a floating-point type"),
        ("broadcast", {"root": 2}, "from 0 to 1, got 2"),
        ("broadcast", {"places": [OUT_OF_PLACE]}, "broadcast cannot run out of place"),
    ],
)
def test_bad_calls(on_ranks: OnRanks, name: str, options: dict[str, Any], complaint: str) -> None:
    def run(comm: Any) -> None:
        with pytest.raises(ValueError, match=complaint):
            run_benchmark(comm, name, quick(**options))

    on_ranks(2, run)


# The command line -------------------------------------------------------------------------------


def test_table(on_ranks: OnRanks, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["all_reduce", "-b", "4", "-e", "1K", "-f", "4", "-n", "2", "-w", "1"]
    assert on_ranks(2, lambda comm: main(words, comm)) == [0, 0]
    out, err = capfd.readouterr()
    assert err == ""
    comments = [line for line in out.splitlines() if line.startswith("#")]
    lines = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert [line[:5] for line in lines] == [
        [str(size), str(size // 4), "float32", "sum", "-1"] for size in (4, 16, 64, 256, 1024)
    ]
    assert all(len(line) == 17 for line in lines)
    assert all(line[8] == line[12] == "0" for line in lines)
    for line in lines:
        assert float(line[5]) > 0 and float(line[13]) <= float(line[5]) <= float(line[14])
    assert "out-of-place" in comments[1] and "in-place" in comments[1]
    assert comments[2].split()[1:10] == [
        "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"
    ]  # fmt: skip
    assert comments[-2].endswith("0 (OK)")
    assert "average bus bandwidth" in comments[-1]


@pytest.mark.parametrize(("name", "rank"), [("all_reduce", 0), ("reduce_scatter", 1)])
def test_wrong_result_is_a_failure(
    on_ranks: OnRanks, capfd: pytest.CaptureFixture[str], name: str, rank: int
) -> None:
    words = [name, *["-b", "4K", "-e", "4K", "-n", "1", "-w", "1", "--out-of-place"]]
    codes = on_ranks(2, lambda comm: main(words, comm), corrupt=flip_one(name, rank))
    assert codes == [1, 1]
    out = capfd.readouterr().out
    line = next(line for line in out.splitlines() if not line.startswith("#")).split()
    assert line[8] == "1" and line[12] == "N/A"
    assert "1 (FAILED)" in out
    words.append("--no-check")
    assert on_ranks(2, lambda comm: main(words, comm), corrupt=flip_one(name, rank)) == [0, 0]


def test_json(on_ranks: OnRanks, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    words = ["all", *["-b", "8", "-e", "32", "-f", "2", "-n", "1", "-w", "1", "--json"], str(path)]
    assert on_ranks(3, lambda comm: main(words, comm)) == [0, 0, 0]
    found = json.loads(path.read_text())["operations"]
    assert [report["operation"] for report in found] == list(OPERATIONS)
    for report in found:
        assert report["ranks"] == 3 and report["wrong"] == 0
        values = [place for row in report["rows"] for place in row["places"].values()]
        average = sum(value["busbw"] for value in values) / len(values)
        assert report["average_busbw"] == pytest.approx(average)
        assert all(value["time_us"] > 0 for value in values)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "expected an operation"),
        ("all_reduces", "unknown operation 'all_reduces'"),
        ("all_reduce -b 4X", "expected a size such as 4, 1K, 64M or 1G, got '4X'"),
        ("all_reduce -b 64 -e 4", "is below the first size"),
        ("all_reduce -b 0", "at least 1 byte, got 0"),
        ("all_reduce -f 1", "at least 2, got 1"),
        ("all_reduce -f 2 -i 4", "not both"),
        ("all_reduce -n 0", "-n must be at least 1"),
        ("all_reduce -n many", "at least 0, got 'many'"),
        ("all_reduce --dtype float31", "unknown dtype 'float31'"),
        ("all_reduce --op plus", "invalid choice: 'plus'"),
        ("all_reduce --op band", "band needs an integer type"),
        ("broadcast --root 2", "from 0 to 1, got 2"),
        ("broadcast --root -1", "--root"),
        ("broadcast --out-of-place", "cannot run out of place"),
        ("all_reduce --in-place --out-of-place", "not allowed with"),
        ("all_reduce --no-such-option", "unrecognized arguments: --no-such-option"),
        ("all_reduce -e 100000G", "choose a smaller -e"),
        ("all_reduce --json /nowhere/results.json", "--json: "),
        ("all_reduce --compare nothing", "unknown library 'nothing'"),
        ("all_reduce --timeout nan", "above 0, got 'nan'"),
    ],
)
def test_bad_arguments(
    on_ranks: OnRanks, capfd: pytest.CaptureFixture[str], line: str, complaint: str
) -> None:
    assert on_ranks(2, lambda comm: main(line.split(), comm)) == [2, 2]
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("pycomm.bench: error: ") == 1 and err.count("usage: ") == 1
    assert complaint in err


def test_sendrecv_alone(on_ranks: OnRanks, capfd: pytest.CaptureFixture[str]) -> None:
    assert on_ranks(1, lambda comm: main(["sendrecv"], comm)) == [2]
    assert "needs at least 2 ranks, this job has 1" in capfd.readouterr().err
    words = ["all", "-b", "8", "-e", "8", "-n", "1", "-w", "1"]
    assert on_ranks(1, lambda comm: main(words, comm)) == [0]
    out = capfd.readouterr().out
    assert "all_to_all" in out and "sendrecv" not in out


def test_help_is_printed_once(on_ranks: OnRanks, capfd: pytest.CaptureFixture[str]) -> None:
    assert on_ranks(3, lambda comm: main(["--help"], comm)) == [0, 0, 0]
    out = capfd.readouterr().out
    assert out.count("usage: ") == 1 and "--compare" in out
