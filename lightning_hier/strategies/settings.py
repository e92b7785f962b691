"""Settings of a strategy: values of ``"auto"``, and their form in files and messages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_hier.algorithms.arguments import counted
from lightning_hier.algorithms.automatic import Auto, auto_warmup_steps
from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.gradients.gradient_sync import GTC, GradientSync

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession


@dataclass(frozen=True)
class Synchronisation:
    """Synchronisation of a strategy, as set by the user or with the values of a run.

    Attributes:
        warmup_steps: number of first steps with averages over the world.
        gradient_sync: synchronisation inside groups.
        block_sync: synchronisation across groups.

    """

    warmup_steps: int | Auto
    gradient_sync: GradientSync
    block_sync: BlockSync | None

    @property
    def automatic(self) -> list[str]:
        """Names of the settings that depend on the length of the run."""
        names = ["warmup_steps"] if self.warmup_steps == "auto" else []
        if isinstance(self.gradient_sync, GTC) and self.gradient_sync.is_automatic:
            names.append("density")
        if self.block_sync is not None and self.block_sync.block_size == "auto":
            names.append("block_size")
        return names

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
        return Synchronisation(
            warmup_steps,
            self.gradient_sync.resolved(run_steps),
            None if self.block_sync is None else self.block_sync.resolved(run_steps, num_models),
        )

    def with_values(self, values: Mapping[str, Any]) -> Synchronisation:
        """Replace each ``"auto"`` by the value of another run."""
        changed = self
        for name in self.automatic:
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


def automatic_values(
    warmup_steps: int, gradient_sync: GradientSync, block_sync: BlockSync | None
) -> dict[str, Any]:
    """Values of the settings that depend on the length of a run, by name, or None."""
    return {
        "warmup_steps": warmup_steps,
        "density": getattr(gradient_sync, "density", None),
        "block_size": getattr(block_sync, "block_size", None),
    }


def resolved_for_run(
    asked: Synchronisation, resumed: Mapping[str, Any], session: FitSession
) -> Synchronisation:
    """Choose a number for each ``"auto"`` and log the choice. A collective of the world.

    A resumed run keeps its original values, even if it is longer now.

    Args:
        asked: settings of the user. Without ``"auto"``, they are returned unchanged.
        resumed: :func:`automatic_values` of the resumed run, if there is one.
        session: session of the run. Its Trainer determines the length of the run, which loads the
            training data.

    """
    names = asked.automatic
    if not names:
        return asked
    used, why = asked.with_values(resumed), "as in the resumed run"
    if used.automatic:
        steps = run_steps(session.trainer)
        size, groups = session.communicators.layout.sizes
        # One group without GTC averages gradients exactly over all ranks in any case.
        warms_up = groups > 1 or (size > 1 and isinstance(asked.gradient_sync, GTC))
        num_models = session.communicators.models
        used = used.resolved(steps, num_models=num_models, warms_up=warms_up)
        length = counted(steps, "step") if steps < math.inf else "an unknown number of steps"
        why = f"because the run has {length} and {counted(num_models, 'group')}"
    values = automatic_values(int(used.warmup_steps), used.gradient_sync, used.block_sync)
    chosen = ", ".join(f"{name}='auto' is {values[name]:.3g}" for name in names)
    rank_zero_info(f"{chosen}, {why}.")
    return used


def run_steps(trainer: pl.Trainer) -> float:
    """Number of steps of every rank in the run, or infinity if it is unknown.

    With manual optimization, it is the number of batches. The module may make fewer or more steps.
    A collective of the world: every rank must call it.
    """
    estimated = trainer.estimated_stepping_batches
    # Lightning returns max_steps, which is -1 by default, for data without a length.
    known = -1 if estimated in (-1, math.inf) else int(estimated)
    place = "the comparison of the length of the run"
    counts = gather_json(known, trainer.strategy.root_device, place=place)
    # The smallest, because blocks and warm-up must suit the rank with the fewest batches too.
    return min((count for count in counts if count >= 0), default=math.inf)


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
        elif callable(value) or type(value).__repr__ is object.__repr__:  # type: ignore[comparison-overlap]
            # Their representations contain addresses, which differ between processes.
            values[name] = getattr(value, "__qualname__", type(value).__name__)
        else:
            values[name] = repr(value)
    return values
