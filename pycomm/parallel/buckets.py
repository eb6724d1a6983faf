"""Buckets: gradients packed into a few flat arrays, so that a few all-reduces carry them all.

A bucket's array is laid out as

    [ gradient of parameter 0 | gradient of parameter 1 | ... | used 0 | used 1 | ... | weight |
    active ]

The tail travels with the data and costs no message of its own. After summing over ranks it tells
every rank the same: by what to divide (`weight`), on how many ranks a backward ran (`active`),
and on how many of them each parameter received a gradient (`used`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pycomm.communicator import Communicator
from pycomm.nn import Array, Parameter

NamedParameter = tuple[str, Parameter]


class Bucket:
    """Some parameters of one dtype, and the flat array that carries their gradients.

    Args:
        members: The parameters with their names.
        comm: Where the array takes part: it lies in symmetric memory of it. Collective.
    """

    def __init__(self, members: Sequence[NamedParameter], comm: Communicator) -> None:
        self.names = [name for name, _ in members]
        self.parameters = [parameter for _, parameter in members]
        ends = np.cumsum([0] + [p.data.size for p in self.parameters])
        self._places = [slice(int(a), int(b)) for a, b in zip(ends, ends[1:], strict=False)]
        self._tail = int(ends[-1])
        dtype = self.parameters[0].data.dtype
        self.flat = comm.empty(self._tail + len(members) + 2, dtype)

    @property
    def weight(self) -> float:
        """The sum of the ranks' weights, once reduced."""
        return float(self.flat[-2])

    @property
    def active(self) -> int:
        """On how many ranks a backward ran, once reduced."""
        return round(float(self.flat[-1]))

    @property
    def used(self) -> list[int]:
        """On how many ranks each parameter received a gradient, once reduced."""
        return [round(float(count)) for count in self.flat[self._tail : -2]]

    def pack(self, weight: float, active: bool) -> None:
        """Copy the gradients in; a parameter without one counts as zero and as not used here."""
        for index, (parameter, place) in enumerate(zip(self.parameters, self._places, strict=True)):
            used = parameter.grad is not None
            self.flat[place] = parameter.grad.reshape(-1) if parameter.grad is not None else 0
            self.flat[self._tail + index] = used
        self.flat[-2] = weight
        self.flat[-1] = active

    def unpack(self, carried: dict[int, Array]) -> None:
        """Give every parameter its sum divided by the sum of weights, plus what it carried before.

        A parameter that no rank used keeps what it carried, or no gradient.
        """
        divisor = self.flat.dtype.type(self.weight if self.weight > 0 else 1.0)
        for parameter, place, used in zip(self.parameters, self._places, self.used, strict=True):
            before = carried.get(id(parameter))
            if used == 0:
                parameter.grad = before
                continue
            if parameter.grad is None:
                parameter.grad = np.empty_like(parameter.data)
            np.divide(self.flat[place].reshape(parameter.data.shape), divisor, out=parameter.grad)
            if before is not None:
                parameter.grad += before


def make_buckets(members: Iterable[NamedParameter], limit: int, comm: Communicator) -> list[Bucket]:
    """Pack parameters into buckets in the given order; a bucket holds one dtype.

    Args:
        members: The parameters with their names.
        limit: Bytes at which a bucket is closed. A parameter is never split, so a bucket may be
            larger.
        comm: The communicator that reduces them. Collective.
    """
    closed: list[list[NamedParameter]] = []
    open_by_dtype: dict[np.dtype[np.generic], list[NamedParameter]] = {}
    for member in members:
        dtype = member[1].data.dtype
        group = open_by_dtype.setdefault(dtype, [])
        group.append(member)
        if sum(p.data.nbytes for _, p in group) >= limit:
            closed.append(open_by_dtype.pop(dtype))
    return [Bucket(group, comm) for group in [*closed, *open_by_dtype.values()]]
