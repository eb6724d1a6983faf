# The benchmark tool `python -m pycomm.bench`, which is also usable as a library.
"""Benchmarks of all operations, with the columns and definitions that nccl-tests made common.

As a program: ``mpirun -n 4 python -m pycomm.bench all_reduce -b 4 -e 256M -f 4``, or the same under
``python -m pycomm.run -n 4 -m pycomm.bench ...``. As a library, called by all ranks::

    from pycomm.bench import BenchOptions, run_benchmark
    report = run_benchmark(comm, "all_reduce", BenchOptions(sizes=[1024, 1 << 20]))

The parts: ``sizes`` reads sizes, ``data`` makes and checks the data, ``operations`` holds one
record per operation, ``timing`` measures, ``peers`` and ``torch_peer`` run the same with other
libraries, ``limit`` says what the memory allows, ``runner`` puts them together, ``results`` holds
what came out, ``report`` prints it, ``cli`` is the program.
"""

from pycomm.bench.operations import OPERATIONS, Operation
from pycomm.bench.results import Measurement, Report, Row
from pycomm.bench.runner import BenchOptions, run_benchmark
from pycomm.bench.timing import bandwidth

__all__ = [
    "OPERATIONS",
    "BenchOptions",
    "Measurement",
    "Operation",
    "Report",
    "Row",
    "bandwidth",
    "run_benchmark",
]
