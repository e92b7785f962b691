"""Float64 twins of runs that synchronise their models in fragments, with or without a delay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from lightning_hier import BMUF, DiLoCo, HierarchicalStrategy, ModelAveraging
from tests.equivalence.cases import Case
from tests.equivalence.twins import Recipe, Sgd, Twin, Values

Outer = Callable[[Values, Sequence[Values]], tuple[Values, Values]]
"""Computes W and W_g from the initial W and all mean local updates."""


def outer_sgd(w: Values, updates: Sequence[Values], *, nu: float, mu: float) -> Any:
    """Outer steps of DiLoCo (algorithm 1) with Nesterov momentum."""
    w = {name: value.clone() for name, value in w.items()}
    for name, value in w.items():
        m = torch.zeros_like(value)
        for g in updates:
            m = mu * m + g[name]
            value += nu * (g[name] + mu * m)
    return w, w


def block_momentum(w: Values, updates: Sequence[Values], *, eta: float, zeta: float) -> Any:
    """Outer steps of BMUF (eq. 3, 4 and 6)."""
    w, start = {name: value.clone() for name, value in w.items()}, {}
    for name, value in w.items():
        delta = torch.zeros_like(value)
        for g in updates:
            delta = eta * delta + zeta * g[name]
            value += delta
        start[name] = value + eta * delta
    return w, start


@dataclass
class Part:
    """A fragment.

    Attributes:
        names: names of the parameters.
        first: the initial W.
        start: the current start model W_g.
        begun: for each worker, the weights relative to which its next local update is computed.
        updates: all mean local updates that have been applied.
        travelling: the mean local update in flight.
        steps: number of steps since the last send.

    """

    names: tuple[str, ...]
    first: Values
    start: Values
    begun: list[Values]
    updates: list[Values] = field(default_factory=list)
    travelling: Values | None = None
    steps: int = 0


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Schedule of the fragments.

    Attributes:
        tau: steps in a block.
        n: number of fragments.
        delay: steps between sending a fragment's update and applying it.
        merge: how the update is merged with the local steps since it was sent.

    """

    tau: int
    n: int = 1
    delay: int = 0
    merge: Any = "progress"


def divided(sizes: Mapping[str, int], n: int) -> list[tuple[str, ...]]:
    """Divide consecutive names into n fragments.

    A parameter belongs to the fragment that contains the middle of its elements.
    """
    fragments: list[list[str]] = [[] for _ in range(n)]
    before, total = 0, sum(sizes.values())
    for name, size in sizes.items():
        fragments[int(n * (2 * before + size) / (2 * total))].append(name)
        before += size
    return [tuple(names) for names in fragments]


class FragmentTwin(Twin):
    """Workers with one optimizer, whose models are averaged fragment by fragment."""

    timing: Timing
    outer: Outer
    resets: bool
    parts: list[Part]

    def begin(self, timing: Timing, outer: Outer, *, resets: bool) -> None:
        """Set the schedule and the outer step, and divide the parameters into fragments."""
        self.timing, self.outer, self.resets = timing, outer, resets
        values = self.workers[0].values()
        self.parts = []
        for own in divided({name: value.numel() for name, value in values.items()}, timing.n):
            first = {name: values[name].clone() for name in own}
            self.parts.append(Part(own, first, first, [first] * len(self.workers)))

    def step(self, index: int = 0) -> None:
        """One step of every worker, and the sends and outer steps that are due after it."""
        super().step(index)
        t, now = self.timing, self.blocks[0].steps
        for number, part in enumerate(self.parts):
            part.steps += 1
            end = t.tau * (number + 1) // t.n
            applied = now % t.tau == end % t.tau
            sent = (now - end + t.delay) % t.tau == 0
            if applied and t.delay:
                self._apply(part)
            if sent:
                self._send(part)
            if sent and not t.delay:
                self._apply(part)
            if sent and number == t.n - 1:
                self._average_buffers()

    def _send(self, part: Part) -> None:
        """Send the local updates of a fragment."""
        part.travelling, part.steps = self._mean_of(part), 0
        if self.timing.merge == "progress":
            part.begun = [self._own(part, worker) for worker in range(len(self.workers))]

    def _apply(self, part: Part) -> None:
        if part.travelling is not None:
            part.updates.append(part.travelling)
            part.travelling = None
            _, start = self.outer(part.first, part.updates)
            kept = [self._kept(part, worker, start) for worker in range(len(self.workers))]
            for worker, update in zip(self.workers, kept, strict=True):
                for name in part.names:
                    worker.values()[name].copy_(start[name] + update[name])
            part.start, part.begun = start, [start] * len(self.workers)
            if self.timing.merge == 0.0:
                part.steps = 0
        if self.resets:
            for worker in self.workers:
                for name in part.names:
                    worker.momenta.pop(name, None)

    def _own(self, part: Part, worker: int) -> Values:
        values = self.workers[worker].values()
        return {name: values[name].clone() for name in part.names}

    def _kept(self, part: Part, worker: int, start: Values) -> Values:
        own, alpha = self._own(part, worker), self.timing.merge
        if not self.timing.delay:
            return {name: torch.zeros_like(own[name]) for name in own}
        if alpha == "progress":
            return {name: own[name] - part.begun[worker][name] for name in own}
        return {name: alpha * (own[name] - start[name]) for name in own}

    def _mean_of(self, part: Part) -> Values:
        updates = [
            {name: value - part.begun[worker][name] for name, value in own.items()}
            for worker in range(0, len(self.workers), self.recipe.group)
            for own in [self._own(part, worker)]
        ]
        return self._average(part, updates)

    def _average(self, part: Part, updates: Sequence[Values]) -> Values:
        """Mean of the updates of all groups."""
        return {name: torch.stack([own[name] for own in updates]).mean(0) for name in part.names}

    def _average_buffers(self) -> None:
        mean = deepcopy(self.workers[0].model)
        for name, buffer in mean.named_buffers():
            buffer.copy_(self._mean_buffer(name))
        self._spread_buffers(mean)

    def global_model(self) -> Values:
        """The global model after the update in flight and the local steps that are not sent."""
        model = super().global_model()
        for part in self.parts:
            updates, pending = list(part.updates), part.steps > 0
            rest = self._mean_of(part)
            if part.travelling is not None:
                updates.append(part.travelling)
                _, start = self.outer(part.first, updates)
                kept = [
                    self._kept(part, worker, start)
                    for worker in range(0, len(self.workers), self.recipe.group)
                ]
                rest = self._average(part, kept)
                pending = pending and self.timing.merge != 0.0
            w, _ = self.outer(part.first, [*updates, rest] if pending else updates)
            model.update(w)
        return model


@dataclass(frozen=True, kw_only=True)
class FragmentCase(Case):
    """A run in fragments."""

    timing: Timing
    outer: Outer
    resets: bool

    def twin(self, net: nn.Module, names: Sequence[tuple[str, ...]]) -> Twin:
        """The twin of the case."""
        [own] = names
        twin = FragmentTwin(net, self.recipe, [Sgd(names=own, lr=self.lr, momentum=self.momentum)])
        twin.begin(self.timing, self.outer, resets=self.resets)
        return twin


def fragment_case(
    name: str, sync: Any = DiLoCo, *, group: int = 1, run: Any = None, **own: Any
) -> Any:
    """A run with a block synchronisation of class ``sync`` with the settings ``own``."""
    block_sync = sync(**{"block_size": 4, **own})
    # A single group has no exchange, and so no delay.
    delay = block_sync.delay(block_sync.steps) if group < 4 else 0
    timing = Timing(
        tau=block_sync.steps, n=block_sync.fragments, delay=delay, merge=block_sync.merge
    )
    outer: Any = partial(block_momentum, eta=0.0, zeta=1.0)
    if isinstance(block_sync, BMUF):
        outer = partial(block_momentum, eta=block_sync.eta(4 // group), zeta=block_sync.block_lr)
    elif isinstance(block_sync, DiLoCo):
        outer = partial(outer_sgd, nu=block_sync.outer_lr, mu=block_sync.outer_momentum)
    strategy = partial(
        HierarchicalStrategy,
        group_size=group,
        block_sync=block_sync,
        warmup_steps=0,
    )
    with_momentum = isinstance(block_sync, (BMUF, ModelAveraging))
    resets = with_momentum and block_sync.local_momentum == "reset"
    settings = {"momentum": 0.8, "lr": 0.05, "batches": 11, **(run or {})}
    return FragmentCase(
        name=name, strategy=strategy, recipe=Recipe(group=group, tau=None, local_momentum="keep"),
        timing=timing, outer=outer, resets=resets, **settings,
    )  # fmt: skip
