"""Mistakes that are found before training, on every rank alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from inspect import signature
from typing import Any

import lightning
import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, ModelPruning, Timer
from lightning.pytorch.strategies import DDPStrategy
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch.nn import Embedding, EmbeddingBag, Module
from torch.nn.parallel import DistributedDataParallel as DDP

from lightning_hier.algorithms.arguments import did_you_mean, is_number
from lightning_hier.comm.agreement import raise_everywhere, require_same
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.gradients.gradient_sync import GTC, GradientSync

# Arguments of DDPStrategy whose work the hierarchy does itself, and what to use instead.
_TAKEN: Mapping[str, str] = {
    "process_group": "group_size decides which ranks share a group",
    "ddp_comm_hook": "pass gradient_sync=CommHook(hook, state)",
    "ddp_comm_state": "pass gradient_sync=CommHook(hook, state)",
    "ddp_comm_wrapper": "wrap the hook that you pass as gradient_sync=CommHook(hook)",
    "model_averaging_period": "pass block_sync=ModelAveraging(block_size=...)",
    "delay_all_reduce_named_params": "it averages outside the hook, hence outside the group",
    "param_to_hook_all_reduce": "it averages outside the hook, hence outside the group",
    "mixed_precision": "use Trainer(precision=...)",
    "static_graph": (
        "DDP reduces the first step of such a graph in another way, which neither compression nor "
        "groups of one rank nor an exact resume can follow. Leave it out; parameters that a step "
        "does not use need find_unused_parameters=True, and activation checkpointing "
        "use_reentrant=False"
    ),
    "skip_all_reduce_unused_params": (
        "ranks of a group must all know when a step's last gradients come, and it leaves them out. "
        "Leave it out; find_unused_parameters=True works without it"
    ),
}


def without_taken(strategy: type[DDPStrategy], ddp_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for DDPStrategy; those that the hierarchy decides must be absent, None or False.

    The command line spells out every argument, with None for those that nobody set.

    Args:
        strategy: whose constructor has been called, for what it takes itself.
        ddp_kwargs: the arguments that are left for DDPStrategy.

    Raises:
        ValueError: one of them was set.
        TypeError: nobody knows the argument.

    """
    known = [*_TAKEN, *signature(DDPStrategy).parameters, *signature(DDP).parameters]
    own = [name for name in signature(strategy).parameters if name != "ddp_kwargs"]
    for name in ddp_kwargs:
        if name not in known:
            raise TypeError(
                f"{strategy.__name__} has no argument {name!r}{did_you_mean(name, [*own, *known])} "
                f"It takes {', '.join(own)}, and those of DDPStrategy and DistributedDataParallel"
            )
    for name, way_out in _TAKEN.items():
        value = ddp_kwargs.get(name)
        if value is not None and value is not False:
            raise ValueError(f"{name} can't be set, got {value!r}: {way_out}")
    return {name: value for name, value in ddp_kwargs.items() if name not in _TAKEN}


def check_synchronisations(
    gradient_sync: object, block_sync: object, ddp_kwargs: Mapping[str, Any]
) -> None:
    """Check what is to happen inside groups and across them.

    Args:
        gradient_sync: inside groups.
        block_sync: across them.
        ddp_kwargs: arguments for DDP.

    Raises:
        ValueError: it is nothing that a strategy can do.

    """
    if gradient_sync is not None and not isinstance(gradient_sync, GradientSync):
        raise ValueError(
            f"gradient_sync must be AllReduce(), GTC(...) or CommHook(...), got {gradient_sync!r}"
        )
    views = ddp_kwargs.get("gradient_as_bucket_view") and ddp_kwargs.get("find_unused_parameters")
    if views and isinstance(gradient_sync, GTC):
        raise ValueError(
            "gradient_as_bucket_view=True can't be combined with GTC and "
            "find_unused_parameters=True: GTC works in DDP's buckets, where the gradients of "
            "another optimizer would lie. Leave out gradient_as_bucket_view."
        )
    if block_sync is not None and not isinstance(block_sync, BlockSync):
        raise ValueError(
            "block_sync must be None, ModelAveraging(...), BMUF(...) or BMUFAdam(...), got "
            f"{block_sync!r}"
        )


def check_group_size(group_size: object) -> None:
    """Check the size of a group.

    Raises:
        ValueError: it is none.

    """
    sizes = ("node", "world")
    if group_size not in sizes and not (
        is_number(group_size) and isinstance(group_size, int) and group_size >= 1
    ):
        raise ValueError(
            f"group_size must be 'node', 'world' or a whole number of at least 1, got "
            f"{group_size!r}"
        )


def check_timeout(timeout: object) -> None:
    """Check the limit of every wait.

    Raises:
        ValueError: it is no length of time above 0, nor None.

    """
    if timeout is not None and not (isinstance(timeout, timedelta) and timeout > timedelta(0)):
        raise ValueError(
            "timeout must be a datetime.timedelta above 0, as timedelta(seconds=60), or None for "
            f"torch's default, got {timeout!r}"
        )


def layout_problem(group_size: int, workers: int, block_sync: BlockSync | None) -> str | None:
    """What about groups that divide the workers can't be trained, or None."""
    groups = workers // group_size
    if block_sync is not None:
        try:
            block_sync.filter_for(groups)
        except ValueError as error:
            return str(error)
    elif groups > 1:
        return (
            f"block_sync=None needs one group of all ranks, but groups of {group_size} make "
            f"{groups} groups that would never meet: pass block_sync=BMUF(...) or "
            "ModelAveraging(...), or group_size='world'"
        )
    return None


def check_run(trainer: pl.Trainer) -> None:
    """Check model and Trainer. A collective of the world: every rank must call it.

    Args:
        trainer: about to fit.

    Raises:
        ValueError: on every rank, what any rank objects to.

    """
    device = trainer.strategy.root_device
    problem = module_problem(trainer.lightning_module) or trainer_problem(trainer)
    raise_everywhere(problem, device)
    require_same(trainer_settings(trainer), device)
    warn_of_coupling(trainer)


def module_problem(module: Module) -> str | None:
    """What about the model can't be trained, or None."""
    sparse = [
        name
        for name, child in module.named_modules()
        if isinstance(child, (Embedding, EmbeddingBag)) and child.sparse
    ]
    if sparse:
        return (
            f"sparse gradients are not supported, and {', '.join(sparse)} has sparse=True: set "
            "sparse=False (GTC sends few elements of a dense gradient anyway)"
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return "the model has no trainable parameter: nothing to synchronise"
    return None


def trainer_problem(trainer: pl.Trainer) -> str | None:
    """What about the Trainer can't be combined with several ranks, or None."""
    seconds = trainer._val_check_time_interval  # type: ignore[attr-defined]
    if seconds is not None and trainer.world_size > 1:
        return (
            f"val_check_interval of {seconds:g} s can't be combined with "
            "several ranks: each would validate when its own clock says so, and they must validate "
            "at the same step. Give it as a number of batches or a part of an epoch."
        )
    # One model that all ranks train at every step is what a hook may write into at any time.
    one_model = getattr(trainer.strategy, "block_sync", trainer) is None
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        resets = isinstance(callback, ModelPruning) and callback._use_lottery_ticket_hypothesis
        if resets and not one_model:
            return (
                f"{type(callback).__name__} can't set weights back at the end of an epoch "
                "(use_lottery_ticket_hypothesis, which is on by default): the module holds the "
                "global model then, and training goes on from another one. Pass "
                "use_lottery_ticket_hypothesis=False."
            )
    return None


def warn_of_coupling(trainer: pl.Trainer) -> None:
    """Warn of callbacks that make all ranks wait for each other at every batch."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Timer) and callback._interval == "step":
            rank_zero_warn(
                "Trainer(max_time=...) asks all ranks at every step whether time is up, so groups "
                "wait for each other within blocks. Use callbacks=[Timer(..., interval='epoch')]."
            )
        if isinstance(callback, ModelCheckpoint) and callback._train_time_interval is not None:
            rank_zero_warn(
                "ModelCheckpoint(train_time_interval=...) asks all ranks at every step whether to "
                "save, so groups wait for each other within blocks. Use every_n_train_steps."
            )


def trainer_settings(trainer: pl.Trainer) -> dict[str, Any]:
    """Settings of the Trainer that must not differ between ranks."""
    return {
        "precision": str(trainer.precision),
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "max_epochs": trainer.max_epochs,
        "max_steps": trainer.max_steps,
        "gradient_clip_val": trainer.gradient_clip_val,
        "torch": torch.__version__,
        "lightning": lightning.__version__,
    }


def model_settings(module: Module) -> dict[str, Any]:
    """What must not differ between ranks about the model, before anything of it is sent."""
    settings: dict[str, Any] = {}
    for name, parameter in module.named_parameters():
        frozen = "" if parameter.requires_grad else " frozen"
        settings[f"parameter {name}"] = f"{tuple(parameter.shape)} {parameter.dtype}{frozen}"
    for name, buffer in module.named_buffers():
        settings[f"buffer {name}"] = f"{tuple(buffer.shape)} {buffer.dtype}"
    return settings


def optimizer_problem(
    optimizers: Sequence[torch.optim.Optimizer], block_sync: BlockSync | None
) -> str | None:
    """What about the optimizers can't be combined with the block synchronisation, or None."""
    if block_sync is None:
        return None
    objections = (block_sync.objection(optimizer) for optimizer in optimizers)
    return next((one for one in objections if one is not None), None)


def warn_of_optimizers(
    optimizers: Sequence[torch.optim.Optimizer],
    gradient_sync: GradientSync | None,
    block_sync: BlockSync | None,
    num_models: int,
) -> None:
    """Warn once of optimizers whose settings work, but not well.

    Args:
        optimizers: of the module.
        gradient_sync: inside groups; None where a group has one worker, which sends nothing.
        block_sync: across groups.
        num_models: groups.

    """
    found: list[str | None] = []
    for optimizer in optimizers:
        if gradient_sync is not None:
            found.append(gradient_sync.advice(optimizer))
        if block_sync is not None and num_models > 1:
            found.append(block_sync.advice(optimizer, num_models))
    # Optimizers of one kind may be advised the same, or, as by their betas, differently.
    for advice in filter(None, dict.fromkeys(found)):
        rank_zero_warn(advice)


def log_choices(
    optimizers: Sequence[torch.optim.Optimizer], block_sync: BlockSync | None, num_models: int
) -> None:
    """Log once what ``"auto"`` has chosen for the optimizers."""
    if block_sync is None:
        return
    for choice in filter(None, {block_sync.chosen(own, num_models) for own in optimizers}):
        rank_zero_info(choice)


def optimizer_settings(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    """What must not differ between ranks about the optimizers."""
    return {"optimizers": [type(one).__name__ for one in optimizers]}
