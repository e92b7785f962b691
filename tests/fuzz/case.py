"""One case of the fuzzer: all settings of a run, printed as Python code."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import partial
from typing import Any

import torch

import lightning_hier as lh
from lightning_hier.strategies.server_strategy import ParameterServerStrategy

# Limit of a strategy's collectives. It is much longer than a case, because the machine may be busy.
COLLECTIVE_LIMIT_S = 30.0

Named = tuple[str, dict[str, Any]]
"""Name of a class and its arguments."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of one rank at the start of a step: ``"kill"``, ``"raise"`` or ``"nan"``."""

    kind: str
    rank: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run.

    Attributes:
        seed: seed of all random numbers in the run.
        ranks: number of ranks.
        hosts: number of emulated hosts.
        strategy: class of the strategy, with its arguments.
        gradient: class of ``gradient_sync`` with its arguments, or None.
        block: class of ``block_sync`` with its arguments, or None.
        dtype: dtype of the model: a name in torch, or ``"two"`` for layers of two dtypes.
        batchnorm: whether the model has BatchNorm.
        dropout: dropout probability.
        skips: whether some batches do not use a layer.
        unfreezes: whether a hook unfreezes the first layer in epoch 1.
        optimizers: classes and arguments. Two optimizers divide the layers.
        by_hand: whether the module uses manual optimization.
        scheduler: interval of a learning-rate scheduler, ``"step"`` or ``"epoch"``, or None.
        precision: precision of the Trainer.
        accumulate: number of batches in a step.
        batches: number of batches of a worker in an epoch.
        epochs: number of epochs.
        validate_every: number of batches between validations, in runs with validation.
        save: hook in which the run with validation is saved, and number of the call.
        resume_ranks: number of ranks on which the saved run resumes, or None.
        fault: planted fault, or None.

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
    unfreezes: bool = False
    optimizers: list[Named] = field(default_factory=lambda: [("SGD", {"lr": 0.05})])
    by_hand: bool = False
    scheduler: str | None = None
    precision: str = "32-true"
    accumulate: int = 1
    batches: int = 5
    epochs: int = 2
    validate_every: int = 2
    save: tuple[str, int] = ("on_train_batch_end", 4)
    resume_ranks: int | None = None
    fault: Fault | None = None

    def __str__(self) -> str:
        """Python code that creates this case, without default values."""
        default = Case(seed=self.seed)
        arguments = [f"seed={self.seed!r}"]
        for one in fields(self)[1:]:
            value = getattr(self, one.name)
            if value != getattr(default, one.name):
                arguments.append(f"{one.name}={value!r}")
        return "Case(\n" + "".join(f"    {line},\n" for line in arguments) + ")"

    @property
    def strategy_class(self) -> type[Any]:
        """The class with this name in the package. Tests of the fuzzer give the class itself."""
        own: Any = self.strategy[0]
        return own if isinstance(own, type) else getattr(lh, own)

    @property
    def has_servers(self) -> bool:
        """Whether the strategy has parameter servers."""
        return issubclass(self.strategy_class, ParameterServerStrategy)

    def make_strategy(self) -> Any:
        """A new strategy."""
        arguments = {"timeout": timedelta(seconds=COLLECTIVE_LIMIT_S), **_built(self.strategy[1])}
        for name, own in (("gradient_sync", self.gradient), ("block_sync", self.block)):
            if own is not None:
                arguments[name] = getattr(lh, own[0])(**_built(own[1]))
        return self.strategy_class(**arguments)


def _built(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with the factory of an outer optimizer for its name and arguments."""
    if "outer_optimizer" not in arguments:
        return arguments
    name, settings = arguments["outer_optimizer"]
    return {**arguments, "outer_optimizer": partial(getattr(torch.optim, name), **settings)}
