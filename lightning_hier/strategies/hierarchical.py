"""The strategy that composes a gradient synchronisation in groups with a block synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, get_args

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch.distributed.constants import default_pg_timeout
from torch.nn import Module
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.algorithms.arguments import check_choice, check_whole_or_auto
from lightning_hier.algorithms.automatic import Auto
from lightning_hier.callbacks.progress import place_in_block, show_in_progress_bar
from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.health import OnNonfinite
from lightning_hier.comm.gradients.gradient_sync import GTC, AllReduce, GradientSync
from lightning_hier.comm.leaving import stay_at_exit
from lightning_hier.comm.tiers import GroupSize
from lightning_hier.strategies import checks
from lightning_hier.strategies.automatic import Synchronisation, resolved_for_run
from lightning_hier.strategies.batch_counts import (
    UnevenBatches,
    join_problem,
    join_trainer_problem,
)
from lightning_hier.strategies.fit_session import FitSession
from lightning_hier.strategies.group_batchnorm import GroupSyncBatchNorm
from lightning_hier.strategies.initial_model import share_initial_model
from lightning_hier.strategies.lifecycle import surround_callbacks
from lightning_hier.strategies.virtual_workers.checks import (
    check_combination,
    combination_problem,
    needs_own_model,
)
from lightning_hier.strategies.virtual_workers.strategy import PlayingStrategy


class HierarchicalStrategy(PlayingStrategy):
    """Data-parallel training in two tiers: gradients inside groups, models across them.

    Args:
        group_size: workers of one group: a number, ``"node"`` (those of one host) or ``"world"``
            (all, one group). It must divide their number.
        gradient_sync: how gradients are averaged inside a group at every step: ``AllReduce()``,
            ``GTC(...)`` or ``CommHook(hook, state)``. None is ``AllReduce()``.
        block_sync: how the models of the groups are brought together after every block:
            ``ModelAveraging(...)``, ``BMUF(...)``, or None: never, which needs a single group.
        warmup_steps: first so many steps of every optimizer average gradients exactly over the
            whole world, as plain DDP; blocks begin after them. ``"auto"`` is a tenth of the run's
            steps, at most 500, and 500 where the length is not known; 0 in one group without
            compression, and where a warm-up can't be had.
        virtual_workers: workers that every rank plays in turns, each with its own residuals, random
            numbers and part of the data; those of different groups have models and optimizer
            states of their own. The run is, up to the order of additions, that on so many times as
            many ranks. It must divide the workers of a group, or be a multiple of them.
        on_nonfinite: what becomes of a group whose model, or optimizer state that travels with it,
            holds NaN or inf at a synchronisation. ``"error"``: one error on every rank, before any
            model is sent. ``"exclude"``: a warning; the mean is over the other groups, and this one
            starts the next block from it. A model that all ranks train, as in the warm-up or in a
            single group, is always an error.
        uneven_batches: what becomes of groups that run out of batches in an epoch before others.
            ``"error"``: one error on every rank that names ranks and counts, before training where
            the data have a length. ``"join"``: they take part in the remaining synchronisations of
            the epoch with their models as they are, at the weight of every model. Nothing may then
            validate, save or stop within an epoch, and a group needs equally many batches.
        timeout: limit of every collective, after which an error names the missing ranks.
        **ddp_kwargs: arguments of Lightning's ``DDPStrategy`` and torch's
            ``DistributedDataParallel``, such as ``find_unused_parameters``.

    Raises:
        ValueError: a value outside its range, or a combination that can't work.

    """

    strategy_name = "hierarchical"

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        gradient_sync: GradientSync | None = None,
        block_sync: BlockSync | None = None,
        warmup_steps: int | Auto = "auto",
        virtual_workers: int = 1,
        on_nonfinite: OnNonfinite = "error",
        uneven_batches: UnevenBatches = "error",
        timeout: timedelta | None = default_pg_timeout,
        **ddp_kwargs: Any,
    ) -> None:
        check_whole_or_auto("warmup_steps", warmup_steps, least=0)
        super().__init__(
            group_size=group_size,
            warmup_steps=0 if warmup_steps == "auto" else warmup_steps,
            virtual_workers=virtual_workers,
            timeout=timeout,
            **ddp_kwargs,
        )
        checks.check_synchronisations(gradient_sync, block_sync, self._ddp_kwargs)
        self._asked = Synchronisation(warmup_steps, gradient_sync or AllReduce(), block_sync)
        self.gradient_sync: GradientSync = self._asked.gradient_sync
        self.block_sync = block_sync
        check_choice("on_nonfinite", on_nonfinite, get_args(OnNonfinite))
        self.on_nonfinite: OnNonfinite = on_nonfinite
        check_choice("uneven_batches", uneven_batches, get_args(UnevenBatches))
        self.uneven_batches: UnevenBatches = uneven_batches
        check_combination(self)

    @override
    def _settings(self) -> dict[str, Any]:
        fitting = self._session is not None
        return {
            "warmup_steps": self.warmup_steps if fitting else self._asked.warmup_steps,
            "gradient_sync": self.gradient_sync,
            "block_sync": self.block_sync,
            "on_nonfinite": self.on_nonfinite,
            "uneven_batches": self.uneven_batches,
        }

    @override
    def _problem(self) -> str | None:
        return combination_problem(self, self._casting) or checks.layout_problem(
            self._group_size(), self._all_workers, self.block_sync
        )

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        self._require_same_start()
        fitting = trainer.state.fn == TrainerFn.FITTING
        if fitting:
            checks.check_run(trainer)
            if self.uneven_batches == "join":
                raise_everywhere(join_trainer_problem(trainer), self.root_device)
            if self._layer_sync is not None:
                self._layer_sync = GroupSyncBatchNorm(self.communicators.group.group)
        super().setup(trainer)
        if fitting:
            session = self._fit_session
            session.begin(
                trainer,
                self._module,
                self.optimizers,
                self.block_sync,
                one_host=self._on_one_host,
                on_nonfinite=self.on_nonfinite,
                scaler=self._scaler,
            )
            session.training.synchroniser.on_warm = self._wrap
            first = session.training.callbacks(join=self.uneven_batches == "join")
            last = [*self._watching(), session.training.termination]
            session.at_end(surround_callbacks(trainer, first, last))
            session.at_end(show_in_progress_bar(trainer, self.traffic, self._place_in_block))

    @override
    def configure_ddp(self) -> None:
        trainer, warms_up = self._module.trainer, self._warms_up()
        self._session = session = FitSession(trainer, self.communicators, self.virtual_workers)
        self._ended = None
        used = resolved_for_run(self._asked, self._resumed_numbers, trainer, warms_up=warms_up)
        self.warmup_steps, self.gradient_sync = int(used.warmup_steps), used.gradient_sync
        self.block_sync = used.block_sync
        session.reduce(self.warmup_steps, self.gradient_sync, self._grad_scale)
        share_initial_model(self._module, self.communicators)
        self._wrap()

    def _warms_up(self) -> bool:
        """Whether a warm-up does anything, and can be had."""
        alone = self.worker_layout.sizes[1] == 1 and not isinstance(self.gradient_sync, GTC)
        shares = self.virtual_workers == 1 or not needs_own_model(self._module.trainer)
        return not alone and self._all_workers > 1 and self.uneven_batches == "error" and shares

    @override
    def _wrap(self) -> None:
        session = self._fit_session
        warming, self.model = session.warming, self._module
        ranks = session.reduction.ranks_of_ddp(warming=warming)
        if ranks is not None:
            self._ddp_kwargs["process_group"] = ranks.group
            # DDP copies the model in a stream of its own: after the optimizer's kernels, and before
            # the next step.
            self._wait_for_kernels()
            self.model = self._setup_model(self._module)
            self._wait_for_kernels()
        session.reduction.attach(self.model, warming=warming)

    def _wait_for_kernels(self) -> None:
        if self.root_device.type == "cuda":
            torch.cuda.synchronize(self.root_device)

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        session = self._fit_session
        session.training.synchroniser.admit_trainable()
        # A set is gone through faster than a module, which may have lost some of it.
        trained = session.training.synchroniser.trained.parameters
        if not session.reduction.suits(trained, warming=session.warming):
            self._wrap_if_changed()

    @override
    def on_train_start(self) -> None:
        super().on_train_start()
        self._fit_session.start()

    @override
    def _batches_problem(self, counts: Sequence[float]) -> str | None:
        if self.uneven_batches == "join":
            warming = self._fit_session.training.synchroniser.warming
            return join_problem(
                counts,
                group_size=self._group_size(),
                warmup_steps=self.warmup_steps if warming else 0,
                accumulated=self._module.trainer.accumulate_grad_batches,
            )
        problem = super()._batches_problem(counts)
        if problem is None or self.worker_layout.sizes[1] == 1 or self.virtual_workers > 1:
            return problem
        return f"{problem}, or pass uneven_batches='join'"

    @override
    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: pl.LightningModule | Module | None = None,
        **kwargs: Any,
    ) -> Any:
        """One step, and what it ends. A collective of the group, of the world at a block's end."""
        training = self._fit_session.training
        if self.virtual_workers == 1:
            training.synchroniser.before_step()
        index = self._index(optimizer)
        with training.raw_steps.counted(), training.stepping(index):
            output = super().optimizer_step(optimizer, closure, model, **kwargs)
        if training.played.models.is_last:
            training.after_step(index)
        return output

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Validate the module itself: DDP's wrapper would exchange buffers at every batch."""
        with self.precision_plugin.val_step_context():
            return self._module.validation_step(*args, **kwargs)

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        """State of the global model. A collective of the world during training."""
        session = self._session
        if session is None or not session.begun or session.training.synchroniser.shown:
            return super().lightning_module_state_dict()
        return session.training.global_state(super().lightning_module_state_dict)

    @override
    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        stay_at_exit()

    @override
    def teardown(self) -> None:
        if self._session is not None:
            self._session.close()
            self._ended = self._session  # for a checkpoint that is saved after training
        self._session = None
        self._resumed_numbers = {}
        self._ddp_kwargs.pop("process_group", None)
        super().teardown()

    def forget_groups(self) -> None:
        """Drop every reference to a process group, at the end of the process."""
        super().forget_groups()
        self._session = self._ended = None
        self._ddp_kwargs.pop("process_group", None)

    @override
    def metrics(self) -> dict[str, float]:
        found = self.traffic.metrics()
        return found | self._session.metrics() if self._session is not None else found

    @property
    @override
    def _families(self) -> Sequence[str]:
        gtc = ["gtc"] if isinstance(self.gradient_sync, GTC) else []
        return gtc if self.block_sync is None else [*gtc, "block"]

    def _place_in_block(self) -> str:
        steps = None if self.block_sync is None else self.block_sync.steps
        return place_in_block(self._fit_session.worker, steps, self.warmup_steps)

    @property
    def _scaler(self) -> Any:
        return getattr(self.precision_plugin, "scaler", None)

    def _grad_scale(self) -> float:
        return float(self._scaler.get_scale()) if self._scaler is not None else 1.0
