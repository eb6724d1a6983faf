# Many small arrays as few operations: fused equals unfused.
from __future__ import annotations

from typing import Any

import numpy as np
from core.values import check, values
from ranks import run_ranks

from pycomm.nn import Parameter
from pycomm.parallel.buckets import make_buckets

COUNT = 500


def test_500_arrays_in_at_most_4_operations(launcher: str) -> None:
    for outcome in run_ranks(2, fused_and_not, launcher=launcher):
        assert outcome.get() <= 4


def fused_and_not(comm: Any) -> int:
    """Sums 500 arrays of 1 KiB, float32 and float16 mixed, both ways; the number of operations."""
    names = ["float16" if index % 3 else "float32" for index in range(COUNT)]
    arrays = [
        values(comm.rank, 256 if name == "float32" else 512, name, salt=index)
        for index, name in enumerate(names)
    ]
    parameters = []
    for index, array in enumerate(arrays):
        parameter = Parameter(np.zeros_like(array))
        parameter.grad = array.copy()
        parameters.append((f"p{index}", parameter))
    buckets = make_buckets(parameters, 4 << 20, comm)
    for bucket in buckets:
        bucket.pack(1.0, True)
    for work in [comm.all_reduce(bucket.flat, async_op=True) for bucket in buckets]:
        work.wait()
    for bucket in buckets:
        bucket.unpack({})
    for (name, parameter), array in zip(parameters, arrays, strict=True):
        alone = comm.all_reduce(array.copy())
        check(parameter.grad, (alone / comm.size).astype(array.dtype), name)
    return len(buckets)
