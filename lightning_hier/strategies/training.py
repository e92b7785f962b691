"""What trains on one rank, from the moment when optimizers are set up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

from lightning_hier.comm.blocks.joining import Joining
from lightning_hier.comm.blocks.synchroniser import Synchroniser
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.worker import Worker
from lightning_hier.strategies.averaged_weights import AveragedWeights
from lightning_hier.strategies.checkpoints.run_state import RunState
from lightning_hier.strategies.end_of_data import EndOfData
from lightning_hier.strategies.epoch_without_steps import EpochWithoutSteps
from lightning_hier.strategies.lifecycle import GlobalModelLifecycle
from lightning_hier.strategies.misuse import RawSteps
from lightning_hier.strategies.sigterm import QuietTermination
from lightning_hier.strategies.virtual_workers.played import Played


@dataclass(frozen=True, kw_only=True)
class Training:
    """The synchroniser and what stands around it, made for the optimizers of one ``fit``.

    Attributes:
        communicators: channels of this rank.
        worker: the first that this rank plays.
        played: what it plays its workers with.
        synchroniser: runs the blocks.
        termination: acts on signals.
        raw_steps: knows which steps are counted.
        state: what of this rank's run a checkpoint holds.
        averaged_weights: what WeightAveraging callbacks keep.

    """

    communicators: Communicators
    worker: Worker
    played: Played
    synchroniser: Synchroniser
    termination: QuietTermination
    raw_steps: RawSteps
    state: RunState
    averaged_weights: AveragedWeights

    def stepping(self, optimizer: int) -> AbstractContextManager[None]:
        """What surrounds a step: as block synchronisation says, once blocks have begun."""
        blocks = self.synchroniser.blocks
        return nullcontext() if blocks is None else blocks[optimizer].stepping()

    def after_step(self, optimizer: int) -> None:
        """Count a step. A collective of the world at the end of a block."""
        self.synchroniser.after_step(optimizer)
        self.agree_on_signal()

    def agree_on_signal(self) -> None:
        """If all ranks have learnt of a signal, learn which. A collective of the world then."""
        if self.synchroniser.statuses.take_signal():
            self.termination.agree(self.communicators.device)

    def obey_signal(self) -> None:
        """Act on a signal at once, while the others do at their batch's end. As a collective."""
        self.agree_on_signal()
        self.termination.act()

    def global_state(self, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What ``read`` finds in the module while it holds the global model. A collective."""
        self.synchroniser.show()
        state = read()
        if self.synchroniser.shown:
            # The module is about to hold the local model again.
            state = {
                name: value.detach().clone() if isinstance(value, torch.Tensor) else value
                for name, value in state.items()
            }
            self.synchroniser.hide()
        return state

    def callbacks(self, *, join: bool) -> list[Callback]:
        """What must come before the user's callbacks.

        Args:
            join: whether ranks that have run out of batches join the others.

        """
        synchroniser = self.synchroniser
        statuses = synchroniser.statuses
        joining = Joining(self.communicators, self.worker, statuses, synchroniser.end_block)
        return [
            EndOfData(statuses, joining if join else None, self.obey_signal),
            EpochWithoutSteps(synchroniser),
            GlobalModelLifecycle(synchroniser),
            self.averaged_weights,
        ]
