"""Checks of a strategy's arguments in its constructor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from lightning.pytorch.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel as DDP

from lightning_hier.algorithms.arguments import check_whole, did_you_mean

# Arguments of DDPStrategy that the strategies set themselves, and of components that the presets
# do not have, with the alternative.
_TAKEN: Mapping[str, str] = {
    "process_group": "use group_size, which determines the groups",
    "ddp_comm_hook": "pass gradient_sync=CommHook(hook, state)",
    "ddp_comm_state": "pass gradient_sync=CommHook(hook, state)",
    "ddp_comm_wrapper": "wrap the hook, and pass gradient_sync=CommHook(hook)",
    "model_averaging_period": "pass block_sync=ModelAveraging(block_size=...)",
    "delay_all_reduce_named_params": "it averages outside the hook, hence outside the group",
    "param_to_hook_all_reduce": "it averages outside the hook, hence outside the group",
    "mixed_precision": "use Trainer(precision=...)",
    "static_graph": (
        "DDP reduces the first step of a static graph in a way that compression, groups of one "
        "rank and exact resuming do not support. Leave it out; parameters that a step does not "
        "use need find_unused_parameters=True, and activation checkpointing use_reentrant=False"
    ),
    "skip_all_reduce_unused_params": (
        "all ranks of a group must know the last gradients of a step, and it omits some of them. "
        "Leave it out; find_unused_parameters=True works without it"
    ),
}

_WHOLE = "HierarchicalStrategy, for modules that are not divided"

OF_WHOLE_MODULES: Mapping[str, str] = {
    "membership": "lightning_hier.attach, for a plain loop, and of Fabric's HierarchicalStrategy, "
    "which take divided modules as well. A Trainer supports it for whole modules",
    "gradient_sync": f"{_WHOLE}, because GTC and hooks need whole gradients. Leave it out, and "
    "pass across_dtype or across_density to block_sync to send fewer bytes",
}
"""Arguments that strategies for divided modules do not have, with the alternative."""


def without_taken(
    strategy: type, ddp_kwargs: Mapping[str, Any], base: type = DDPStrategy
) -> dict[str, Any]:
    """Arguments for DDPStrategy. Those that the strategies set must be absent, None or False.

    The command line passes every argument, with None for those that are not set.

    Args:
        strategy: class of the strategy, which has further arguments.
        ddp_kwargs: arguments for DDPStrategy.
        base: DDPStrategy of the Trainer, or of Fabric.

    Raises:
        ValueError: an argument that the strategy sets was given.
        TypeError: an argument is unknown.

    """
    # With _TAKEN, because the error below names the alternative, and "unknown argument" does not.
    known = [*_TAKEN, *signature(base).parameters, *signature(DDP).parameters]
    for name in ddp_kwargs:
        if name not in known:
            raise TypeError(_unknown(strategy, name, known))
    for name, way_out in _TAKEN.items():
        value = ddp_kwargs.get(name)
        # 0 and empty values are refused too: a user has set them.
        if value is not None and value is not False:
            raise ValueError(f"{name} can't be set, got {value!r}: {way_out}")
    return {name: value for name, value in ddp_kwargs.items() if name not in _TAKEN}


def _unknown(strategy: type, name: str, of_ddp: Sequence[str]) -> str:
    """The error of an argument that neither a strategy nor DDP has."""
    kinds = [kind for kind in strategy.__mro__ if kind.__module__.startswith("lightning_hier.")]
    inherited = [own for kind in kinds for own in signature(kind).parameters]
    names = [own for own in signature(strategy).parameters if own != "ddp_kwargs"]
    others = ""
    if {"block_size", "block_sync"} & {*names}:
        others = " Set others as in HierarchicalStrategy(block_sync=DiLoCo(merge=0.5))"
    return (
        f"{strategy.__name__} has no argument {name!r}{did_you_mean(name, [*inherited, *of_ddp])} "
        f"It takes {', '.join(names)}, and those of DDPStrategy and "
        f"DistributedDataParallel.{others}"
    )


def check_preset(preset: object, arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for arguments that a preset passes on, and that it sets itself."""
    for name in ("group_size", "gradient_sync", "block_sync"):
        if arguments.get(name) is not None:
            raise ValueError(
                f"{type(preset).__name__} sets {name} itself, got {name}={arguments[name]!r}: use "
                "HierarchicalStrategy(group_size=..., gradient_sync=..., block_sync=...)"
            )


def for_ranks_of_a_device(ranks_per_device: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments for Lightning's strategy. Ranks that share a device communicate by gloo.

    Raises:
        ValueError: the number is invalid, or the backend needs a device for each rank.

    """
    check_whole("ranks_per_device", ranks_per_device)
    if ranks_per_device == 1:
        return kwargs
    backend = kwargs.get("process_group_backend") or "gloo"
    if "nccl" in backend:
        raise ValueError(
            f"process_group_backend={backend!r} can't be combined with ranks_per_device="
            f"{ranks_per_device}: NCCL needs a device for each rank. Leave it out, and the ranks "
            "communicate by gloo"
        )
    return {**kwargs, "process_group_backend": backend}
