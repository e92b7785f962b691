"""What one synchronisation of models did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lightning_hier.comm.blocks.bucket_settings import Norms
from lightning_hier.comm.blocks.health import NonFiniteModelError, Participation
from lightning_hier.comm.communicators import Communicators


@dataclass(frozen=True)
class BlockReport:
    """What one synchronisation did.

    Attributes:
        update_norm: Euclidean norm of the global update Delta.
        model_distance: how far the group models were apart: the root mean square over the groups
            of the Euclidean distance between a group's model and their mean. Averaged buffers
            count as part of the model.
        excluded: groups that were left out because their models were not finite.
        restarted: whether this rank's group was one of them.

    """

    update_norm: float
    model_distance: float
    excluded: int = 0
    restarted: bool = False

    @classmethod
    def of(
        cls, found: Sequence[Norms], participation: Participation, communicators: Communicators
    ) -> BlockReport:
        """Put together what the ranks of a group have found. A collective of the group.

        Args:
            found: by this rank, in its share of each part of the model.
            participation: whose models were averaged.
            communicators: channels of this rank.

        Raises:
            NonFiniteModelError: Delta is beyond the range of its dtype.

        """
        shares = [[own.mean for own in found], [own.update for own in found]]
        sums = torch.tensor(shares, dtype=torch.float64, device=communicators.device).sum(1)
        communicators.group.all_reduce_(sums, "status").wait()
        mean, update = sums.tolist()
        if not math.isfinite(update):
            # The same on all ranks: every group holds all of Delta.
            raise NonFiniteModelError(
                "the global update is beyond the range of its dtype, although the models that it "
                "was made of are finite: training has diverged. Lower the learning rate."
            )
        # The same for all parts but those whose first block this was.
        apart = max((own.models for own in found), default=0.0) - mean
        return cls(
            update_norm=update**0.5,
            model_distance=max(apart, 0.0) ** 0.5,
            excluded=len(participation.excluded),
            restarted=not participation.takes_part,
        )
