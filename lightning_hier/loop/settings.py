"""Settings of a synchronisation: checks, values of ``"auto"``, and their form in messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.algorithms.arguments import counted, is_number
from lightning_hier.algorithms.automatic import Auto, auto_warmup_steps
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.outer_step import OuterOptimizer
from lightning_hier.comm.blocks.shard_placement import ShardPlacement
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gradient_sync import GTC, GradientSync

MOMENTUM = ("block_momentum", "outer_momentum")
"""Settings between blocks that follow the number of models as well."""

# Settings of a BlockSync on which the state of its exchange depends.
_OF_EXCHANGE = ("fragments", "overlap", "merge", "across_dtype", "across_density")


@dataclass(frozen=True)
class Synchronisation:
    """Synchronisation of a strategy, as set by the user or with the values of a run.

    Attributes:
        warmup_steps: number of first steps with averages over the world.
        gradient_sync: synchronisation inside groups.
        block_sync: synchronisation across groups.
        groups_vary: whether groups come and go.
        run_steps: steps of one optimizer in the run, from which ``"auto"`` has become numbers.

    """

    warmup_steps: int | Auto
    gradient_sync: GradientSync
    block_sync: BlockSync | None
    groups_vary: bool = False
    run_steps: float | None = None

    @property
    def automatic(self) -> list[str]:
        """Names of the settings that depend on the length of the run."""
        names = ["warmup_steps"] if self.warmup_steps == "auto" else []
        if isinstance(self.gradient_sync, GTC) and self.gradient_sync.is_automatic:
            names.append("density")
        if self.block_sync is not None:
            names += self.block_sync.automatic(varies=self._models_vary)
        return names

    @property
    def _models_vary(self) -> bool:
        by_samples = self.block_sync is not None and self.block_sync.weighting == "samples"
        return by_samples or self.groups_vary

    def resolved(self, run_steps: float, *, num_models: int, warms_up: bool) -> Synchronisation:
        """Return the same settings with a number instead of each ``"auto"``.

        Args:
            run_steps: steps of one optimizer in the run, or infinity if unknown.
            num_models: models that ``block_sync`` averages.
            warms_up: whether a warm-up has an effect.

        """
        warmup_steps = self.warmup_steps
        if warmup_steps == "auto":
            warmup_steps = auto_warmup_steps(run_steps) if warms_up else 0
        block_sync = self.block_sync
        if block_sync is not None:
            block_sync = block_sync.resolved(run_steps, num_models, varies=self._models_vary)
        gradient_sync = self.gradient_sync.resolved(run_steps)
        return replace(
            self,
            warmup_steps=warmup_steps,
            gradient_sync=gradient_sync,
            block_sync=block_sync,
            run_steps=run_steps,
        )

    def with_values(self, values: Mapping[str, Any]) -> Synchronisation:
        """Replace each ``"auto"`` by the value of another run, except momentum.

        The other run may have averaged another number of models.
        """
        changed = self
        for name in self.automatic:
            if name in MOMENTUM:
                continue
            # A run with another synchronisation has saved None for settings that it lacks.
            if values.get(name) is not None:
                changed = changed._with(name, values[name])
        return changed

    def _with(self, name: str, value: Any) -> Synchronisation:
        if name == "warmup_steps":
            return replace(self, warmup_steps=value)
        owner = "gradient_sync" if name == "density" else "block_sync"
        changes: Any = {owner: replace(getattr(self, owner), **{name: value})}
        return replace(self, **changes)


def automatic_values(settings: Synchronisation) -> dict[str, Any]:
    """Values of the settings that depend on the length of a run, by name, or None."""
    sync = settings.block_sync
    return {
        "warmup_steps": int(settings.warmup_steps),
        "density": getattr(settings.gradient_sync, "density", None),
        "block_size": getattr(sync, "block_size", None),
        "moments_every": getattr(sync, "moments_every", None),
        **{name: getattr(sync, name, None) for name in MOMENTUM},
        "run_steps": settings.run_steps,
    }


def resolved_for_run(
    asked: Synchronisation,
    resumed: Mapping[str, Any],
    run_steps: Callable[[], float],
    communicators: Communicators,
) -> tuple[Synchronisation, str | None]:
    """Choose a number for each ``"auto"``.

    A resumed run keeps its original values, even if it is longer now. Momentum follows the number
    of models, and the original length.

    Args:
        asked: settings of the user. Without ``"auto"``, they are returned unchanged.
        resumed: :func:`automatic_values` of the resumed run, if there is one.
        run_steps: returns the steps of one optimizer in the run, or infinity if unknown. It is
            called only if a value depends on it, on all ranks or on none.
        communicators: channels of this rank.

    Returns:
        The settings, and a line that announces the chosen values, or None.

    """
    names = asked.automatic
    if not names:
        return asked, None
    used, why = asked.with_values(resumed), "as in the resumed run"
    if used.automatic:
        known = resumed.get("run_steps")
        steps = run_steps() if known is None else known
        size, groups = communicators.layout.sizes
        # One group without GTC averages gradients exactly over all ranks in any case.
        warms_up = groups > 1 or (size > 1 and isinstance(asked.gradient_sync, GTC))
        num_models = communicators.models
        used = used.resolved(steps, num_models=num_models, warms_up=warms_up)
        length = counted(steps, "step") if steps < math.inf else "an unknown number of steps"
        run = "run" if known is None else "resumed run"
        why = f"because the {run} has {length} and {counted(num_models, 'group')}"
    values = automatic_values(used)
    chosen = ", ".join(f"{name}='auto' is {values[name]:.3g}" for name in names)
    # A factor of the user's own changes what a learning rate means.
    derived = getattr(asked.block_sync, "local_lr", "auto") == "auto"
    return used, f"{chosen}, {why}." + " The learning rate to pass is that of DDP." * derived


def kinds(
    settings: Synchronisation, communicators: Communicators, placement: ShardPlacement
) -> dict[str, Any]:
    """The settings that must equal those of a saved run to continue it exactly."""
    sync = settings.block_sync
    has_errors = sync is not None and sync.has_error_feedback
    outer = None if sync is None else _made(sync.outer_of(communicators.models))
    # With groups that come and go, it may change.
    ranks = 0 if communicators.most_groups else communicators.route.inter_host_ranks
    return {
        "gradient_sync": type(settings.gradient_sync).__name__,
        "of": getattr(settings.gradient_sync, "of", None),
        "block_sync": type(sync).__name__,
        # Its state may lack what another optimizer needs.
        "outer_optimizer": outer and type(outer).__name__,
        **{name: getattr(sync, name, None) for name in _OF_EXCHANGE},
        # The ranks that exchange between hosts hold the error feedback.
        "inter_host_ranks": ranks if has_errors else None,
        # Averaged optimizer state is divided into the same shards as the model.
        "optimizer_state": "averaged" if sync is not None and sync.averages_state else "local",
        # Each rank, or the first one, holds the part of the model that it exchanges.
        "across": placement.across,
        "warmup_steps": settings.warmup_steps,
    }


def _made(make: OuterOptimizer) -> Optimizer:
    """An outer optimizer as it is made for a shard, to describe it."""
    return make([Parameter(torch.zeros(1))])


def described(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings to JSON values, which are equal on two ranks if the settings are.

    An object, such as ``block_sync=BMUF(...)``, becomes the name of its class and its settings.
    """
    values: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None or isinstance(value, (bool, int, float, str)):
            values[name] = value
        elif is_dataclass(value) and not isinstance(value, type):
            # Flat, so that an error or a table names a single field that differs.
            values[name] = type(value).__name__
            values |= described({f.name: getattr(value, f.name) for f in fields(value)})
        elif name == "outer_optimizer":  # what it makes, because a partial has no name of its own
            made = _made(value)
            listed = ", ".join(f"{key}={default}" for key, default in made.defaults.items())
            values[name] = f"{type(made).__name__}({listed})"
        elif callable(value) or type(value).__repr__ is object.__repr__:  # type: ignore[comparison-overlap]
            # Their representations contain addresses, which differ between processes.
            values[name] = getattr(value, "__qualname__", type(value).__name__)
        else:
            values[name] = repr(value)
    return values


def check_synchronisations(
    gradient_sync: object, block_sync: object, ddp_kwargs: Mapping[str, Any]
) -> None:
    """Raise ValueError for synchronisations of a wrong type, or that cannot be combined."""
    if gradient_sync is not None and not isinstance(gradient_sync, GradientSync):
        raise ValueError(
            f"gradient_sync must be AllReduce(), GTC(...) or CommHook(...), got {gradient_sync!r}"
        )
    views = ddp_kwargs.get("gradient_as_bucket_view") and ddp_kwargs.get("find_unused_parameters")
    if views and isinstance(gradient_sync, GTC):
        raise ValueError(
            "gradient_as_bucket_view=True can't be combined with GTC and "
            "find_unused_parameters=True: GTC overwrites DDP's buckets, which would contain the "
            "gradients of another optimizer. Leave out gradient_as_bucket_view."
        )
    if block_sync is not None and not isinstance(block_sync, BlockSync):
        raise ValueError(
            "block_sync must be None, ModelAveraging(...), BMUF(...), BMUFAdam(...) or "
            f"DiLoCo(...), one for all optimizers, got {block_sync!r}"
        )


def check_groups(block_sync: BlockSync | None, group_size: int, groups: int) -> None:
    """Raise ValueError for several groups that ``block_sync`` does not or cannot average."""
    if block_sync is not None:
        block_sync.check_models(groups)
    elif groups > 1:
        raise ValueError(
            f"block_sync=None needs one group of all ranks, but group_size={group_size} makes "
            f"{groups} groups that would never be synchronised: pass block_sync=BMUF(...) or "
            "ModelAveraging(...), or group_size='world'"
        )


def check_group_size(group_size: object) -> None:
    """Raise ValueError unless ``group_size`` is a :data:`GroupSize`."""
    sizes = ("node", "world")
    # is_number refuses True, which is an int and would be a group of one rank.
    if group_size not in sizes and not (
        is_number(group_size) and isinstance(group_size, int) and group_size >= 1
    ):
        raise ValueError(
            f"group_size must be 'node', 'world' or a whole number of at least 1, got "
            f"{group_size!r}"
        )


def check_timeout(timeout: object) -> None:
    """Raise ValueError unless ``timeout`` is a timedelta above 0 or None."""
    if timeout is not None and not (isinstance(timeout, timedelta) and timeout > timedelta(0)):
        raise ValueError(
            "timeout must be a datetime.timedelta above 0, as timedelta(seconds=60), or None for "
            f"torch's default, got {timeout!r}"
        )
