"""Training runs in two forms: for a Trainer on real ranks, and for a twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar
from unittest import mock

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import Strategy
from torch import nn

from lightning_hier import BMUF, GTC, HierarchicalStrategy
from lightning_hier.algorithms import exchange_chunks
from tests.equivalence.tasks import (
    B_PERIOD,
    Batch,
    Pair,
    Regression,
    TwoOptimizers,
    batch_of,
    loader,
    loss_on,
    make_net,
    rank_number,
)
from tests.equivalence.twins import Recipe, Sgd, Twin, Values
from tests.trainer import fitting

StrategyMaker = Callable[[], Strategy | str]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training run.

    Attributes:
        name: name in the test report.
        strategy: makes a new strategy, because two Trainers cannot share one.
        recipe: settings of the strategy in the papers' symbols.
        net: a key of ``NETS``.
        batches: number of batches of each rank in one epoch.
        epochs: number of passes over the same batches.
        accumulate: number of batches in a step.
        lr: learning rate.
        momentum: momentum of SGD.
        compiled: whether the module is compiled.
        trainer: further arguments of the Trainer.
        tolerance: largest difference from the twin.

    """

    name: str
    strategy: StrategyMaker
    recipe: Recipe = field(default_factory=Recipe)
    net: str = "mlp"
    batches: int = 7
    epochs: int = 1
    accumulate: int = 1
    lr: float = 0.1
    momentum: float = 0.0
    compiled: bool = False
    trainer: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-10

    @staticmethod
    def recipe_of(strategy: Callable[[], Any], world: int) -> Recipe:
        """Settings of a strategy in the papers' symbols."""
        return Recipe(**symbols_of(strategy, world))

    def optimizer(self, net: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the trainable parameters of a network."""
        trainable = [p for p in net.parameters() if p.requires_grad]
        return torch.optim.SGD(trainable, lr=self.lr, momentum=self.momentum)

    def twin(self, net: nn.Module, names: Sequence[tuple[str, ...]]) -> Twin:
        """The twin, with one optimizer for each list of parameter names."""
        sgds = [Sgd(names=own, lr=self.lr, momentum=self.momentum) for own in names]
        return Twin(net, self.recipe, sgds)


AnyCase = TypeVar("AnyCase", bound=Case)


def case(
    name: str,
    strategy: Any = HierarchicalStrategy,
    *,
    kind: Any = Case,
    sync: Any = BMUF,
    world: int = 4,
    **settings: Any,
) -> Any:
    """A run of a strategy without warm-up, with the recipe of the same settings.

    Args:
        name: name in the test report.
        strategy: a preset, or `HierarchicalStrategy` with a `sync` and a GTC. Those are created
            from the settings that are fields of their classes.
        kind: class of the case. It takes the settings that are its fields.
        sync: class of the block synchronisation.
        world: number of workers.
        settings: the remaining settings are arguments of the strategy.

    """
    of_case = _taken(settings, kind)
    if strategy is HierarchicalStrategy:
        gtc = _taken(settings, GTC)
        settings["gradient_sync"] = GTC(**gtc) if gtc else None
        settings["block_sync"] = sync(**_taken(settings, sync))
    make = partial(strategy, **{"warmup_steps": 0, **settings})
    return kind(name=name, strategy=make, recipe=kind.recipe_of(make, world), **of_case)


def changed(base: AnyCase, name: str, **settings: Any) -> AnyCase:
    """The same run with another name and other settings of its strategy."""
    strategy: Any = base.strategy
    sync = strategy.keywords.get("block_sync")
    if sync is not None:
        settings["block_sync"] = replace(sync, **_taken(settings, type(sync)))
    make = partial(strategy, **settings)
    recipe = base.recipe_of(make, base.recipe.world)
    return replace(base, name=name, strategy=make, recipe=recipe)


def _taken(settings: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Remove the settings that are fields of a dataclass, and return them."""
    return {each.name: settings.pop(each.name) for each in fields(kind) if each.name in settings}


def symbols_of(strategy: Callable[[], Any], world: int) -> dict[str, Any]:
    """Arguments of a recipe from the settings of a strategy."""
    instance = strategy()
    sync, gtc = instance.block_sync, instance.gradient_sync
    group = world if instance.group_size == "world" else instance.group_size
    symbols = {"world": world, "group": group, "warmup": instance.warmup_steps}
    if isinstance(gtc, GTC) and gtc.threshold != "auto":
        symbols |= {"threshold": gtc.threshold, "exact_below": gtc.dense_below}
    if sync is not None:
        eta = getattr(sync, "block_momentum", 0.0)
        symbols |= {
            "tau": sync.block_size,
            "eta": 1 - group / world if eta == "auto" else eta,  # N of eta is the number of groups
            "zeta": getattr(sync, "block_lr", 1.0),
            "look_ahead": getattr(sync, "nesterov", True),
            "update_from": getattr(sync, "update_from", "global"),
            "local_momentum": getattr(sync, "local_momentum", "keep"),
            "overlap": getattr(sync, "overlap", False),
        }
    return symbols


def make_trainer(case: Case, **more: Any) -> pl.Trainer:
    """A Trainer on all ranks of the job, without output."""
    settings: dict[str, Any] = {
        "precision": "64-true",
        "max_epochs": case.epochs,
        "accumulate_grad_batches": case.accumulate,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
    }
    return fitting.make_trainer(case.strategy(), **(settings | case.trainer | more))


def make_module(case: Case, seed: int = 0) -> Regression:
    """The module of a case. Ranks may have different seeds, because rank 0's weights are used."""
    net = make_net(case.net, seed)
    kinds: Any = (Regression, TwoOptimizers)
    module: Regression = kinds[isinstance(net, Pair)](net, case.optimizer)
    return module


def fit(case: Case, **more: Any) -> Values:
    """Train on this rank, and return the state of the network after ``fit``."""
    pl.seed_everything(rank_number(), verbose=False)
    module = make_module(case, seed=rank_number())
    trainer = make_trainer(case, **more)
    model: Any = torch.compile(module, backend="aot_eager") if case.compiled else module
    trainer.fit(model, loader(rank_number(), case.batches))
    if case.compiled:
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"], "nothing was compiled"
    return state_of(module.net)


def fit_all(cases: Sequence[Case]) -> dict[str, Values]:
    """Train the cases one after the other on this rank."""
    return {case.name: fit(case) for case in cases}


def fit_in_chunks(cases: Sequence[Case], elements: int) -> dict[str, Values]:
    """Train the cases with small chunks, as if their models had millions of elements.

    A shard may end in the middle of a chunk.
    """
    with mock.patch.multiple(exchange_chunks, CHUNK=elements, ONE_HOST_CHUNK=elements):
        return fit_all(cases)


def state_of(net: nn.Module) -> Values:
    """A copy of the state of a network."""
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def make_twin(case: Case) -> Twin:
    """The twin of a case, before its first step."""
    net = make_net(case.net)
    trainable = [name for name, p in net.named_parameters() if p.requires_grad]
    prefixes = ("a", "b") if isinstance(net, Pair) else ("",)
    return case.twin(net, [tuple(n for n in trainable if n.startswith(p)) for p in prefixes])


def run_twin(case: Case) -> Twin:
    """Train the twin through all epochs."""
    twin = make_twin(case)
    for number in range(case.epochs * case.batches):
        train_batch(case, twin, number)
    return twin


def train_batch(
    case: Case, twin: Twin, count: int, *, batch_of: Callable[[int, int], Batch] = batch_of
) -> None:
    """Train the twin on one more batch.

    Args:
        case: the run.
        twin: the twin of the case.
        count: number of batches that the twin has trained.
        batch_of: the batch of a rank by its number in the epoch.

    """
    number = count % case.batches
    losses = [loss_on(batch_of(rank, number)) for rank in range(case.recipe.world)]
    if case.net == "pair":
        twin.backward([_part(loss, "a") for loss in losses])
        twin.step(0)
        if number % B_PERIOD == B_PERIOD - 1:
            twin.backward([_part(loss, "b") for loss in losses])
            twin.step(1)
        return
    twin.backward(losses, accumulate=case.accumulate)
    # Lightning also steps at the last batch of an epoch if it has accumulated fewer batches.
    if (number + 1) % case.accumulate == 0 or number + 1 == case.batches:
        twin.step()


def _part(
    loss: Callable[[nn.Module], torch.Tensor], part: str
) -> Callable[[nn.Module], torch.Tensor]:
    return lambda net: loss(getattr(net, part))


def difference(one: Values, other: Values) -> float:
    """Largest difference of two states, relative to the largest value of each tensor."""
    assert one.keys() == other.keys()
    worst = 0.0
    for name, value in one.items():
        error = (value - other[name]).abs().max().item()
        worst = max(worst, error / max(other[name].abs().max().item(), 1e-300) if error else 0.0)
    return worst


def identical(one: Values, other: Values) -> bool:
    """Whether two states are bit-equal."""
    return one.keys() == other.keys() and all(torch.equal(v, other[n]) for n, v in one.items())
