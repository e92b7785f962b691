"""Reports of block synchronisations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lightning_hier.algorithms.squares import SumOfSquares
from lightning_hier.comm.blocks.health import NonFiniteModelError
from lightning_hier.comm.communicators import Communicators


@dataclass
class Norms:
    """Sums of squares of one synchronisation.

    Attributes:
        models: sum of squares of the averaged models, as a mean over the groups.
        mean: sum of squares of this rank's shard of the mean model.
        update: sum of squares of this rank's shard of Delta.

    """

    models: float
    mean: SumOfSquares = 0.0
    update: SumOfSquares = 0.0

    def add(self, mean: SumOfSquares, update: SumOfSquares, *, holders: int) -> None:
        """Add the sums of squares of a part of the shard.

        The sum over the ranks of a group then counts elements once, which ``holders`` ranks hold.
        """
        if holders > 1:  # on an accelerator, a division is a kernel
            mean, update = mean / holders, update / holders
        self.mean += mean
        self.update += update


@dataclass(frozen=True)
class BlockReport:
    """Result of one synchronisation.

    Attributes:
        update_norm: Euclidean norm of the global update Delta.
        model_distance: root mean square over the groups of the Euclidean distance between a group's
            model and their mean. Averaged buffers are part of the model.

    """

    update_norm: float
    model_distance: float

    @classmethod
    def of(cls, norms: Norms, communicators: Communicators) -> BlockReport:
        """Sum the norms of the ranks of a group. A collective of the group.

        Args:
            norms: norms of this rank.
            communicators: channels of this rank.

        Raises:
            NonFiniteModelError: Delta exceeds the range of its dtype.

        """
        squares = [float(norms.mean), float(norms.update)]
        sums = torch.tensor(squares, dtype=torch.float64, device=communicators.device)
        if communicators.group.size > 1:  # a rank of its own has nobody to wait for
            communicators.group.all_reduce_(sums, "status").wait()
        mean, update = sums.tolist()
        if not math.isfinite(update):
            # The same on all ranks, because every group holds all of Delta.
            raise NonFiniteModelError(
                "the global update exceeds the range of its dtype, although the models of all "
                "groups are finite: training has diverged. Lower the learning rate."
            )
        # Mean of the squares minus square of the mean: the same for models and for their local
        # updates, which have one start model. Rounding may make it negative.
        distance = max(norms.models - mean, 0.0)
        return cls(update_norm=update**0.5, model_distance=distance**0.5)
