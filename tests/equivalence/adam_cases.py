"""One training run with Adam told twice: to a Trainer on real ranks, and to a twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.equivalence.adam_twins import AdamRecipe, AdamTwin, AdamWorker, Kind, Rule, Rules
from tests.equivalence.cases import (
    Case,
    make_net,
    make_trainer,
    rank_number,
    state_of,
    symbols_of,
    train_batch,
)
from tests.equivalence.tasks import Pair, Regression, TwoOptimizers, loader
from tests.equivalence.twins import Values

_CLASSES: dict[Kind, type[Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
}


@dataclass(frozen=True, kw_only=True)
class AdamCase(Case):
    """A run with one of the Adams.

    Attributes:
        rule: for every parameter.
        biases: for biases, if another.
        options: further arguments of the optimizer.
        frozen_too: whether the optimizer holds frozen parameters as well.
        tolerance: of every comparison with the twin.

    """

    recipe: AdamRecipe = field(default_factory=AdamRecipe)
    rule: Rule = field(default_factory=Rule)
    biases: Rule | None = None
    options: dict[str, Any] = field(default_factory=dict)
    frozen_too: bool = False
    tolerance: float = 1e-10

    @staticmethod
    def recipe_of(strategy: Callable[[], Any], world: int) -> AdamRecipe:
        corrected = strategy().block_sync.moments == "corrected"
        return AdamRecipe(**symbols_of(strategy, world), corrected=corrected)

    def rules(self, prefix: str = "") -> Rules:
        """The rule of every trainable parameter under ``prefix``."""
        named = make_net(self.net).named_parameters()
        return Rules(
            of={n: self._rule(n) for n, p in named if p.requires_grad and n.startswith(prefix)}
        )

    def optimizer(self, net: nn.Module) -> Optimizer:
        """The same from torch."""
        held = {n: p for n, p in net.named_parameters() if p.requires_grad or self.frozen_too}
        groups = [
            {"params": [p for n, p in held.items() if self._rule(n) is rule], **_arguments(rule)}
            for rule in (self.rule, self.biases)
            if rule is not None
        ]
        return _CLASSES[self.rule.kind](groups, **self.options)

    def _rule(self, name: str) -> Rule:
        return self.biases if self.biases is not None and name.endswith("bias") else self.rule


def _arguments(rule: Rule) -> dict[str, Any]:
    more = {"momentum_decay": rule.psi} if rule.kind == "nadam" else {}
    decay = {"weight_decay": rule.weight_decay}
    return {"lr": rule.lr, "betas": rule.betas, "eps": rule.eps, **decay, **more}


class AdamRegression(Regression):
    """One network, one optimizer of the case."""

    def __init__(self, net: nn.Module, case: AdamCase) -> None:
        super().__init__(net, lr=0.0)
        self._case = case

    def configure_optimizers(self) -> Optimizer:
        return self._case.optimizer(self.net)


class AdamPair(TwoOptimizers):
    """Two networks, an optimizer of the case for each."""

    def __init__(self, net: Pair, case: AdamCase) -> None:
        super().__init__(net, lr=0.0)
        self._case = case

    def configure_optimizers(self) -> list[Optimizer]:
        return [self._case.optimizer(net) for net in (self.net.a, self.net.b)]


@dataclass
class Instant:
    """Weights, m, v and k (with NAdam's product of mu) of one rank after a batch, by name."""

    weights: Values = field(default_factory=dict)
    first: Values = field(default_factory=dict)
    second: Values = field(default_factory=dict)
    counts: Values = field(default_factory=dict)


@dataclass
class Run:
    """What one rank saw after every batch, and the network's state after ``fit``."""

    instants: list[Instant] = field(default_factory=list)
    final: Values = field(default_factory=dict)


class Notes(Callback):
    """Writes down a :class:`Run`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any
    ) -> None:
        named = dict(pl_module.net.named_parameters())
        names = {p: name for name, p in named.items()}
        instant = Instant()
        for optimizer in trainer.optimizers:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                state, name = optimizer.state.get(parameter, {}), names[parameter]
                if not parameter.requires_grad:
                    assert not state, f"{name} is frozen and has state"
                    continue
                instant.weights[name] = parameter.detach().clone()
                zero = torch.zeros_like(parameter)
                instant.first[name] = state.get("exp_avg", zero).clone()
                instant.second[name] = state.get("exp_avg_sq", zero).clone()
                instant.counts[name] = _counts(state.get("step", 0.0), state.get("mu_product", 1.0))
        self._run.instants.append(instant)


def _counts(k: Any, product: Any) -> Tensor:
    return torch.tensor([float(k), float(product)], dtype=torch.float64)


def run(case: AdamCase, *, data_of: int | None = None, **more: Any) -> Run:
    """Train on this rank, which may take the data of another one.

    Every rank draws other weights, since rank 0's count.
    """
    pl.seed_everything(rank_number(), verbose=False)
    net = make_net(case.net, seed=rank_number())
    module = AdamPair(net, case) if isinstance(net, Pair) else AdamRegression(net, case)
    told = Run()
    trainer = make_trainer(case, callbacks=[Notes(told)], **more)
    trainer.fit(module, loader(rank_number() if data_of is None else data_of, case.batches))
    told.final = state_of(module.net)
    return told


def run_all(cases: Sequence[AdamCase]) -> dict[str, Run]:
    """Train one case after the other on this rank."""
    return {case.name: run(case) for case in cases}


def twin_runs(case: AdamCase) -> list[Run]:
    """What the twin's workers saw; all have the same final state."""
    net = make_net(case.net)
    prefixes = ("a", "b") if isinstance(net, Pair) else ("",)
    twin = AdamTwin(net, case.recipe, [case.rules(prefix) for prefix in prefixes])
    runs = [Run() for _ in twin.workers]
    for number in range(case.epochs * case.batches):
        train_batch(case, twin, number)
        for told, worker in zip(runs, twin.workers, strict=True):
            told.instants.append(_instant(worker))
    for told in runs:
        told.final = twin.global_model()
    return runs


def _instant(worker: AdamWorker) -> Instant:
    memory = worker.memory
    return Instant(
        weights={name: value.clone() for name, value in worker.values().items()},
        first={name: one.m.clone() for name, one in memory.items()},
        second={name: one.v.clone() for name, one in memory.items()},
        counts={name: _counts(one.k, one.product) for name, one in memory.items()},
    )
