"""Float64 twins of runs in which groups are weighted by the samples of their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hier import BMUF, DiLoCo
from tests.equivalence.cases import Case, case, make_module, make_trainer, make_twin, state_of
from tests.equivalence.fragment_twins import FragmentCase, FragmentTwin, Part, fragment_case
from tests.equivalence.late_adam_twins import Groups, LateAdamTwin, LateCase
from tests.equivalence.tasks import Batch, batch_of, loss_on, rank_number
from tests.equivalence.twins import Sgd, Twin, Values

SAMPLES: dict[str, Any] = {"weighting": "samples"}


def batch(case: Any, rank: int, number: int) -> Batch:
    """A batch whose size differs between groups and between batches."""
    group = rank // case.recipe.group
    return batch_of(rank, number, (2, 7, 4, 12)[group] + (number * (group + 1)) % 3)


def batches(case: Any, rank: int) -> list[Batch]:
    """All batches of a rank in an epoch."""
    return [batch(case, rank, number) for number in range(case.batches)]


def shares(samples: Sequence[float], size: int) -> tuple[list[float], float]:
    """Weights p_k of the groups of ``size`` workers, and N_eff."""
    of_groups = [sum(samples[first : first + size]) for first in range(0, len(samples), size)]
    if not any(of_groups):
        of_groups = [1.0] * len(of_groups)
    p = [own / sum(of_groups) for own in of_groups]
    return p, 1 / sum(own * own for own in p)


class WeightedTwin(FragmentTwin):
    """Counts the samples since the last send, for each fragment and for the buffers."""

    samples: list[list[float]]
    pending: list[float]

    def begin(self, *args: Any, **settings: Any) -> None:
        """Divide the parameters, and set all counts to zero."""
        super().begin(*args, **settings)
        self.samples = [[0.0] * len(self.workers) for _ in range(len(self.parts) + 1)]
        self.pending = [0.0] * len(self.workers)

    def step(self, index: int = 0) -> None:
        """Count the samples of the step, and apply it."""
        for own in self.samples:
            own[:] = [a + b for a, b in zip(own, self.pending, strict=True)]
        self.pending = [0.0] * len(self.workers)
        super().step(index)

    def _samples_of(self, part: Part) -> list[float]:
        return next(s for s, p in zip(self.samples, self.parts, strict=False) if p is part)

    def _send(self, part: Part) -> None:
        super()._send(part)
        self._samples_of(part)[:] = [0.0] * len(self.workers)

    def _apply(self, part: Part) -> None:
        """Apply the update, and multiply the samples of the steps since the send by ``merge``.

        This is the fraction of their local update that is kept.
        """
        arrives = part.travelling is not None
        super()._apply(part)
        if arrives and self.timing.delay and self.timing.merge != "progress":
            own = self._samples_of(part)
            own[:] = [number * self.timing.merge for number in own]

    def _average(self, part: Part, updates: Sequence[Any]) -> Values:
        p, effective = shares(self._samples_of(part), self.recipe.group)
        pairs = list(zip(p, updates, strict=True))
        mean = {name: sum(own * g[name] for own, g in pairs) for name in part.names}
        return {**mean, "N_eff": torch.tensor(effective, dtype=torch.float64)}

    def _mean_buffer(self, name: str) -> Tensor:
        p, _ = shares(self.samples[-1], self.recipe.group)
        own = [worker.model.get_buffer(name) for worker in self.leaders]
        if not own[0].is_floating_point():
            return own[0]
        return torch.stack([a * b for a, b in zip(p, own, strict=True)]).sum(0)

    def _average_buffers(self) -> None:
        super()._average_buffers()
        self.samples[-1] = [0.0] * len(self.workers)


class WeightedBlocks(Twin):
    """Counts samples for each optimizer. Each mean has its eta = 1 - zeta / N_eff."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        nothing = [0.0] * len(self.workers)
        self.samples = [list(nothing) for _ in self.optimizers]

    def count(self, sizes: Sequence[int]) -> None:
        """Count a batch of every worker for all optimizers."""
        self.samples = [[a + b for a, b in zip(s, sizes, strict=True)] for s in self.samples]

    def _weigh(self, index: int) -> None:
        self.p, effective = shares(self.samples[index], self.recipe.group)
        self.recipe = replace(self.recipe, eta=1 - self.recipe.zeta / effective)

    def _mean_over(self, own: Sequence[Any]) -> Any:
        return sum(a * b for a, b in zip(self.p, own, strict=True))

    def _mean(self, index: int) -> Values:
        self._weigh(index)
        return super()._mean(index)

    def _mean_buffer(self, name: str) -> Tensor:
        self._weigh(0)
        return super()._mean_buffer(name)

    def _end_block(self, index: int) -> None:
        self._weigh(index)
        super()._end_block(index)
        self.samples[index] = [0.0] * len(self.workers)


class WeightedAdam(WeightedTwin, LateAdamTwin):
    """Moments and step counts with the same weights and the same eta."""

    def _groups(self, part: Part) -> tuple[Groups, float]:
        p, effective = shares(self._samples_of(part), self.recipe.group)
        leaders = self.workers[:: self.recipe.group]
        return list(zip(leaders, p, strict=True)), 1 - 1 / effective


def diloco(w: Values, updates: Sequence[Values], *, nu: float) -> Any:
    """Outer steps of DiLoCo (algorithm 1) with mu = 1 - nu / N_eff of each mean."""
    w = {name: value.clone() for name, value in w.items()}
    for name, value in w.items():
        m = torch.zeros_like(value)
        for g in updates:
            mu = 1 - nu / g["N_eff"]
            m = mu * m + g[name]
            value += nu * (g[name] + mu * m)
    return w, w


def bmuf(w: Values, updates: Sequence[Values], *, zeta: float, c: float) -> Any:
    """Outer steps of BMUF (eq. 3, 4 and 6) with eta = 1 - zeta / (C N_eff) of each mean."""
    w, start = {name: value.clone() for name, value in w.items()}, dict(w)
    for name, value in w.items():
        delta = torch.zeros_like(value)
        for g in updates:
            eta = 1 - zeta / (c * g["N_eff"])
            delta = eta * delta + zeta * g[name]
            value += delta
            start[name] = value + eta * delta
    return w, start


@dataclass(frozen=True, kw_only=True)
class WeightedCase(FragmentCase):
    """A run in fragments in which groups are weighted by their samples."""

    def twin(self, net: nn.Module, names: Sequence[tuple[str, ...]]) -> Twin:
        [own] = names
        twin = WeightedTwin(net, self.recipe, [Sgd(names=own, lr=self.lr, momentum=self.momentum)])
        twin.begin(self.timing, self.outer, resets=self.resets)
        return twin


def averaging(w: Values, updates: Sequence[Values]) -> Any:
    """Outer steps of model averaging (eq. 1)."""
    w = {name: value + sum(g[name] for g in updates) for name, value in w.items()}
    return w, w


def weighted(name: str, sync: Any, *, group: int = 1, run: Any = None, **own: Any) -> Any:
    """A run with a block synchronisation of class ``sync`` that is weighted by samples."""
    plain = fragment_case(name, sync, group=group, run=run, **SAMPLES, **own)
    block_sync = sync(**own)
    outer: Any = averaging
    if sync is DiLoCo:
        outer = partial(diloco, nu=block_sync.outer_lr)
    elif sync is BMUF:
        outer = partial(bmuf, zeta=block_sync.block_lr, c=block_sync.c)
    return WeightedCase(**{**vars(plain), "outer": outer})


@dataclass(frozen=True, kw_only=True)
class WeightedAdamCase(LateCase):
    """A run of BMUF-Adam, with or without overlap."""

    twin_kind: Any = WeightedAdam
    outer: Any = field(default_factory=lambda: partial(bmuf, zeta=1.0, c=1.0))


@dataclass(frozen=True, kw_only=True)
class BlocksCase(Case):
    """A run of SGD in blocks of the whole model."""

    def twin(self, net: nn.Module, names: Sequence[tuple[str, ...]]) -> Twin:
        sgds = [Sgd(names=own, lr=self.lr, momentum=self.momentum) for own in names]
        return WeightedBlocks(net, self.recipe, sgds)


def blocks_case(name: str, kind: Any, sync: Any, **own: Any) -> Any:
    """A run of class ``kind`` that is weighted by samples."""
    return case(name, kind=kind, sync=sync, **SAMPLES, **{"group_size": 1, **own})


def fit_by_samples(cases: Sequence[Any]) -> dict[str, Values]:
    """Train the cases one after the other on this rank, and return their final states."""
    states = {}
    for each in cases:
        module, data = make_module(each, seed=rank_number()), batches(each, rank_number())
        validation: Any = DataLoader(data[:1], batch_size=None)
        make_trainer(each).fit(module, DataLoader(data, batch_size=None), validation)
        states[each.name] = state_of(module.net)
    return states


def run_by_samples(own: Any) -> Any:
    """Train the twin of a case."""
    twin: Any = make_twin(own)
    for count in range(own.batches * own.epochs):
        number = count % own.batches
        for rank, worker in enumerate(twin.workers):
            data = batch(own, rank, number)
            worker.add_gradient(loss_on(data), 1.0 / own.accumulate)
            twin.pending[rank] += len(data.x)
        if (number + 1) % own.accumulate == 0 or number + 1 == own.batches:
            twin.step()
    return twin
