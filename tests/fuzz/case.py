"""One case of the fuzzer: everything that is set, as plain Python that can be pasted."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

import lightning_hier as lh
from lightning_hier.strategies.server_strategy import ParameterServerStrategy

# A strategy's own limit. The machine may be busy, so this is far above what a case takes.
COLLECTIVE_LIMIT_S = 30.0

Named = tuple[str, dict[str, Any]]
"""Name of a class and its arguments."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to one rank at the begin of a step: ``"kill"``, ``"raise"`` or ``"nan"``."""

    kind: str
    rank: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run; the defaults are left out of its text.

    Attributes:
        seed: of everything random in the run.
        ranks: processes.
        hosts: over how many hosts they are said to be spread.
        strategy: class of the strategy, with its arguments.
        gradient: class of ``gradient_sync`` with its arguments, or None.
        block: class of ``block_sync`` with its arguments, or None.
        dtype: of the model: a name in torch, or ``"two"`` for layers of two dtypes.
        batchnorm: whether the model has BatchNorm.
        dropout: probability.
        skips: whether some batches leave out a layer.
        unfreeze: who unfreezes the first layer in epoch 1: None, ``"hook"`` or ``"callback"``.
        optimizers: classes and arguments; two share the layers.
        by_hand: manual optimisation.
        toggle: whether by hand ``toggle_optimizer`` surrounds each optimizer's pass.
        scheduler: name in ``tests.fuzz.module.SCHEDULERS``, or None.
        precision: of the Trainer.
        accumulate: batches of a step.
        clip: ``gradient_clip_val``, or None.
        clip_by: ``"norm"`` or ``"value"``.
        batches: of a worker in an epoch.
        epochs: of the run.
        validate_every: batches between validations, in the runs that look.
        save: hook in which the run that looks is saved, and its number.
        resume_ranks: on how many ranks the saved run goes on, or None.
        fault: what goes wrong, or None.

    """

    seed: int
    ranks: int = 2
    hosts: int = 1
    strategy: Named = ("HierarchicalStrategy", {})
    gradient: Named | None = None
    block: Named | None = None
    dtype: str = "float32"
    batchnorm: bool = False
    dropout: float = 0.0
    skips: bool = False
    unfreeze: str | None = None
    optimizers: list[Named] = field(default_factory=lambda: [("SGD", {"lr": 0.05})])
    by_hand: bool = False
    toggle: bool = False
    scheduler: str | None = None
    precision: str = "32-true"
    accumulate: int = 1
    clip: float | None = None
    clip_by: str = "norm"
    batches: int = 5
    epochs: int = 2
    validate_every: int = 2
    save: tuple[str, int] = ("on_train_batch_end", 4)
    resume_ranks: int | None = None
    fault: Fault | None = None

    def __str__(self) -> str:
        """Python that makes this case."""
        default = Case(seed=self.seed)
        said = [f"seed={self.seed!r}"]
        for one in fields(self)[1:]:
            value = getattr(self, one.name)
            if value != getattr(default, one.name):
                said.append(f"{one.name}={value!r}")
        return "Case(\n" + "".join(f"    {line},\n" for line in said) + ")"

    @property
    def strategy_class(self) -> type[Any]:
        """That of the package with this name; or the class itself, in tests of the fuzzer."""
        own: Any = self.strategy[0]
        return own if isinstance(own, type) else getattr(lh, own)

    @property
    def has_servers(self) -> bool:
        """Whether the strategy is one with parameter servers."""
        return issubclass(self.strategy_class, ParameterServerStrategy)

    def make_strategy(self) -> Any:
        """A new strategy."""
        arguments = {"timeout": timedelta(seconds=COLLECTIVE_LIMIT_S), **self.strategy[1]}
        for name, own in (("gradient_sync", self.gradient), ("block_sync", self.block)):
            if own is not None:
                arguments[name] = getattr(lh, own[0])(**own[1])
        return self.strategy_class(**arguments)
