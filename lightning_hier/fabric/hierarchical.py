"""The strategy of Fabric: wraps modules over groups, and attaches the engine to them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.strategy import _BackwardSyncControl
from torch import Tensor
from torch.distributed.constants import default_pg_timeout
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.algorithms.arguments import check_flag, check_whole, check_whole_or_auto
from lightning_hier.algorithms.automatic import Auto
from lightning_hier.comm.agreement import broadcast_json, gather_json, raise_everywhere
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.gloo_connections import recorded_connections
from lightning_hier.comm.gradients.gradient_sync import AllReduce, GradientSync
from lightning_hier.comm.progress_record import naming_missing
from lightning_hier.comm.sharded_tensors import is_sharded
from lightning_hier.comm.tiers import GroupSize
from lightning_hier.fabric.checkpoints import load_blocks, save_blocks, section_of_run
from lightning_hier.loop.attach import attach
from lightning_hier.loop.blocks import Blocks
from lightning_hier.loop.groups import Groups
from lightning_hier.loop.initial_model import require_same_tensors
from lightning_hier.loop.settings import check_group_size, check_synchronisations, check_timeout
from lightning_hier.loop.wrapping import without_ddp
from lightning_hier.membership.torchft import TorchFT
from lightning_hier.strategies import launch
from lightning_hier.strategies.arguments import without_taken
from lightning_hier.strategies.checkpoints.atomic_io import atomic
from lightning_hier.strategies.checkpoints.rank_files import LOADING, SAVING, SECTION


class HierarchicalStrategy(DDPStrategy):
    """Data-parallel training in two tiers, for :class:`~lightning.fabric.Fabric`.

    ``fabric.setup(module, optimizer)`` wraps a module over its group and attaches the engine to it.
    Each ``optimizer.step()`` is a step, which every rank must take. :meth:`global_model` is the
    context for validation, and :meth:`finish` ends training.

    Args:
        group_size: ranks of a group: a number, ``"node"`` (the ranks of one host) or ``"world"``
            (one group of all ranks). It must divide the number of ranks.
        gradient_sync: gradient synchronisation inside a group at every step: ``AllReduce()``,
            ``GTC(...)`` or ``CommHook(hook, state)``. None is ``AllReduce()``.
        block_sync: synchronisation of the groups' models after every block:
            ``ModelAveraging(...)``, ``BMUF(...)``, ``BMUFAdam(...)``, ``DiLoCo(...)``, or None with
            a single group.
        warmup_steps: number of first steps in which the gradients of every optimizer are averaged
            exactly over the world. ``"auto"`` is a tenth of ``total_steps``, at most 500, or 50 if
            it is unknown.
        total_steps: steps of the run, from which ``"auto"`` values follow.
        membership: ``TorchFT(...)`` if groups come and go. Every group is then a job of its own,
            and all its ranks are one group, whatever ``group_size`` is.
        offload_outer_state: whether the state of outer steps lies in the memory of the host.
        timeout: time limit of every collective, after which an error names the missing ranks.
        **ddp_kwargs: arguments of Fabric's ``DDPStrategy`` and torch's
            ``DistributedDataParallel``, such as ``find_unused_parameters``.

    Attributes:
        groups: groups of the ranks, after ``fabric.launch()``. A module that is divided by
            ``fully_shard(module, mesh=fabric.strategy.groups.mesh["group"])`` before
            ``fabric.setup`` is not wrapped.
        settings: arguments of :func:`lightning_hier.attach`.

    Raises:
        ValueError: a value is outside its range, or values cannot be combined.

    """

    strategy_name = "hierarchical"
    groups: Groups

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        gradient_sync: GradientSync | None = None,
        block_sync: BlockSync | None = None,
        warmup_steps: int | Auto = "auto",
        total_steps: int | None = None,
        membership: TorchFT | None = None,
        offload_outer_state: bool = False,
        timeout: timedelta | None = default_pg_timeout,
        **ddp_kwargs: Any,
    ) -> None:
        check_group_size(group_size)
        check_timeout(timeout)
        check_whole_or_auto("warmup_steps", warmup_steps, least=0)
        check_flag("offload_outer_state", offload_outer_state)
        if total_steps is not None:
            check_whole("total_steps", total_steps)
        for_lightning = without_taken(type(self), ddp_kwargs, DDPStrategy)
        check_synchronisations(gradient_sync, block_sync, for_lightning)
        if block_sync is not None and block_sync.weighting == "samples":
            raise ValueError(
                "weighting='samples' can't be used with Fabric, which does not know the samples of "
                "a step: use a plain loop with blocks.step(samples=...), or a Trainer"
            )
        super().__init__(timeout=timeout, **for_lightning)
        self._backward_sync_control = _NoSyncOfDDP()
        self._group_size: GroupSize = "world" if membership else group_size
        self._limit, self._membership = timeout, membership
        self._has_hook = not isinstance(gradient_sync, AllReduce | None)
        self.settings: dict[str, Any] = {
            "gradient_sync": gradient_sync,
            "block_sync": block_sync,
            "warmup_steps": warmup_steps,
            "total_steps": total_steps,
            "membership": membership,
            "offload_outer_state": offload_outer_state,
        }
        self._attached: list[_Attached] = []
        self._ended = False

    @override
    def setup_environment(self) -> None:
        """Create the process group of the world, and those of the tiers. A collective of it."""
        with recorded_connections():
            super().setup_environment()
        launch.unbind_from_device()  # before the first process group of this package
        _show_automatic_values()
        self.groups = Groups(self._group_size, timeout=self._limit, device=self.root_device)

    @property
    @override
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        in_job = super().distributed_sampler_kwargs
        if self._membership is None:
            return in_job
        ranks = in_job["num_replicas"]  # every job has so many
        first = self._membership.group * ranks
        return {"num_replicas": self._membership.groups * ranks, "rank": first + in_job["rank"]}

    @override
    def setup_module_and_optimizers(
        self, module: Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[Module, list[Optimizer], Any]:
        """Wrap a module over its group, and attach the engine. A collective of the world."""
        if self._ended:  # another training in the same process, such as the next fold
            self._attached.clear()
            self._ended = False
        size = self.groups.communicators.group.size
        wrapped = module
        if not is_sharded(module) and (size > 1 or self._has_hook):
            # First, because DDP compares the ranks of a group alone, and names none of them.
            require_same_tensors(module, self.root_device)
            wrapped = DistributedDataParallel(
                module,
                device_ids=None if self.root_device.index is None else [self.root_device.index],
                process_group=self.groups.group,
                **self._ddp_kwargs,
            )
        scaler = getattr(self.precision, "scaler", None)
        blocks = attach(
            wrapped, optimizers, groups=self.groups, grad_scaler=scaler, **self.settings
        )
        self._attached.append(_Attached(module, optimizers, blocks))
        return wrapped, optimizers, scheduler

    @override
    def setup_module(self, module: Module) -> Module:  # type: ignore[override]
        """Take a module without trainable parameters as it is.

        Raises:
            ValueError: it has trainable parameters, which nothing would synchronise.

        """
        if any(parameter.requires_grad for parameter in module.parameters()):
            raise ValueError(
                f"{type(module).__name__} has trainable parameters: pass it with its optimizers, "
                "as in fabric.setup(model, optimizer), or freeze it by model.requires_grad_(False)"
            )
        return module

    @override
    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        raise ValueError(
            "module and optimizers are set up together, because their models are synchronised by "
            "optimizer: fabric.setup(model, optimizer). A module that fully_shard divides is "
            "divided before, with mesh=fabric.strategy.groups.mesh['group']"
        )

    @override
    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        """Step, count it, and synchronise what is due. A collective of the world at a block's end.

        It is counted also where loss scaling skips the update.

        Raises:
            RuntimeError: the optimizer is one of an earlier training, which has ended.

        """
        attached = self._attached_of(optimizer)
        if attached is None:
            raise RuntimeError(
                f"{type(optimizer).__name__} steps after finish(), which ended its training: set "
                "it up anew with its module to train on"
            )
        output = super().optimizer_step(optimizer, **kwargs)
        attached.blocks.step(optimizer)
        return output

    @property
    def blocks(self) -> list[Blocks]:
        """The blocks of each module, in the order of ``fabric.setup``, with traffic and metrics."""
        return [attached.blocks for attached in self._attached]

    @contextmanager
    def global_model(self) -> Iterator[None]:
        """Context in which all modules contain the global model, for validation.

        A collective of the world at its entry. Afterwards training continues bit for bit as without
        it. See :meth:`lightning_hier.Blocks.global_model`.
        """
        with ExitStack() as contexts:
            for blocks in self.blocks:
                contexts.enter_context(blocks.global_model())
            yield

    def finish(self) -> None:
        """Synchronise the last, short block. The modules keep the global model, and training ends.

        A collective of the world.
        """
        for blocks in self.blocks:
            blocks.finish()
        self._ended = True

    @override
    def save_checkpoint(
        self,
        path: str | Path,
        state: dict[str, Any],
        storage_options: Any | None = None,
        filter: dict[str, Callable[[str, Any], bool]] | None = None,
    ) -> None:
        """Save a checkpoint with the global model, and the state of all ranks beside it.

        A collective of the world. The state of optimizers is that of rank 0.

        Raises:
            OSError: on every rank, if rank 0 could not write.

        """
        files, blocks = None, self.blocks
        if blocks:
            files = save_blocks(blocks, path, self.root_device)
            # Of every rank: a group skips a step by itself, and changes its loss scale alone.
            scales = gather_json(self.precision.state_dict(), self.root_device, place=SAVING)
            section = section_of_run(files, blocks) | {"precision": scales}
            path, state = files.checkpoint, {**state, SECTION: section}
        with self.global_model(), raise_everywhere(self.root_device, error=OSError, place=SAVING):
            super().save_checkpoint(path, state, storage_options, filter)
        if files is not None and self.local_rank == 0:
            files.remove_others(None)

    @override
    def load_checkpoint(
        self,
        path: str | Path,
        state: Any = None,
        strict: bool = True,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Load a checkpoint, by default with ``weights_only=True``. A collective of the world.

        If it was saved with this strategy, the modules and optimizers that were set up continue its
        run: bit for bit with the same groups, otherwise from the global model. With any other
        checkpoint, training starts from its model and optimizers.

        Raises:
            RuntimeError: training has begun, and the checkpoint is of another strategy.

        """
        read = partial(
            super().load_checkpoint,
            path,
            strict=strict,
            weights_only=True if weights_only is None else weights_only,
        )
        if not isinstance(state, dict) or not state:
            with self._starting_from(path, [state]):
                return read(state)
        attached = {key: own for key, own in state.items() if self._attached_of(own)}
        others = {key: own for key, own in state.items() if key not in attached}
        with raise_everywhere(self.root_device, error=OSError, place=LOADING):
            checkpoint = read(others)
        state.update(others)
        section = checkpoint.pop(SECTION, None)
        saved = {key: checkpoint.pop(key) for key in attached if key in checkpoint}
        if strict and (missing := attached.keys() - saved.keys()):
            raise KeyError(f"the checkpoint {path} has no entry {min(missing)!r}")
        if section is not None and "modules" in section and attached:  # otherwise of a Trainer
            load_blocks(self.blocks, path, section, self.root_device)
            if own := section["precision"][self.global_rank % len(section["precision"])]:
                self.precision.load_state_dict(own)
            return checkpoint
        with self._starting_from(path, attached.values()):
            for key, value in saved.items():
                if isinstance(attached[key], Module):
                    self.load_module_state_dict(attached[key], value, strict)
                else:
                    attached[key].load_state_dict(value)
        return checkpoint

    @override
    def get_module_state_dict(self, module: Module) -> dict[str, Any]:
        """The state of a module, whole if it is divided. A collective of the group then."""
        state = super().get_module_state_dict(module)
        if not is_sharded(module):
            return state
        return {
            name: value.full_tensor().cpu() if isinstance(value, DTensor) else value
            for name, value in state.items()
        }

    @override
    def get_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state of an optimizer of this rank. Empty for divided modules: blocks have it."""
        attached = self._attached_of(optimizer)
        if attached is not None and is_sharded(attached.module):
            return {}
        return super().get_optimizer_state(optimizer)

    @property
    @override
    def checkpoint_io(self) -> CheckpointIO:
        """The plugin that writes checkpoints: by default one whose files are complete or absent."""
        self._checkpoint_io = io = atomic(self._checkpoint_io)
        return io

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    @override
    def barrier(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        with naming_missing(f"the barrier {name!r}" if name else "a barrier"):
            super().barrier(name)

    @override
    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the value of rank ``src``, which JSON must represent. Paths become text."""
        return broadcast_json(obj, src, self.root_device)

    @override
    def all_reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        with naming_missing("a reduction over all ranks", group):
            return super().all_reduce(tensor, group, reduce_op)

    @override
    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        with naming_missing("a gather from all ranks", group):
            return super().all_gather(tensor, group, sync_grads)

    def _attached_of(self, value: object) -> _Attached | None:
        """The module with its optimizers to which a module or an optimizer belongs, if any."""
        return next((attached for attached in self._attached if attached.has(value)), None)

    @contextmanager
    def _starting_from(self, path: str | Path, values: Iterable[object]) -> Iterator[None]:
        """Context in which ``values`` are loaded, from which training starts.

        Raises:
            RuntimeError: they have been trained, so that blocks have started.

        """
        owners = [attached for attached in map(self._attached_of, values) if attached is not None]
        for attached in owners:
            if attached.blocks.steps:
                raise RuntimeError(
                    f"{path} was not saved by this strategy together with its run, and can't be "
                    f"loaded after {attached.blocks.steps} steps: load it before training"
                )
        yield
        for attached in owners:  # otherwise frozen parameters would seem written, and be averaged
            attached.blocks._engine.synchroniser.trained.note_frozen()


@dataclass(frozen=True)
class _Attached:
    """A module that was set up, with its optimizers and blocks."""

    module: Module
    optimizers: Sequence[Optimizer]
    blocks: Blocks

    def has(self, value: object) -> bool:
        """Whether ``value`` is the module, perhaps wrapped, or one of the optimizers."""
        if isinstance(value, Module):
            return without_ddp(value) is self.module
        return any(value is optimizer for optimizer in self.optimizers)


class _NoSyncOfDDP(_BackwardSyncControl):
    """Accumulates gradients without averages, where DDP would average them."""

    @override
    def no_backward_sync(self, module: Module, enabled: bool) -> AbstractContextManager[None]:
        # Groups of one rank have no DDP, and FSDP2 averages in each backward pass.
        if enabled and isinstance(module, DistributedDataParallel):
            return module.no_sync()
        return nullcontext()


def _show_automatic_values() -> None:
    """Show what the engine logs, as Lightning shows its own lines, unless the user decides."""
    log = logging.getLogger("lightning_hier")
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())
