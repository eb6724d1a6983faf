"""A grid of ranks: copies of the model in one direction, stages of a copy in the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pycomm.errors import ArgumentError
from pycomm.nn import Module, Sequential
from pycomm.parallel.batches import share
from pycomm.parallel.pipeline import Pipeline

if TYPE_CHECKING:
    from pycomm.communicator import Communicator


class Mesh:
    """Arranges the ranks of a communicator as dp replicas of a pipeline of pp stages.

    Stages of one replica are neighbouring ranks, as they exchange the most messages. With dp=2,
    pp=3:

                     stage 0  stage 1  stage 2
        replica 0    rank 0   rank 1   rank 2      pp_comm: a row
        replica 1    rank 3   rank 4   rank 5      dp_comm: a column

    Collective: every rank of `comm` makes the mesh, with the same arguments.

    Args:
        comm: All ranks of the grid.
        dp: Number of replicas; None means as many as fit.
        pp: Number of stages; None means as many as fit.

    Attributes:
        dp: Number of replicas.
        pp: Number of stages.
        replica: This rank's replica.
        stage: This rank's stage.
        dp_comm: The ranks with the same stage; its rank is the replica.
        pp_comm: The ranks of the same replica; its rank is the stage.

    Raises:
        ArgumentError: dp * pp is not the number of ranks.
    """

    def __init__(self, comm: Communicator, *, dp: int | None = None, pp: int | None = None) -> None:
        for name, value in (("dp", dp), ("pp", pp)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ArgumentError(f"{name} must be a positive integer, not {value!r}")
        for name, value in (("dp", dp), ("pp", pp)):
            if value is not None and comm.size % value:
                raise ArgumentError(
                    f"{name}={value} does not divide the communicator's {comm.size} ranks"
                )
        self.pp = pp if pp is not None else comm.size // dp if dp is not None else 1
        self.dp = dp if dp is not None else comm.size // self.pp
        if self.dp * self.pp != comm.size:
            raise ArgumentError(
                f"a mesh of dp={self.dp} x pp={self.pp} needs {self.dp * self.pp} ranks, the "
                f"communicator has {comm.size}"
            )
        self.comm = comm
        self.replica, self.stage = self.coordinates(comm.rank)
        dp_comm = comm.split(color=self.stage, key=self.replica)
        pp_comm = comm.split(color=self.replica, key=self.stage)
        assert dp_comm is not None and pp_comm is not None
        self.dp_comm, self.pp_comm = dp_comm, pp_comm

    def coordinates(self, rank: int) -> tuple[int, int]:
        """Return (replica, stage) of a rank of `comm`."""
        if not 0 <= rank < self.comm.size:
            raise ArgumentError(f"rank {rank} is outside [0, {self.comm.size})")
        return divmod(rank, self.pp)

    def rank_of(self, replica: int, stage: int) -> int:
        """Return the rank of `comm` at (replica, stage)."""
        if not 0 <= replica < self.dp or not 0 <= stage < self.pp:
            raise ArgumentError(f"({replica}, {stage}) is outside the {self.dp} x {self.pp} mesh")
        return replica * self.pp + stage

    def rows(self, count: int) -> slice:
        """Return this replica's share of a batch's rows: 10 rows over 4 replicas are 3, 3, 2, 2."""
        return share(count, self.replica, self.dp)

    def pipeline(self, model: Sequential | Sequence[Module], **options: Any) -> Pipeline:
        """Make this replica's pipeline, with gradients and losses averaged over the replicas.

        Its `train_step` takes this replica's rows (`rows`), and returns the loss over all replicas.

        Args:
            model: The whole model, built from the same seed on every rank.
            options: As for `Pipeline`.
        """
        return Pipeline(
            model, self.pp_comm, replicas=self.dp_comm if self.dp > 1 else None, **options
        )

    def close(self) -> None:
        """Close the two communicators made here."""
        self.dp_comm.close()
        self.pp_comm.close()
