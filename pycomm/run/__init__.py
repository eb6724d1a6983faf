# The launcher `python -m pycomm.run`: starts the ranks of one job on this host, without MPI.
"""Launcher for the ranks of one job on one host; it needs no MPI.

``python -m pycomm.run -n 4 script.py args`` starts four ranks, prefixes their output by rank, hosts
the store through which they find each other, and ends all of them when one fails.

The parts: ``cli`` reads the command line, ``environment`` says what a rank sees, ``ranks`` starts
the processes, ``output`` forwards whole lines, ``job`` watches over all of it, ``guard`` finds and
ends processes, and is also the small program that ends the ranks should the launcher be killed.
"""

from pycomm.run.cli import main
from pycomm.run.job import Job, JobOptions

__all__ = ["Job", "JobOptions", "main"]
