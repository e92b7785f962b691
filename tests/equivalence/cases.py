"""Training runs in two forms: for a Trainer on real ranks, and for the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any
from unittest import mock

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import Strategy
from torch import Tensor, nn

import lightning_hier as lh
from lightning_hier import BMUF, GTC, HierarchicalStrategy
from lightning_hier.algorithms import chunks
from lightning_hier.comm.blocks.bmuf import LocalOptimizerSync
from lightning_hier.reference import BlockMomentum, DiLoCo, Method, Training, Worker
from tests.equivalence.tasks import (
    B_PERIOD,
    Batch,
    Pair,
    Regression,
    TwoOptimizers,
    batch_of,
    loader,
    loss_of,
    make_net,
    rank_number,
)
from tests.trainer import fitting

StrategyMaker = Callable[[], Strategy | str]
Values = dict[str, Tensor]


class AutoDiLoCo(DiLoCo):
    """SGD as outer optimizer with the momentum 1 - nu / N for the mean of N models."""

    def step(self, G: Tensor, n: float) -> None:
        """Set the momentum, and make the step."""
        [group] = self.optimizer.param_groups
        group["momentum"] = 1 - group["lr"] / n
        super().step(G, n)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training run.

    Attributes:
        name: name in the test report.
        strategy: makes a new strategy, because two Trainers cannot share one.
        method: settings of the strategy for the reference.
        world: number of workers.
        by_samples: whether groups count by their samples.
        net: a key of ``NETS``.
        batches: number of batches of each rank in one epoch.
        epochs: number of passes over the same batches.
        accumulate: number of batches in a step.
        lr: learning rate.
        momentum: momentum of SGD.
        rule: makes another optimizer than SGD.
        biases: settings of this optimizer for biases, if they are different.
        options: further settings of this optimizer, which the reference does not have.
        frozen_too: whether the optimizer holds frozen parameters as well.
        compiled: whether the module is compiled.
        trainer: further arguments of the Trainer.
        tolerance: largest difference from the reference.

    """

    name: str
    strategy: StrategyMaker
    method: Method = field(default_factory=Method)
    world: int = 4
    by_samples: bool = False
    net: str = "mlp"
    batches: int = 7
    epochs: int = 1
    accumulate: int = 1
    lr: float = 0.1
    momentum: float = 0.0
    rule: Any = None
    biases: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    frozen_too: bool = False
    compiled: bool = False
    trainer: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-10

    def optimizer(self, net: nn.Module, *, plain: bool = False) -> torch.optim.Optimizer:
        """The optimizer of a network, or a ``plain`` one without the options."""
        held = {n: p for n, p in net.named_parameters() if p.requires_grad or self.frozen_too}
        if self.rule is None:
            return torch.optim.SGD(held.values(), lr=self.lr, momentum=self.momentum)
        groups: list[dict[str, Any]] = [{"params": list(held.values())}]
        if self.biases is not None:
            biases = [p for n, p in held.items() if n.endswith("bias")]
            others = [p for n, p in held.items() if not n.endswith("bias")]
            groups = [{"params": others}, {"params": biases, **self.biases}]
        optimizer: torch.optim.Optimizer = self.rule(groups, **({} if plain else self.options))
        return optimizer


def case(
    name: str, strategy: Any = HierarchicalStrategy, *, sync: Any = BMUF, **settings: Any
) -> Case:
    """A run of a strategy without warm-up, and the same settings for the reference.

    Args:
        name: name in the test report.
        strategy: a preset, or `HierarchicalStrategy` with a `sync` and a GTC. Those are created
            from the settings that are fields of their classes.
        sync: class of the block synchronisation.
        settings: fields of the case, and arguments of the strategy.

    """
    of_case = _taken(settings, Case)
    if strategy is HierarchicalStrategy:
        gtc = _taken(settings, GTC)
        settings["gradient_sync"] = GTC(**gtc) if gtc else None
        settings["block_sync"] = sync(**_taken(settings, sync))
    make = _with_numbers(partial(strategy, **{"warmup_steps": 0, **settings}), of_case)
    own = Case(name=name, strategy=make, **of_case)
    return replace(own, **_symbols_of(make, own))


def fragment_case(name: str, sync: Any = lh.DiLoCo, *, group: int = 1, **settings: Any) -> Case:
    """A run in blocks of four steps of SGD with momentum."""
    own = {"block_size": 4, "momentum": 0.8, "lr": 0.05, "batches": 11}
    more = {"find_unused_parameters": True, "sync": sync, "group_size": group}
    return case(name, **{**own, **more, **settings})


def changed(base: Case, name: str, **settings: Any) -> Case:
    """The same run with another name and other settings of its strategy."""
    strategy: Any = base.strategy
    sync = strategy.keywords.get("block_sync")
    if sync is not None:
        settings["block_sync"] = replace(sync, **_taken(settings, type(sync)))
    make = partial(strategy, **settings)
    return replace(base, name=name, strategy=make, **_symbols_of(make, base))


def _with_numbers(make: partial[Any], of_case: dict[str, Any]) -> partial[Any]:
    """Set the momentum of equation 10 between blocks, and keep the rate of the optimizer.

    Runs of a few blocks have less momentum by default.
    """
    instance, world = make(), of_case.get("world", Case.world)
    sync: Any = instance.block_sync
    numbers: dict[str, Any] = {}
    if sync is None:
        return make
    models = 1 if instance.group_size == "world" else world // instance.group_size
    varies = sync.weighting == "samples"  # its momentum does not depend on the length of the run
    if getattr(sync, "block_momentum", None) == "auto" and not varies:
        numbers["block_momentum"] = sync.eta(models)
    is_set = getattr(sync, "outer_optimizer", None) is not None
    if getattr(sync, "outer_momentum", None) == "auto" and not (varies or is_set):
        numbers["outer_momentum"] = sync.momentum(models)
    if isinstance(sync, LocalOptimizerSync) and sync.local_lr == "auto":
        numbers["local_lr"] = "keep"
    if make.func is HierarchicalStrategy:
        numbers = {"block_sync": replace(sync, **numbers)}
    return partial(make, **numbers)


def _taken(settings: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Remove the settings that are fields of a dataclass, and return them."""
    return {each.name: settings.pop(each.name) for each in fields(kind) if each.name in settings}


def _symbols_of(strategy: Callable[[], Any], run: Case) -> dict[str, Any]:
    """What the settings of a strategy are for the reference."""
    instance, world = strategy(), run.world
    sync, gtc = instance.block_sync, instance.gradient_sync
    group = world if instance.group_size == "world" else instance.group_size
    symbols = {"group": group, "warmup": instance.warmup_steps}
    of = "update" if run.momentum or run.rule else "gradient"
    if isinstance(gtc, GTC) and gtc.of != "auto":
        of = gtc.of
    if isinstance(gtc, GTC) and gtc.threshold != "auto":
        symbols |= {"threshold": gtc.threshold, "exact_below": gtc.dense_below, "of": of}
    if sync is not None:
        symbols |= {
            "tau": sync.block_size,
            "outer": _outer_of(sync),
            "moments": getattr(sync, "moments", "keep"),
            "moments_every": getattr(sync, "moments_every", 1),
            "momentum": getattr(sync, "local_momentum", "keep").replace("auto", "keep"),
            "fragments": sync.fragments,
            # A single group has no exchange, and so no delay.
            "delay": sync.delay(sync.steps) if sync.overlap and group < world else 0,
            "merge": sync.merge,
        }
    by_samples = sync is not None and sync.weighting == "samples"
    return {"method": Method(**symbols), "by_samples": by_samples}


def _outer_of(sync: Any) -> Any:
    """The outer step of a block synchronisation."""
    if isinstance(sync, lh.DiLoCo):
        mu = 0.5 if sync.outer_momentum == "auto" else sync.outer_momentum
        nesterov = sync.nesterov and mu > 0
        sgd = partial(torch.optim.SGD, lr=sync.outer_lr, momentum=mu, nesterov=nesterov)
        kind = AutoDiLoCo if sync.outer_momentum == "auto" else DiLoCo
        return partial(kind, optimizer=sync.outer_optimizer or sgd)
    if isinstance(sync, lh.ModelAveraging):
        return partial(BlockMomentum, eta=0.0)
    return partial(
        BlockMomentum,
        eta=None if sync.block_momentum == "auto" else sync.block_momentum,
        zeta=getattr(sync, "block_lr", 1.0),
        c=getattr(sync, "c", 1.0),
        nesterov=sync.nesterov,
        literal=getattr(sync, "update_from", "global") == "start",
    )


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
    model: Any = torch.compile(module, backend="eager") if case.compiled else module
    trainer.fit(model, loader(rank_number(), case.batches))
    if case.compiled:
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"], "nothing was compiled"
    return state_of(module.net)


def fit_all(cases: Sequence[Case]) -> dict[str, Values]:
    """Train the cases one after the other on this rank."""
    return {case.name: fit(case) for case in cases}


def in_chunks(train_all: Callable[..., Any], cases: Sequence[Case], elements: int) -> Any:
    """Train the cases with small chunks, as if their models had millions of elements.

    A shard or the moments of a parameter may end in the middle of a chunk.
    """
    with mock.patch.multiple(chunks, EXCHANGED=elements, EXCHANGED_ON_HOST=elements):
        return train_all(cases)


def state_of(net: nn.Module) -> Values:
    """A copy of the state of a network."""
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def make_reference(case: Case) -> Training:
    """The reference with the settings of a case, before its first step."""
    workers = []
    for _ in range(case.world):
        net = make_net(case.net)
        parts = (net.a, net.b) if isinstance(net, Pair) else (net,)
        workers.append(Worker(net, [case.optimizer(part, plain=True) for part in parts]))
    return Training(workers, case.method)


def run_reference(case: Case, batch_of: Callable[[int, int], Batch] = batch_of) -> Training:
    """Train the reference through all epochs."""
    training = make_reference(case)
    for number in range(case.epochs * case.batches):
        train_batch(case, training, number, batch_of)
    return training


def train_batch(
    case: Case,
    training: Training,
    count: int,
    batch_of: Callable[[int, int], Batch] = batch_of,
) -> None:
    """Train the reference on one more batch.

    Args:
        case: the run.
        training: the reference with the settings of the case.
        count: number of batches that it has trained.
        batch_of: the batch of a rank by its number in the epoch.

    """
    number = count % case.batches
    ranks = range(case.world)
    batches = [batch_of(rank, number) for rank in ranks]
    parts = ("a", "b") if case.net == "pair" else ("",)
    for index, part in enumerate(parts):
        if index == 1 and number % B_PERIOD != B_PERIOD - 1:
            return
        for worker, batch in zip(training.workers, batches, strict=True):
            net: Any = getattr(worker.model, part) if part else worker.model
            (loss_of(net, batch) / case.accumulate).backward()
        # Lightning also steps at the last batch of an epoch if it has accumulated fewer batches.
        if (number + 1) % case.accumulate == 0 or number + 1 == case.batches:
            first = number + 1 - B_PERIOD if index else number - number % case.accumulate
            own = [sum(len(batch_of(r, n).x) for n in range(first, number + 1)) for r in ranks]
            training.step(index, own if case.by_samples else None)


def parameters_of(worker: Worker) -> Values:
    """A copy of the trained parameters of a worker of the reference."""
    named = worker.model.named_parameters()
    return {name: p.detach().clone() for name, p in named if p.requires_grad}


def difference(one: Values, other: Values) -> float:
    """Largest difference of two states, relative to the largest value of each tensor."""
    assert one.keys() == other.keys()
    worst = 0.0
    for name, value in one.items():
        error = (value - other[name]).abs().max().item()
        worst = max(worst, error / max(other[name].abs().max().item(), 1e-300) if error else 0.0)
    return worst


def check_final(case: Case, states: Sequence[dict[str, Values]], expected: Values) -> None:
    """Check that all ranks end with the same bits, and with the values of the reference."""
    assert difference(states[0][case.name], expected) < case.tolerance
    for rank, own in enumerate(states):
        assert identical(own[case.name], states[0][case.name]), f"rank {rank}"


def identical(one: Values, other: Values) -> bool:
    """Whether two states are bit-equal."""
    return one.keys() == other.keys() and all(torch.equal(v, other[n]) for n, v in one.items())
