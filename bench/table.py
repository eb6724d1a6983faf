"""Measures operations against mpi4py in the same runs and prints the table of README.md.

    python bench/table.py                       # two ranks, float32, 4 bytes to 64 MiB
    python bench/table.py -n 4 -e 16M --ops all_reduce broadcast

Each operation is one `mpirun -n N python -m pycomm.bench OP --compare`, in which pycomm and mpi4py
take turns within each size. A cell is the time of a call out of place (in place where there is
nothing else) and, in brackets, how many times as long mpi4py takes. Ends with the exit code of the
first run that failed: a wrong result is no figure.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "sendrecv"]


def find_mpirun() -> str:
    """The mpirun beside this interpreter, else the first on the path."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        sys.exit("no mpirun; pip install 'pycomm[mpi]'")
    return found


def measure(operation: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs the benchmark of one operation and returns its record."""
    target = folder / f"{operation}.json"
    command = [find_mpirun(), "-n", str(options.ranks), sys.executable, "-m", "pycomm.bench"]
    command += [operation, "-b", options.min_bytes, "-e", options.max_bytes, "-f", options.factor]
    command += ["--compare", "--json", str(target)]
    print(f"measuring {operation} ...", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=900, check=False)
    if done.returncode != 0:
        print(f"{' '.join(command)} ended with {done.returncode}", file=sys.stderr)
        sys.exit(done.returncode)
    record: dict[str, Any] = json.loads(target.read_text())["operations"][0]
    return record


def size_text(size: int) -> str:
    """Bytes in the largest unit that fits: 4 B, 64 KiB, 16 MiB."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.3g} {unit}"
    return f"{size} B"


def time_text(microseconds: float) -> str:
    """Three digits, in us or ms."""
    if microseconds < 1000:
        return f"{microseconds:.3g} us"
    return f"{microseconds / 1000:.3g} ms"


def cell(row: dict[str, Any]) -> str:
    """Time of a call, and the peer's time as a multiple of it."""
    places = row["places"]
    place = places.get("out_of_place") or places["in_place"]
    peer = place["peers_us"].get("mpi4py")
    ratio = f" ({peer / place['time_us']:.2g} x)" if peer else ""
    return time_text(place["time_us"]) + ratio


def main() -> None:
    """Measures and prints a Markdown table, one line per size, one column per operation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("-b", "--min-bytes", default="4")
    parser.add_argument("-e", "--max-bytes", default="64M")
    parser.add_argument("-f", "--factor", default="16")
    parser.add_argument("--ops", nargs="+", choices=OPERATIONS, default=OPERATIONS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        records = [measure(operation, options, Path(folder)) for operation in options.ops]
    print("| bytes | " + " | ".join(options.ops) + " |")
    print("|---" * (len(records) + 1) + "|")
    for rows in zip(*(record["rows"] for record in records), strict=True):
        cells = [size_text(rows[0]["size"]), *(cell(row) for row in rows)]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
