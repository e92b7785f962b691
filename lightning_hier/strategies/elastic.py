"""A fit in a group that comes and goes: its start, and the state that groups send each other."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch.nn import Module

from lightning_hier.algorithms.arguments import counted
from lightning_hier.comm.across import AcrossRoute
from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.membership.connections import GroupLostError
from lightning_hier.membership.group_exchange import MOST_ATTEMPTS, GroupExchange
from lightning_hier.membership.lighthouse import Entry
from lightning_hier.membership.quorums import Quorums
from lightning_hier.membership.torchft import TorchFT
from lightning_hier.membership.transfer import receive_folder, send_folder, share_folder
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

    """

    def __init__(
        self, strategy: HierarchicalStrategy, settings: TorchFT, required: Mapping[str, Any]
    ) -> None:
        self._strategy = strategy
        self._trainer: Any = strategy.lightning_module.trainer  # type: ignore[union-attr]
        self._changes = TrainerChanges(self._trainer)
        self._folder: Path | None = None
        # An epoch, and the batches that this group has used in it beyond Lightning's count.
        self._offset = (0, 0)
        # First rank of each host. Hosts may not share the folder of a state.
        self._leaders = range(0, strategy.world_size, strategy.num_processes)
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
        self.exchange = GroupExchange(quorums, communicators, log=rank_zero_info)
        # Blocks refer to both, so they are replaced before there are blocks. Later, their contents
        # change with the groups that are present.
        across = self.exchange.across
        communicators.across, communicators.route = across, AcrossRoute(across, None, 1)
        communicators.most_groups = settings.groups
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
        parameters = [*self._strategy.lightning_module.parameters()]  # type: ignore[union-attr]
        size = f"{len(parameters)} tensors, {sum(p.numel() for p in parameters)} elements"
        self.exchange.quorums.required["parameters"] = size
        if self.exchange.start():
            return
        rank_zero_info("Waiting for the state of a group that trains.")
        resume_start(self._receive() / _NAME)
        self._load(connector._loaded_checkpoint)
        after = counted(self.exchange.commits, "synchronisation")
        rank_zero_info(f"Took the state after {after}.")

    def _load(self, checkpoint: Mapping[str, Any]) -> None:
        state = dict((section_of(checkpoint) or {}).get("membership") or {})
        if state:
            epoch, batches = state.pop("offset")
            self._offset = epoch, batches
            self.exchange.load(state)

    def share_initial_model(self, module: Module) -> None:
        """Give all groups that start together the model of the first one."""
        tensors = [*module.parameters(), *module.buffers()]
        self.exchange.share_initial_model(
            lambda channel: broadcast_tensors_(tensors, channel, "initial_model")
        )

    def begin_training(self, session: FitSession) -> None:
        """Set the place in the data. Discard what belongs to the group that has sent the state."""
        epoch = self._trainer.current_epoch
        if self._folder is not None:
            session.position.taken = True
            # All ranks have read it: Lightning calls a barrier between resuming and training.
            self._remove_received()
            session.worker.memory.tensors.clear()
            for block in session.synchroniser.blocks or ():
                block.forget_errors()
            # Its own part of the data, from where it stopped. In a later epoch, it is all there.
            last, used = self.exchange.position_of(self.exchange.settings.group)
            self._offset = epoch, (used if last == epoch else 0) - self._ready
        if self._offset[0] == epoch and self._offset[1]:
            session.position.used = self._position()[1]

    def _remove_received(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def serve(self) -> None:
        """Send the state to the groups that wait for it, at the end of a batch."""
        if not self.exchange.joined:
            return
        identifier, joiners = self.exchange.joiners()
        if not joiners:
            return
        begun, folder = time.monotonic(), self._new_folder()
        try:
            if not self._save(folder):
                return
            if self._strategy.global_rank == 0:
                for joiner in joiners:
                    self._send(folder, joiner, identifier)
            # No rank may remove files while rank 0 still sends them.
            self._strategy.barrier("the state of this group was sent")
            # Not only the folder below: the strategy also keeps a record of each save by its path.
            self._strategy.remove_checkpoint(folder / _NAME)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        seconds = time.monotonic() - begun
        groups = ", ".join(str(joiner.group) for joiner in joiners)
        rank_zero_info(f"Sent the state to group {groups} in {seconds:.1f} s.")
        limit = self.exchange.settings.join_timeout_s
        if seconds > limit / 2:
            rank_zero_warn(
                f"sending the state took {seconds:.0f} s: the other groups wait for this one up to "
                "--join_timeout_ms of the Lighthouse. Keep it, and join_timeout_s, well above"
            )

    def _save(self, folder: Path) -> bool:
        """Save the state into a folder on rank 0's host. Returns whether there was room for it."""
        checkpoint = self._trainer._checkpoint_connector.dump_checkpoint(False)
        # Paths of this group's own checkpoints, and types that weights_only may refuse.
        for key in _LEFT_OUT:
            checkpoint.pop(key, None)
        try:
            self._strategy.save_checkpoint(checkpoint, folder / _NAME)
        except OSError as error:  # on all ranks
            rank_zero_warn(f"the state could not be saved for a group that joins: {error}")
            return False
        # Each host has the files of its own ranks only, and rank 0 sends the files of all.
        for leader in self._leaders[1:]:
            self._share(folder, leader)
        return True

    def _send(self, folder: Path, joiner: Entry, identifier: str) -> None:
        """Send the state to a group. Called by rank 0."""
        quorums, group = self.exchange.quorums, joiner.group
        assert quorums.store is not None, "this is rank 0"
        quorums.mark_ready(identifier, group)
        try:
            name = f"{identifier}/state/{group}"
            send_folder(folder, quorums.store, joiner.address, name, **self._ends)
        except GroupLostError as error:
            rank_zero_warn(f"group {group} was lost before it had the state: {error}")

    def _receive(self) -> Path:
        """Receive the state of a group that trains, which may be lost meanwhile. Returns a folder.

        Raises:
            PeerError: the groups cannot reach each other, or none trains within the limit.

        """
        quorums, lost = self.exchange.quorums, ""
        # Each attempt takes a new quorum, which may name another group as the source.
        for _ in range(MOST_ATTEMPTS):
            # Never made anew under a name that others have seen, and could take.
            self._folder = folder = self._new_folder()
            lost = quorums.on_first(partial(self._receive_from, folder, *quorums.join()))
            if not lost:
                break
            self._remove_received()
            rank_zero_warn(f"{lost}: waiting for another group")
        else:
            raise PeerError(
                f"group {self.exchange.settings.group} has tried {MOST_ATTEMPTS} times to receive "
                f"the state of another group: {lost}. Check that the hosts of the groups reach "
                "each other on all ports"
            )
        if len(self._leaders) > 1:
            self._share(folder, 0)
        return folder

    def _receive_from(self, folder: Path, identifier: str, address: str) -> str:
        """Receive the state. Called by rank 0. Returns why the other group was lost, or ""."""
        name = f"{identifier}/state/{self.exchange.settings.group}"
        try:
            receive_folder(folder, address, name, **self._ends)
        except GroupLostError as error:
            return str(error)
        return ""

    def _share(self, folder: Path, source: int) -> None:
        strategy = self._strategy
        writes = strategy.local_rank == 0
        share_folder(folder, source, writes=writes, device=strategy.root_device)

    @property
    def _ends(self) -> dict[str, Any]:
        timeout = self.exchange.settings.exchange_timeout
        return {"host": self.exchange.quorums.host, "timeout": timeout}

    def _new_folder(self) -> Path:
        """Create a folder with the same path on all hosts of this group, for this user only."""
        made = self.exchange.quorums.on_first(lambda: tempfile.mkdtemp(prefix="lightning_hier_"))
        folder, device = Path(made), self._strategy.root_device
        with raise_everywhere(device, error=OSError, place="the creation of a folder"):
            if self._strategy.local_rank == 0:
                _create_private(folder)
        return folder

    def close(self) -> None:
        """Leave the groups, and undo the changes to the Trainer. Does not communicate."""
        self._remove_received()
        self._changes.close()
        self.exchange.close()


def _create_private(folder: Path) -> None:
    """Create a folder for this user only, unless it exists, on a disk that hosts share."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.getuid():
            raise


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
