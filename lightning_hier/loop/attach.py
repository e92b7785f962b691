"""Attaches the engine to the module and optimizers of a plain loop."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.algorithms.arguments import check_flag, check_whole, check_whole_or_auto
from lightning_hier.algorithms.automatic import Auto
from lightning_hier.comm.agreement import raise_everywhere, require_same
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.shard_placement import fewest_nics
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gradient_sync import AllReduce, GradientSync
from lightning_hier.comm.gradients.reduction import Reduction
from lightning_hier.comm.progress_record import name_missing_at_exit
from lightning_hier.comm.sharded_tensors import is_sharded
from lightning_hier.loop.blocks import Blocks
from lightning_hier.loop.elastic import ElasticLoop, check_elastic
from lightning_hier.loop.engine import Engine
from lightning_hier.loop.groups import Groups
from lightning_hier.loop.initial_model import share_initial_model
from lightning_hier.loop.optimizer_checks import (
    advice,
    check_averaged,
    check_inside,
    require_same_optimizers,
)
from lightning_hier.loop.settings import (
    Synchronisation,
    check_groups,
    check_synchronisations,
    described,
    resolved_for_run,
)
from lightning_hier.loop.wrapping import (
    check_wrapping,
    inner_optimizer,
    without_compile,
    without_ddp,
)
from lightning_hier.membership.torchft import TorchFT, check_delay, check_one_optimizer

_log = logging.getLogger("lightning_hier")


def attach(
    model: Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    groups: Groups | None = None,
    block_sync: BlockSync | None = None,
    gradient_sync: GradientSync | None = None,
    warmup_steps: int | Auto = "auto",
    total_steps: int | None = None,
    grad_scaler: Any = None,
    membership: TorchFT | None = None,
    offload_outer_state: bool = False,
) -> Blocks:
    """Synchronise the models of a loop across groups, and its gradients inside them.

    A collective of the world: every rank must call it. All ranks get the model of rank 0, in place.
    Model and optimizers are not wrapped or replaced: the loop calls ``blocks.step()`` behind the
    steps of its optimizers.

    Args:
        model: module of this rank: DDP over ``groups.group``, divided by
            ``fully_shard(model, mesh=groups.mesh["group"])``, or the bare module in groups of one
            rank. DDP over the world is taken as well: its hook then averages in the group alone.
        optimizer: the optimizer, or all optimizers, of the module. Each has its own block.
        groups: groups of the ranks. None is ``Groups()``.
        block_sync: synchronisation of the groups' models after every block:
            ``ModelAveraging(...)``, ``BMUF(...)``, ``BMUFAdam(...)`` or ``DiLoCo(...)``, or None
            with a single group.
        gradient_sync: gradient synchronisation inside a group at every step: ``AllReduce()``,
            ``GTC(...)`` or ``CommHook(hook, state)``, for a DDP module. None is ``AllReduce()``.
        warmup_steps: number of first steps in which gradients are averaged exactly over the world.
            Blocks start after them. ``"auto"`` is a tenth of ``total_steps``, at most 500, or 50 if
            it is unknown.
        total_steps: steps of the run, from which ``"auto"`` values follow.
        grad_scaler: the ``torch.amp.GradScaler`` of the loop, whose factor GTC needs.
        membership: ``TorchFT(...)`` if groups come and go. Every group is then a job of its own,
            whose ranks are one group, and has no warm-up. A group that joins takes the state of one
            that trains here, with the steps that this one has counted (``blocks.steps``).
        offload_outer_state: whether the state of outer steps lies in the memory of the host.

    Returns:
        The blocks, which count steps and synchronise.

    Raises:
        ValueError: on every rank, if a value is outside its range, values cannot be combined, the
            module is wrapped otherwise, or ranks have different settings or optimizers.

    """
    check_synchronisations(gradient_sync, block_sync, {})
    check_whole_or_auto("warmup_steps", warmup_steps, least=0)
    check_flag("offload_outer_state", offload_outer_state)
    if total_steps is not None:
        check_whole("total_steps", total_steps)
    if membership is not None and warmup_steps == "auto":
        warmup_steps = 0  # jobs exchange no gradients
    groups = groups or Groups("node" if membership is None else "world")
    communicators, device = groups.communicators, groups.device
    given = [optimizer] if isinstance(optimizer, Optimizer) else optimizer
    optimizers = [inner_optimizer(each) for each in given]
    model, module = without_compile(model), without_ddp(model)
    asked = Synchronisation(
        warmup_steps, gradient_sync or AllReduce(), block_sync, membership is not None
    )
    settings: dict[str, Any] = {"offload_outer_state": offload_outer_state, **vars(asked)}
    elastic = None
    if membership is not None:
        with raise_everywhere(device, place="attach()"):
            check_elastic(membership, block_sync, groups, int(asked.warmup_steps))
            check_one_optimizer(block_sync, len(optimizers))
        elastic = ElasticLoop(membership, groups, described(settings))
    with raise_everywhere(device, place="attach()"):
        check_groups(block_sync, communicators.group.size, communicators.models)
        check_averaged(optimizers, block_sync)
        check_inside(module, optimizers)
        used, chosen = resolved_for_run(
            asked, {}, lambda: math.inf if total_steps is None else total_steps, communicators
        )
        if membership is not None and used.block_sync is not None:
            check_delay(used.block_sync)  # with the number that stands for "auto"
        warms_up = int(used.warmup_steps) > 0
        check_wrapping(model, module, communicators, used.gradient_sync, warms_up=warms_up)
    require_same(described({**settings, **vars(used), "membership": membership}), device)
    require_same_optimizers(module, optimizers, device)
    mesh = groups.mesh["group"] if is_sharded(module) else None
    share_initial_model(module, communicators, mesh)
    _announce(module, optimizers, used, communicators, chosen)
    name_missing_at_exit()
    engine = Engine(
        module,
        optimizers,
        used,
        communicators=communicators,
        grad_scale=_scale_of(grad_scaler),
        nics=fewest_nics(device) if len({*groups.host_of}) > 1 else None,
        offload=offload_outer_state,
        membership=None if elastic is None else elastic.exchange,
    )
    with raise_everywhere(device, place="attach()"):
        _register(engine.reduction, model, warming=warms_up)
    return Blocks(engine, elastic)


def _register(reduction: Reduction, model: Module, *, warming: bool) -> None:
    try:
        reduction.attach(model, warming=warming)
    except RuntimeError as error:  # torch's text is about its own function
        reduction.close()
        raise ValueError(
            "the DistributedDataParallel module has a communication hook already: attach to it "
            "once, and pass a hook of your own as gradient_sync=CommHook(hook, state). To train on "
            "after finish(), wrap the module anew"
        ) from error


def _scale_of(grad_scaler: Any) -> Callable[[], float]:
    if grad_scaler is None:
        return lambda: 1.0
    return lambda: float(grad_scaler.get_scale())


def _announce(
    module: Module,
    optimizers: Sequence[Optimizer],
    used: Synchronisation,
    communicators: Communicators,
    chosen: str | None,
) -> None:
    """Log the values of ``"auto"``, and warn about unfavourable settings, on rank 0."""
    size, models = communicators.group.size, communicators.models
    in_group = None if size == 1 or is_sharded(module) else used.gradient_sync
    warned, choices = advice(module, optimizers, in_group, used.block_sync, models)
    if dist.get_rank() == 0:
        for text in warned:
            warnings.warn(text, stacklevel=3)
        for text in [*([chosen] if chosen else []), *choices]:
            _log.info(text)
