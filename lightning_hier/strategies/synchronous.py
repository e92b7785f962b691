"""Base class of the strategies that synchronise the models of groups after every block."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.shard_placement import fewest_nics
from lightning_hier.comm.gradients.gradient_sync import GradientSync
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.loop.initial_model import share_initial_model
from lightning_hier.loop.optimizer_checks import check_averaged, check_inside
from lightning_hier.loop.settings import Synchronisation, check_groups, resolved_for_run
from lightning_hier.strategies.checkpoints.run_checkpoints import RunCheckpoints
from lightning_hier.strategies.data_position import DataPosition
from lightning_hier.strategies.elastic import ElasticFit
from lightning_hier.strategies.fit_session import FitSession, Wrap
from lightning_hier.strategies.loop_position import check_after_step
from lightning_hier.strategies.misuse import require_attached
from lightning_hier.strategies.optimizer_checks import log_advice
from lightning_hier.strategies.tiered import TieredStrategy
from lightning_hier.strategies.trainer_changes import TrainerChanges


class SynchronousStrategy(TieredStrategy, ABC):
    """A strategy with a session, which counts steps and synchronises models, while a Trainer fits.

    Attributes:
        block_sync: synchronisation of the groups' models, in a fit with numbers instead of
            ``"auto"``.

    """

    block_sync: BlockSync | None
    _asked: Synchronisation
    _checkpoints: RunCheckpoints
    _elastic: ElasticFit | None = None  # while a Trainer fits, if groups come and go
    _changes: TrainerChanges | None = None
    _position: DataPosition
    _of_run = (*TieredStrategy._of_run, "_changes", "_position", "_elastic")
    _used: Synchronisation  # in this fit
    _session: FitSession | None = None
    _ended: FitSession | None = None

    def _prepare_fit(self, mesh: DeviceMesh | None = None) -> None:
        """Choose numbers for ``"auto"``, and share the model of rank 0. A collective of the world.

        Before the optimizers are created: a module may create its data loaders with them, and keep
        copies of its parameters. ``mesh`` is that of a divided module.
        """
        trainer, device = self._module.trainer, self.root_device
        self._ended, self._changes = None, TrainerChanges(trainer)
        self._position = DataPosition(self._changes, device)
        resumed = self._checkpoints.automatic_values
        self._used, chosen = resolved_for_run(
            self._asked, resumed, partial(run_steps, trainer), self.communicators
        )
        if chosen is not None:
            rank_zero_info(chosen)
        self.warmup_steps, self.block_sync = int(self._used.warmup_steps), self._used.block_sync
        share_initial_model(self._module, self.communicators, mesh)

    def _open_session(self, advised: GradientSync | None, wrap: Wrap, **settings: Any) -> None:
        """Begin to count steps. A collective of the world.

        Args:
            advised: gradient synchronisation inside a group that sends something, for advice.
            wrap: wraps the module by DDP.
            **settings: further arguments of the session.

        """
        assert self._changes is not None, "the fit has been prepared"
        models = self.communicators.models
        log_advice(self._module, self.optimizers, advised, self.block_sync, models)
        self._session = FitSession(
            self._module.trainer,
            self._used,
            changes=self._changes,
            position=self._position,
            communicators=self.communicators,
            nics=self._fewest_nics(),
            wrap=wrap,
            metrics_callback=self._metrics_callback,
            elastic=self._elastic,
            **settings,
        )

    def _fewest_nics(self) -> int | None:
        """The smallest number of NICs of any host, or None for one host. A collective then."""
        return fewest_nics(self.root_device) if self.num_processes < self.world_size else None

    @override
    def _settings(self) -> dict[str, Any]:
        return {
            # Between two fits, `warmup_steps` still has the number of the last one for "auto".
            "warmup_steps": (self._asked if self._session is None else self).warmup_steps,
            "block_sync": self.block_sync,
        }

    @override
    def _check_groups(self, layout: RankLayout) -> None:
        check_groups(self.block_sync, *layout.sizes)

    @override
    def _check_optimizers(self) -> None:
        check_averaged(self.optimizers, self.block_sync)
        check_inside(self._module, self.optimizers)

    @override
    def on_train_start(self) -> None:
        super().on_train_start()
        self._fit_session.start()

    @override
    def on_train_end(self) -> None:
        super().on_train_end()
        session, trainer = self._fit_session, self._module.trainer
        if session.averages not in trainer.callbacks:  # type: ignore[attr-defined]
            return  # a search for the learning rate, which has only Lightning's callback
        if (problem := session.problem_at_end()) is not None:
            rank_zero_warn(problem)

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        self._fit_session.before_batch(batch)

    @override
    def optimizer_step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Step the optimizer. A collective of the group, and of the world at the end of a block."""
        session = self._fit_session
        # Lightning passes its own wrapper of an optimizer, or the optimizer itself.
        wrapped = getattr(optimizer, "_optimizer", optimizer)
        index = self.optimizers.index(wrapped if wrapped in self.optimizers else optimizer)
        require_attached(self.optimizers[index], session.optimizers, index)
        with session.raw_steps.counted(), session.stepping(index):
            result = super().optimizer_step(optimizer, *args, **kwargs)
        session.synchroniser.trained.require_admitted()
        # Counted by call, because loss scaling may skip the update on some ranks only.
        session.after_step(index)
        if session.warm_up_has_ended:
            session.wrap()
        return result

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the state of the global model. A collective of the world during training."""
        session, read = self._session, super().lightning_module_state_dict
        if session is None:  # it is in the module
            return read()
        check_after_step(self._module.trainer)
        return session.synchroniser.evaluation.state(read)

    def _save(
        self,
        checkpoint: dict[str, Any],
        filepath: str | Path,
        write: Callable[[dict[str, Any]], None],
        storage_options: Any | None,
    ) -> None:
        """Write a checkpoint and the state of all ranks. A collective of the world."""
        session = self._session or self._ended
        self._checkpoints.save(session, checkpoint, filepath, write, storage_options)

    @override
    def remove_checkpoint(self, filepath: str | Path) -> None:
        """Remove a checkpoint and the state of all ranks."""
        super().remove_checkpoint(filepath)
        self._checkpoints.remove(filepath)

    @override
    def teardown(self) -> None:
        if self._changes is not None:
            self._changes.close()
        if self._session is not None:
            self._session.reduction.close()
            # For Trainer.save_checkpoint after fit, which saves the state of all ranks as well.
            self._ended = self._session
        self._session = None
        self._checkpoints.automatic_values = {}  # the next fit may resume another run or none
        super().teardown()

    @override
    def metrics(self) -> dict[str, float]:
        counts = self.traffic.metrics()
        return counts | self._session.metrics() if self._session is not None else counts

    @property
    def _fit_session(self) -> FitSession:
        if self._session is None:
            raise RuntimeError("the strategy has a session only while the Trainer fits")
        return self._session


def run_steps(trainer: pl.Trainer) -> float:
    """Number of steps of every rank in the run, or infinity if it is unknown.

    With manual optimization, it is the number of batches. The module may make fewer or more steps.
    A collective of the world: every rank must call it.
    """
    estimated = trainer.estimated_stepping_batches
    # Lightning returns max_steps, which is -1 by default, for data without a length.
    known = -1 if estimated in (-1, math.inf) else int(estimated)
    place = "the comparison of the length of the run"
    counts = gather_json(known, trainer.strategy.root_device, place=place)
    # The smallest, because blocks and warm-up must suit the rank with the fewest batches too.
    return float(min((count for count in counts if count >= 0), default=math.inf))
