"""Data-parallel ranks before training: compare their models, then copy rank 0's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from pycomm.errors import ArgumentError
from pycomm.nn import Array, Module

if TYPE_CHECKING:
    from pycomm.communicator import Communicator

Signature = list[tuple[str, str, tuple[int, ...], str]]


def check_same_model(model: Module, comm: Communicator) -> None:
    """Check that every rank's parameters and buffers have the same names, shapes and dtypes, in
    order.

    Collective.

    Raises:
        ArgumentError: on every rank, naming the first difference and the first rank that has it.
    """
    signatures: list[Signature] = comm.all_gather_object(_signature(model))
    for rank, signature in enumerate(signatures):
        if signature == signatures[0]:
            continue
        for mine, theirs in zip(signatures[0], signature, strict=False):
            if mine != theirs:
                raise ArgumentError(
                    f"the models differ: rank 0 has {_describe(mine)}, rank {rank} has "
                    f"{_describe(theirs)} in its place"
                )
        longer, rank_of = max((signatures[0], 0), (signature, rank), key=lambda s: len(s[0]))
        extra = longer[min(len(signatures[0]), len(signature))]
        other = rank if rank_of == 0 else 0
        raise ArgumentError(
            f"the models differ: rank {rank_of} has {_describe(extra)}, rank {other} does not"
        )


def copy_from_root(arrays: Iterable[Array], comm: Communicator, root: int = 0) -> None:
    """Overwrite the arrays with the root's, in one broadcast per dtype. Collective."""
    by_dtype: dict[np.dtype[np.generic], list[Array]] = {}
    for array in arrays:
        by_dtype.setdefault(array.dtype, []).append(array)
    for group in by_dtype.values():
        flat = np.concatenate([array.reshape(-1) for array in group])
        comm.broadcast(flat, root=root)
        if comm.rank != root:
            start = 0
            for array in group:
                array[...] = flat[start : start + array.size].reshape(array.shape)
                start += array.size


def state_arrays(model: Module) -> list[Array]:
    """Return the arrays of all parameters and buffers."""
    return [p.data for _, p in model.named_parameters()] + buffer_arrays(model)


def buffer_arrays(model: Module) -> list[Array]:
    """Return the arrays of all buffers."""
    return [b.data for _, b in model.named_buffers()]


def _signature(model: Module) -> Signature:
    kinds = [("parameter", name, holder.data) for name, holder in model.named_parameters()]
    kinds += [("buffer", name, holder.data) for name, holder in model.named_buffers()]
    return [(kind, name, array.shape, str(array.dtype)) for kind, name, array in kinds]


def _describe(entry: tuple[str, str, tuple[int, ...], str]) -> str:
    kind, name, shape, dtype = entry
    return f"{kind} {name} ({dtype}{list(shape)})"
