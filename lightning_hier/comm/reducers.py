"""From the user's choice of gradient synchronisation to the hook that DDP gets."""

from __future__ import annotations

from collections.abc import Callable

from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradient_hook import AllReducer, GradientHook, HookReducer, Reducer
from lightning_hier.comm.gradient_sync import GTC, CommHook, GradientSync
from lightning_hier.comm.gtc_hook import GTCReducer
from lightning_hier.comm.worker import Worker


def build_hook(
    config: GradientSync,
    communicators: Communicators,
    worker: Worker,
    *,
    warming: bool,
    grad_scale: Callable[[], float],
    find_unused: bool,
) -> GradientHook:
    """State of the hook that averages gradients by ``config``.

    Args:
        config: the choice.
        communicators: channels of this rank.
        worker: owner of residuals and thresholds.
        warming: whether the first steps average over the whole world.
        grad_scale: the present factor of fp16 loss scaling.
        find_unused: whether parameters may be without gradient in a step.

    """
    group = communicators.group
    in_group: Reducer
    if isinstance(config, GTC):
        in_group = GTCReducer(
            group, config, worker.memory, grad_scale=grad_scale, find_unused=find_unused
        )
    elif isinstance(config, CommHook):
        in_group = HookReducer(group, config)
    else:
        in_group = AllReducer(group)
    return GradientHook(warm_up=AllReducer(communicators.world), in_group=in_group, warming=warming)
