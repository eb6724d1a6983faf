"""Collective communication between the processes of one parallel job, and training on top of it.

>>> import numpy as np, pycomm
>>> comm = pycomm.init()
>>> x = np.full(4, comm.rank + 1, dtype=np.float32)
>>> comm.all_reduce(x)  # every rank now holds the sum
"""

from __future__ import annotations

from pycomm._version import __version__
from pycomm.communicator import Communicator
from pycomm.errors import (
    AbortedError,
    ArgumentError,
    CommError,
    CommTimeoutError,
    MismatchError,
    OutOfMemoryError,
    PeerLostError,
    TransportError,
)
from pycomm.shared_allocator import shared_allocator
from pycomm.work import Work
from pycomm.world import init, thread_world

__all__ = [
    "AbortedError",
    "ArgumentError",
    "CommError",
    "CommTimeoutError",
    "Communicator",
    "MismatchError",
    "OutOfMemoryError",
    "PeerLostError",
    "TransportError",
    "Work",
    "__version__",
    "init",
    "shared_allocator",
    "thread_world",
]
