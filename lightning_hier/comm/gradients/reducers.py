"""The reducer for the settings of a gradient synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.gradients.gradient_hook import AllReducer, HookReducer, Reducer
from lightning_hier.comm.gradients.gradient_sync import GTC, CommHook, GradientSync
from lightning_hier.comm.gradients.gtc_hook import GTCReducer
from lightning_hier.comm.worker import Worker


def build_reducer(
    config: GradientSync,
    group: Channel,
    workers: Sequence[Worker],
    grad_scale: Callable[[], float],
) -> Reducer:
    """Build the reducer that averages gradients over a group.

    Args:
        config: settings of the user.
        group: ranks of the group.
        workers: workers of this rank, with their residuals and thresholds.
        grad_scale: returns the present factor of loss scaling.

    """
    if isinstance(config, GTC):
        memories = [worker.memory for worker in workers]
        return GTCReducer(group, config, memories, grad_scale=grad_scale)
    if isinstance(config, CommHook):
        return HookReducer(group, config)
    return AllReducer(group)
