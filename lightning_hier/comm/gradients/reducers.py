"""From the user's choice of gradient synchronisation to the hook that DDP gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gradient_hook import (
    AllReducer,
    GradientHook,
    HookReducer,
    Reducer,
)
from lightning_hier.comm.gradients.gradient_sync import GTC, CommHook, GradientSync
from lightning_hier.comm.gradients.gtc_hook import GTCReducer
from lightning_hier.comm.gradients.reached import ReachedParameters
from lightning_hier.comm.gradients.ready_order import ReadyOrder
from lightning_hier.comm.gradients.used_elsewhere import UsedElsewhere
from lightning_hier.comm.worker import Worker


def build_hook(
    config: GradientSync,
    communicators: Communicators,
    workers: Sequence[Worker],
    *,
    warming: bool,
    grad_scale: Callable[[], float],
    ready_order: ReadyOrder,
    reached: ReachedParameters | None,
) -> GradientHook:
    """State of the hook that averages gradients by ``config``.

    Args:
        config: the choice.
        communicators: channels of this rank.
        workers: that this rank plays, owners of residuals and thresholds.
        warming: whether the first steps average over the whole world.
        grad_scale: the present factor of fp16 loss scaling.
        ready_order: will note the order of the first step's gradients.
        reached: the parameters with gradient, where not all need to have some in a step.

    """
    group, world = communicators.group, communicators.world
    in_group: Reducer
    if isinstance(config, GTC):
        memories = [worker.memory for worker in workers]
        in_group = GTCReducer(group, config, memories, grad_scale=grad_scale)
    elif isinstance(config, CommHook):
        in_group = HookReducer(group, config)
    else:
        in_group = AllReducer(group)
    some_elsewhere = reached is not None and group.size < world.size
    return GradientHook(
        warm_up=AllReducer(world),
        in_group=in_group,
        warming=warming,
        ready_order=ready_order,
        reached=reached,
        elsewhere=UsedElsewhere(world) if some_elsewhere else None,
    )
