"""The strategy that composes a gradient synchronisation in groups with a block synchronisation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch.distributed.constants import default_pg_timeout
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.callbacks.metrics import HierarchyMetrics
from lightning_hier.comm.agreement import raise_everywhere, require_same
from lightning_hier.comm.block_sync import BlockSync
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.carriers import fewest_network_cards
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradient_hook import GradientHook, gradient_hook
from lightning_hier.comm.gradient_sync import AllReduce, GradientSync
from lightning_hier.comm.reached import ReachedParameters
from lightning_hier.comm.reducers import build_hook
from lightning_hier.comm.synchroniser import Synchroniser
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.comm.traffic import Traffic
from lightning_hier.comm.worker import Worker
from lightning_hier.strategies import checks
from lightning_hier.strategies.group_batchnorm import GroupSyncBatchNorm
from lightning_hier.strategies.lifecycle import GlobalModelLifecycle, surround_callbacks
from lightning_hier.strategies.sigterm import QuietTermination
from lightning_hier.strategies.validation import IsolatedValidation

GroupSize = int | Literal["node", "world"]


class HierarchicalStrategy(DDPStrategy):
    """Data-parallel training in two tiers: gradients inside groups, models across them.

    Args:
        group_size: ranks of one group: a number, ``"node"`` (the devices of one host) or
            ``"world"`` (all ranks, one group). It must divide the number of ranks.
        gradient_sync: how gradients are averaged inside a group at every step: ``AllReduce()``,
            ``GTC(...)`` or ``CommHook(hook=..., state=...)``. None is ``AllReduce()``.
        block_sync: how the models of the groups are brought together after every block:
            ``ModelAveraging(...)``, ``BMUF(...)``, or None: never, which needs a single group.
        warmup_steps: first so many steps of every optimizer average gradients exactly over the
            whole world; blocks begin after them.
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
        warmup_steps: int = 0,
        timeout: timedelta | None = default_pg_timeout,
        **ddp_kwargs: Any,
    ) -> None:
        # The command line's parser follows **ddp_kwargs only where the name itself is passed on.
        ddp_kwargs = checks.without_taken(ddp_kwargs)
        super().__init__(timeout=timeout, **ddp_kwargs)
        checks.check_arguments(group_size, gradient_sync, block_sync, warmup_steps)
        self.group_size: GroupSize = group_size
        self.gradient_sync: GradientSync = gradient_sync or AllReduce()
        self.block_sync = block_sync
        self.warmup_steps = warmup_steps
        self.traffic = Traffic()
        self._communicators: Communicators | None = None
        self._synchroniser: Synchroniser | None = None
        self._worker: Worker | None = None
        self._hook: GradientHook | None = None
        self._termination: QuietTermination | None = None
        self._at_teardown = ExitStack()

    @property
    def communicators(self) -> Communicators:
        """Process groups and rank layout; there once the environment has been set up."""
        if self._communicators is None:
            raise RuntimeError("the process groups are made when the Trainer starts to run")
        return self._communicators

    @property
    def layout(self) -> RankLayout:
        """Which rank is in which group."""
        return self.communicators.layout

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        if self._communicators is not None:
            return  # a Trainer that validates or tests after fitting keeps its process groups
        ranks = self._ranks_per_group()
        problem = checks.layout_problem(ranks, self.world_size, self.block_sync)
        raise_everywhere(problem, self.root_device)
        settings = {
            "strategy": type(self).__name__,
            "group_size": ranks,
            "gradient_sync": repr(self.gradient_sync),
            "block_sync": repr(self.block_sync),
            "warmup_steps": self.warmup_steps,
        }
        require_same(settings, self.root_device)
        self._communicators = Communicators.build(
            RankLayout.two_tiers(ranks, self.world_size),
            device=self.root_device,
            timeout=self._timeout or default_pg_timeout,
            traffic=self.traffic,
        )

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        fitting = trainer.state.fn == TrainerFn.FITTING
        if fitting:
            checks.check_run(trainer, static_graph=bool(self._ddp_kwargs.get("static_graph")))
            if self._layer_sync is not None:
                self._layer_sync = GroupSyncBatchNorm(self.communicators.group.group)
        super().setup(trainer)
        if fitting:
            self._start(trainer)

    @override
    def configure_ddp(self) -> None:
        module = self.lightning_module
        assert module is not None  # noqa: S101 - connected before set-up
        require_same(checks.model_settings(module), self.root_device)
        # DDP equalises the ranks of a group only.
        with torch.no_grad():
            tensors = [*module.parameters(), *module.buffers()]
            broadcast_tensors_(tensors, self.communicators.world, "initial_model")
        self._worker = Worker()
        super().configure_ddp()

    @override
    def _setup_model(self, model: Module) -> DistributedDataParallel:
        self._ddp_kwargs["process_group"] = self.communicators.group.group
        return super()._setup_model(model)

    @override
    def _register_ddp_hooks(self) -> None:
        # Lightning's own method registers hooks on CUDA only.
        if not isinstance(self.model, DistributedDataParallel):
            raise TypeError(f"expected a model wrapped in DDP, got {type(self.model).__name__}")
        assert self._worker is not None  # noqa: S101 - made just before
        if self._hook is not None:
            self._hook.close()
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        find_unused = bool(self._ddp_kwargs.get("find_unused_parameters"))
        self._hook = build_hook(
            self.gradient_sync,
            self.communicators,
            self._worker,
            warming=self._synchroniser.warming if self._synchroniser else self.warmup_steps > 0,
            grad_scale=self._grad_scale,
            reached=ReachedParameters(parameters) if find_unused else None,
        )
        self._at_teardown.callback(self._hook.close)
        self.model.register_comm_hook(self._hook, gradient_hook)

    def _start(self, trainer: pl.Trainer) -> None:
        """Attach the synchroniser and the callbacks to a Trainer that is about to fit."""
        module = self.lightning_module
        assert module is not None and self._worker is not None  # noqa: S101 - set by now
        require_same(checks.optimizer_settings(self.optimizers), self.root_device)
        self._worker.count_optimizers(len(self.optimizers))
        self._synchroniser = Synchroniser(
            module,
            self.optimizers,
            self.block_sync,
            communicators=self.communicators,
            worker=self._worker,
            warmup_steps=self.warmup_steps,
            cards=None if self.num_nodes == 1 else fewest_network_cards(self.root_device),
        )
        self._synchroniser.on_warm = self._end_warm_up
        self._termination = QuietTermination(trainer, self._synchroniser.note_termination)
        for change in (self._termination, IsolatedValidation(trainer, self.root_device)):
            change.install()
            self._at_teardown.callback(change.remove)
        lifecycle = GlobalModelLifecycle(self._synchroniser)
        surround_callbacks(trainer, lifecycle, HierarchyMetrics(self))

    @override
    def on_train_start(self) -> None:
        super().on_train_start()
        batches = self.lightning_module.trainer.num_training_batches  # type: ignore[union-attr]
        require_same({"number of training batches": str(batches)}, self.root_device)

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        if self._synchroniser is not None and self._synchroniser.admit_trainable():
            # DDP leaves parameters for ever alone that were frozen when it was made.
            self.model = self.lightning_module
            super().configure_ddp()

    def _end_warm_up(self) -> None:
        if self._hook is not None:
            self._hook.end_warm_up()

    @override
    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: pl.LightningModule | Module | None = None,
        **kwargs: Any,
    ) -> Any:
        """One step, then, if it ends a block, the synchronisation of models.

        A collective of the group, and of the world at the end of a block.
        """
        if self._synchroniser is None:
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        self._synchroniser.before_step()
        output = super().optimizer_step(optimizer, closure, model, **kwargs)
        self._synchroniser.after_step(self._index(optimizer))
        self._stop_if_agreed()
        return output

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Validate the module itself, which holds the global model.

        Through DDP's wrapper every batch would exchange buffers in the group, and the next training
        step would leave that out.
        """
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*args, **kwargs)  # type: ignore[union-attr]

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        """State of the global model. A collective of the world during training."""
        synchroniser = self._synchroniser
        if synchroniser is None or synchroniser.shown:
            return super().lightning_module_state_dict()
        synchroniser.show()
        state = super().lightning_module_state_dict()
        if synchroniser.shown:
            # The module is about to hold the local model again.
            state = {
                name: value.detach().clone() if isinstance(value, torch.Tensor) else value
                for name, value in state.items()
            }
            synchroniser.hide()
        return state

    @override
    def teardown(self) -> None:
        self._at_teardown.close()
        self._termination = None
        self._synchroniser = None
        self._ddp_kwargs.pop("process_group", None)
        super().teardown()

    def metrics(self) -> dict[str, float]:
        """Everything that is counted, under the names by which it is logged.

        Of this rank; no communication.
        """
        found = self.traffic.metrics()
        if self._hook is not None:
            found |= self._hook.metrics()
        if self._synchroniser is not None:
            found |= self._synchroniser.metrics()
        return found

    def _index(self, optimizer: Optimizer) -> int:
        inner = getattr(optimizer, "_optimizer", optimizer)
        return next(i for i, own in enumerate(self.optimizers) if own in (inner, optimizer))

    def _grad_scale(self) -> float:
        scaler = getattr(self.precision_plugin, "scaler", None)
        return float(scaler.get_scale()) if scaler is not None else 1.0

    def _ranks_per_group(self) -> int:
        if self.group_size == "node":
            return self.num_processes
        return self.world_size if self.group_size == "world" else self.group_size

    def _stop_if_agreed(self) -> None:
        if self._synchroniser and self._synchroniser.agreed_to_terminate and self._termination:
            self._termination.stop()
