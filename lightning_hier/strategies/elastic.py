"""A fit in a group that comes and goes: its start, and the state that groups send each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_hier.algorithms.arguments import counted
from lightning_hier.callbacks.packages import both
from lightning_hier.membership.group_exchange import GroupExchange
from lightning_hier.membership.quorums import Quorums
from lightning_hier.membership.state_transfer import StateTransfer
from lightning_hier.membership.torchft import TorchFT
from lightning_hier.strategies.checkpoints.rank_files import section_of
from lightning_hier.strategies.trainer_changes import TrainerChanges

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession
    from lightning_hier.strategies.hierarchical import HierarchicalStrategy

_NAME = "state.ckpt"
_HYPERPARAMETERS = ("hyper_parameters", "hparams_name", "hparams_type")
_LEFT_OUT = ("callbacks", *_HYPERPARAMETERS, *(f"datamodule_{key}" for key in _HYPERPARAMETERS))


class ElasticFit:
    """Connects the Trainer of a group with the groups that are present.

    The state of a run is a checkpoint: a group that synchronises saves one, and the group that
    joins resumes from it as from a file of its own, with its own part of the data.

    It is created when the process groups exist, and closed at teardown. Methods are collectives of
    the job unless stated otherwise.

    Args:
        strategy: strategy of this rank.
        settings: settings of the groups.
        required: settings that must be equal in all groups.

    Attributes:
        exchange: synchronisations with the groups that are present.
        transfer: sends and receives states.

    """

    def __init__(
        self, strategy: HierarchicalStrategy, settings: TorchFT, required: Mapping[str, Any]
    ) -> None:
        self._strategy = strategy
        self._trainer: Any = strategy.lightning_module.trainer  # type: ignore[union-attr]
        self._changes = TrainerChanges(self._trainer)
        # An epoch, and the batches that this group has used in it beyond Lightning's count.
        self._offset = (0, 0)
        communicators = strategy.communicators
        seed = os.environ.get("PL_GLOBAL_SEED", "0")  # of Lightning's samplers
        quorums = Quorums(
            settings,
            communicators,
            limit=strategy.limit,
            log=rank_zero_info,
            position=self._position,
            required={**required, "seed": seed, "device": strategy.root_device.type},
        )
        self.exchange = GroupExchange(quorums, communicators)
        ranks, per_host = strategy.world_size, strategy.num_processes
        self.transfer = StateTransfer(
            self.exchange,
            host_of=[rank // per_host for rank in range(ranks)],
            rank=strategy.global_rank,
        )
        self._saved: Path | None = None
        # Lightning calls it in every fit, also without a checkpoint, before it restores anything.
        self._changes.replace("_checkpoint_connector.resume_start", self._resume_start)

    def _position(self) -> tuple[int, int]:
        """Epoch, and the batches of it that this group has used."""
        epoch, used = self._trainer.current_epoch, self._ready
        return epoch, used + (self._offset[1] if self._offset[0] == epoch else 0)

    @property
    def _ready(self) -> int:
        return int(self._trainer.fit_loop.epoch_loop.batch_progress.current.ready)

    def state(self) -> dict[str, Any]:
        """State for a checkpoint. Does not communicate."""
        return {**self.exchange.state(), "offset": list(self._offset)}

    def _resume_start(
        self, resume_start: Callable[..., None], path: Any = None, **kwargs: Any
    ) -> None:
        """Load the checkpoint of the user, then wait for the groups, and take a newer state."""
        resume_start(path, **kwargs)
        connector = self._trainer._checkpoint_connector
        self._load(connector._loaded_checkpoint)
        # Not with the other settings in __init__, because configure_model may create parameters.
        module = self._strategy.lightning_module
        assert module is not None, "the Trainer fits"
        if self.exchange.start(module):
            return
        resume_start(self.transfer.receive() / _NAME)
        self._load(connector._loaded_checkpoint)
        after = counted(self.exchange.commits, "synchronisation")
        rank_zero_info(f"Took the state after {after}.")

    def _load(self, checkpoint: Mapping[str, Any]) -> None:
        state = dict((section_of(checkpoint) or {}).get("membership") or {})
        if state:
            epoch, batches = state.pop("offset")
            self._offset = epoch, batches
            self.exchange.load(state)

    def begin_training(self, session: FitSession) -> None:
        """Set the place in the data. Discard what belongs to the group that has sent the state."""
        epoch = self._trainer.current_epoch
        if self.transfer.received:
            session.position.taken = True
            # All ranks have read it: Lightning calls a barrier between resuming and training.
            self.transfer.remove()
            session.synchroniser.forget_errors()
            # Its own part of the data, from where it stopped. In a later epoch, it is all there.
            last, used = self.exchange.position_of(self.exchange.settings.group)
            self._offset = epoch, (used if last == epoch else 0) - self._ready
        if self._offset[0] == epoch and self._offset[1]:
            session.position.used = self._position()[1]

    def serve(self) -> None:
        """Send the state to the groups that wait for it, at the end of a batch."""
        self.transfer.serve(self._save)
        if self._saved is not None:
            # Not only its folder: the strategy also keeps a record of each save by its path.
            self._strategy.remove_checkpoint(self._saved)
            self._saved = None

    def _save(self, folder: Path) -> None:
        self._saved = folder / _NAME
        checkpoint = self._trainer._checkpoint_connector.dump_checkpoint(False)
        # Paths of this group's own checkpoints, and types that weights_only may refuse.
        for key in _LEFT_OUT:
            checkpoint.pop(key, None)
        io: Any = self._strategy.checkpoint_io
        if isinstance(io, both(AsyncCheckpointIO)):
            # The files are sent and removed at once, when it may not have begun to write them.
            writer: Any = io.checkpoint_io
            self._strategy.checkpoint_io = writer
        try:
            self._strategy.save_checkpoint(checkpoint, self._saved)
        finally:
            self._strategy.checkpoint_io = io

    def close(self) -> None:
        """Leave the groups, and undo the changes to the Trainer. Does not communicate."""
        self.transfer.remove()
        self._changes.close()
        self.exchange.close()


class StateServer(Callback):
    """Sends the state to groups that wait for it. The last of all callbacks.

    Args:
        fit: fit of this group.

    """

    def __init__(self, fit: ElasticFit) -> None:
        self._fit = fit

    def on_train_batch_end(self, *_: Any) -> None:
        """Send it after the synchronisation of this batch, if there was one."""
        self._fit.serve()
