"""One training run told twice: to a Trainer on real ranks, and to a twin."""

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
from lightning_hier.comm.blocks import shard
from tests.equivalence.faults import Fault, FaultyRegression, FaultyTwin, FaultyTwoOptimizers
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
    """A run.

    Attributes:
        name: for the test report.
        strategy: makes a new strategy; a Trainer can't share one.
        recipe: the same in the papers' symbols.
        net: a key of ``NETS``.
        batches: of each rank, in one epoch.
        epochs: passes over the same batches.
        accumulate: batches that make a step.
        lr: learning rate.
        momentum: of the SGD.
        compiled: whether the module is compiled.
        trainer: further arguments of the Trainer.
        faults: of some workers.
        counts: batches of each rank in one epoch, where they differ.
        unknown: whether nobody knows how many there are.
        tolerance: of every comparison with the twin.

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
    faults: tuple[Fault, ...] = ()
    counts: tuple[int, ...] = ()
    unknown: bool = False
    tolerance: float = 1e-10

    @staticmethod
    def recipe_of(strategy: Callable[[], Any], world: int) -> Recipe:
        """The same as the strategy in the papers' symbols."""
        return Recipe(**symbols_of(strategy, world))

    def optimizer(self, net: nn.Module) -> torch.optim.Optimizer:
        """Of what can be trained of a network."""
        trainable = [p for p in net.parameters() if p.requires_grad]
        return torch.optim.SGD(trainable, lr=self.lr, momentum=self.momentum)

    def twin(self, net: nn.Module, names: Sequence[tuple[str, ...]]) -> Twin:
        """The twin, with an optimizer for each of some lists of parameters."""
        sgds = [Sgd(names=own, lr=self.lr, momentum=self.momentum) for own in names]
        return (FaultyTwin if self.faults else Twin)(net, self.recipe, sgds)


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
    """A run of a strategy without warm-up, its recipe from the same settings.

    Args:
        name: for the test report.
        strategy: a preset, or `HierarchicalStrategy`, whose `sync` and GTC are made of the settings
            that they have.
        kind: of the case; it gets the settings that it has.
        sync: class of the block synchronisation.
        world: workers.
        settings: all others are the strategy's.

    """
    own = _taken(settings, kind)
    if strategy is HierarchicalStrategy:
        gtc = _taken(settings, GTC)
        settings["gradient_sync"] = GTC(**gtc) if gtc else None
        settings["block_sync"] = sync(**_taken(settings, sync))
    made = partial(strategy, **{"warmup_steps": 0, **settings})
    return kind(name=name, strategy=made, recipe=kind.recipe_of(made, world), **own)


def changed(base: AnyCase, name: str, **settings: Any) -> AnyCase:
    """The same run with other settings of its strategy, and under another name."""
    strategy: Any = base.strategy
    sync = strategy.keywords.get("block_sync")
    if sync is not None:
        settings["block_sync"] = replace(sync, **_taken(settings, type(sync)))
    made = partial(strategy, **settings)
    recipe = base.recipe_of(made, base.recipe.world)
    return replace(base, name=name, strategy=made, recipe=recipe)


def _taken(settings: dict[str, Any], kind: Any) -> dict[str, Any]:
    """The settings that a dataclass has; they are removed."""
    return {own.name: settings.pop(own.name) for own in fields(kind) if own.name in settings}


def symbols_of(strategy: Callable[[], Any], world: int) -> dict[str, Any]:
    """The settings of a strategy in the papers' symbols."""
    made = strategy()
    sync, gtc = made.block_sync, made.gradient_sync
    group = world if made.group_size == "world" else made.group_size
    found = {"world": world, "group": group, "warmup": made.warmup_steps}
    if isinstance(gtc, GTC) and gtc.threshold != "auto":
        found |= {"threshold": gtc.threshold, "exact_below": gtc.dense_below}
    if sync is not None:
        eta = getattr(sync, "block_momentum", 0.0)
        found |= {
            "tau": sync.block_size,
            "eta": 1 - group / world if eta == "auto" else eta,  # N of eta is the number of groups
            "zeta": getattr(sync, "block_lr", 1.0),
            "look_ahead": getattr(sync, "nesterov", True),
            "update_from": getattr(sync, "update_from", "global"),
            "local_momentum": getattr(sync, "local_momentum", "keep"),
            "overlap": getattr(sync, "overlap", False),
        }
    return found


def make_trainer(case: Case, **more: Any) -> pl.Trainer:
    """A quiet Trainer on all ranks of the job."""
    settings: dict[str, Any] = {
        "precision": "64-true",
        "max_epochs": case.epochs,
        "accumulate_grad_batches": case.accumulate,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
    }
    return fitting.make_trainer(case.strategy(), **(settings | case.trainer | more))


def make_module(case: Case, seed: int = 0) -> Regression:
    """The module of a case; every rank may draw other weights, since rank 0's count."""
    net = make_net(case.net, seed)
    kinds: Any = (Regression, TwoOptimizers)
    if case.faults:
        kinds = (FaultyRegression, FaultyTwoOptimizers)
    module: Any = kinds[isinstance(net, Pair)](net, case.optimizer)
    module.faults = case.faults
    return module


def fit(case: Case, **more: Any) -> Values:
    """Train on this rank; the network's state after ``fit``."""
    pl.seed_everything(rank_number(), verbose=False)
    module = make_module(case, seed=rank_number())
    trainer = make_trainer(case, **more)
    model: Any = torch.compile(module, backend="aot_eager") if case.compiled else module
    trainer.fit(model, loader(rank_number(), case.batches))
    if case.compiled:
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"], "nothing was compiled"
    return state_of(module.net)


def fit_all(cases: Sequence[Case]) -> dict[str, Values]:
    """Train one case after the other on this rank."""
    return {case.name: fit(case) for case in cases}


def fit_in_chunks(cases: Sequence[Case], elements: int) -> dict[str, Values]:
    """As models of millions of elements travel; a share may end in the middle of a chunk."""
    with mock.patch.object(shard, "CHUNK", elements):
        return fit_all(cases)


def state_of(net: nn.Module) -> Values:
    """A copy of the state."""
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
    """Train the twin on one more batch, ``count`` batches into the run, with its faults."""
    number = count % case.batches
    losses = [loss_on(batch_of(rank, number)) for rank in range(case.recipe.world)]
    for fault in case.faults:
        if fault.batch == count and isinstance(twin, FaultyTwin):
            twin.strike(fault)
            if fault.where == "loss":
                losses[fault.rank] = partial(_scaled, losses[fault.rank], fault.value)
    if case.net == "pair":
        twin.backward([_part(loss, "a") for loss in losses])
        twin.step(0)
        if number % B_PERIOD == B_PERIOD - 1:
            twin.backward([_part(loss, "b") for loss in losses])
            twin.step(1)
        return
    twin.backward(losses, accumulate=case.accumulate)
    # Lightning steps at an epoch's last batch too, however few batches were accumulated.
    if (number + 1) % case.accumulate == 0 or number + 1 == case.batches:
        twin.step()


def _scaled(
    loss: Callable[[nn.Module], torch.Tensor], factor: float, net: nn.Module
) -> torch.Tensor:
    return loss(net) * factor


def _part(
    loss: Callable[[nn.Module], torch.Tensor], part: str
) -> Callable[[nn.Module], torch.Tensor]:
    return lambda net: loss(getattr(net, part))


def difference(one: Values, other: Values) -> float:
    """Largest difference of two states, relative to the largest value of each tensor."""
    assert one.keys() == other.keys()
    worst = 0.0
    for name, value in one.items():
        apart = (value - other[name]).abs().max().item()
        worst = max(worst, apart / max(other[name].abs().max().item(), 1e-300) if apart else 0.0)
    return worst


def identical(one: Values, other: Values) -> bool:
    """Whether two states agree to the last bit."""
    return one.keys() == other.keys() and all(torch.equal(v, other[n]) for n, v in one.items())
