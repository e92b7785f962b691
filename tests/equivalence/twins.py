"""Float64 twins: N workers simulated in one process, from the papers' equations.

A twin shares no code with the package. It is slow and simple on purpose: every worker is a copy of
the model, tensors are accessed by name, and each equation has the form in which it is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module

Values = dict[str, Tensor]
Loss = Callable[[Module], Tensor]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a twin, in the papers' symbols.

    Attributes:
        world: N, the number of workers.
        group: P, the number of workers in a group. Groups are consecutive.
        tau: steps in a block. None: there is one group, and no models are averaged.
        eta: block momentum.
        zeta: block learning rate.
        look_ahead: whether block momentum is Nesterov's (NBM). Otherwise it is classical (CBM).
        update_from: model to which Delta is added: W(t-1), "global", or W_g(t-1), "start".
        local_momentum: treatment of SGD's momentum at the start of a block.
        threshold: T of GTC. None: gradients are averaged exactly.
        exact_below: tensors with fewer elements are averaged exactly under GTC as well.
        warmup: number of first steps in which every optimizer averages over all N workers.
        overlap: whether the local updates of a block are averaged during the next one.

    """

    world: int = 4
    group: int = 1
    tau: int | None = None
    eta: float = 0.0
    zeta: float = 1.0
    look_ahead: bool = True
    update_from: Literal["global", "start"] = "global"
    local_momentum: Literal["reset", "keep", "average"] = "reset"
    threshold: float | None = None
    exact_below: int = 0
    warmup: int = 0
    overlap: bool = False


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """One optimizer: the names of its parameters, learning rate and momentum."""

    names: tuple[str, ...]
    lr: float
    momentum: float = 0.0


@dataclass
class Block:
    """Global state of one optimizer's parameters: W(t-1), W_g(t-1) and Delta(t-1).

    With overlap, also the mean local update of the last block, which is in flight.
    """

    w: Values
    start: Values
    delta: Values
    steps: int = 0
    steps_in_block: int = 0
    travelling: Values = field(default_factory=dict)

    def advanced(self, mean: Values, recipe: Recipe) -> Block:
        """The state after one more block, from the mean of the local models (bmuf eq. 2 to 6)."""
        return self.moved({name: mean[name] - self.start[name] for name in self.w}, recipe)

    def moved(self, g: Values, recipe: Recipe) -> Block:
        """The state after one more block, from the mean local update ``g`` (eq. 3 to 6)."""
        w, start, delta = {}, {}, {}
        for name in self.w:
            delta[name] = recipe.eta * self.delta[name] + recipe.zeta * g[name]
            base = self.w[name] if recipe.update_from == "global" else self.start[name]
            w[name] = base + delta[name]
            ahead = recipe.eta * delta[name] if recipe.look_ahead else 0.0
            start[name] = w[name] + ahead
        return Block(w, start, delta, self.steps)


@dataclass
class Worker:
    """One worker: its model, summed gradients, residuals, momenta and block-start weights."""

    model: Module
    gradients: Values = field(default_factory=dict)
    residuals: Values = field(default_factory=dict)
    momenta: Values = field(default_factory=dict)
    begun_with: Values = field(default_factory=dict)

    def values(self) -> Values:
        """The trainable parameters. Tied parameters occur once."""
        return {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}

    def add_gradient(self, loss: Loss, scale: float) -> None:
        """Add the gradient of one mini-batch. A parameter that it does not use has no gradient."""
        named = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(
            loss(self.model) * scale, list(named.values()), allow_unused=True
        )
        for name, gradient in zip(named, gradients, strict=True):
            if gradient is not None:
                self.gradients[name] = self.gradients.get(name, 0.0) + gradient

    def descend(self, name: str, gradient: Tensor, sgd: Sgd) -> None:
        """Apply one step of SGD with classical momentum."""
        velocity = sgd.momentum * self.momenta.get(name, torch.zeros_like(gradient)) + gradient
        self.momenta[name] = velocity
        self.values()[name].sub_(sgd.lr * velocity)

    def send(self, name: str, gradient: Tensor, threshold: float) -> Tensor:
        """GTC (2.1): send elements above the threshold as plus or minus T, and keep the rest."""
        r = self.residuals.get(name, torch.zeros_like(gradient)) + gradient
        sent = threshold * ((r > threshold).double() - (r < -threshold).double())
        self.residuals[name] = r - sent
        return sent


class Twin:
    """N workers that train one model with the settings of a recipe."""

    def __init__(self, model: Module, recipe: Recipe, optimizers: Sequence[Sgd]) -> None:
        """Start all workers from ``model``, in float64."""
        self.recipe = recipe
        self.optimizers = list(optimizers)
        self.workers = [Worker(deepcopy(model).double()) for _ in range(recipe.world)]
        values = self.workers[0].values()
        self.blocks = [
            Block(
                {name: values[name].clone() for name in sgd.names},
                {name: values[name].clone() for name in sgd.names},
                {name: torch.zeros_like(values[name]) for name in sgd.names},
            )
            for sgd in self.optimizers
        ]

    @property
    def warming(self) -> bool:
        """Whether an optimizer has not completed its warm-up steps."""
        return any(block.steps < self.recipe.warmup for block in self.blocks)

    @property
    def leaders(self) -> list[Worker]:
        """The first worker of every group. In the warm-up, all workers are one group."""
        return self.workers[:: self.recipe.world if self.warming else self.recipe.group]

    def backward(self, losses: Sequence[Loss], *, accumulate: int = 1) -> None:
        """One mini-batch on every worker, one of ``accumulate`` in a step."""
        for worker, loss in zip(self.workers, losses, strict=True):
            worker.add_gradient(loss, 1.0 / accumulate)

    def step(self, index: int = 0) -> None:
        """One step of one optimizer on all workers. The last step of a block also ends it."""
        warming, block = self.warming, self.blocks[index]
        size = self.recipe.world if warming else self.recipe.group
        for first in range(0, self.recipe.world, size):
            self._step_group(self.workers[first : first + size], self.optimizers[index], warming)
        block.steps += 1
        if warming:
            if not self.warming:
                self._open_blocks()
        else:
            block.steps_in_block += 1
            if block.steps_in_block == self.recipe.tau:
                self._end_block(index)

    def global_model(self) -> Values:
        """W and the buffers that ``fit`` would return if training ended here, by name."""
        model = deepcopy(self.workers[0].model)
        parameters = dict(model.named_parameters())
        if self.recipe.tau is not None and not self.warming:
            for index, block in enumerate(self.blocks):
                if self.recipe.overlap:
                    block = self._landed(index)
                    if block.steps_in_block:
                        block = block.moved(self._mean_made(index), self.recipe)
                elif block.steps_in_block:
                    block = block.advanced(self._mean(index), self.recipe)
                for name, value in block.w.items():
                    parameters[name].detach().copy_(value)
        for name, buffer in model.named_buffers():
            buffer.copy_(self._mean_buffer(name))
        return {name: value.detach().clone() for name, value in model.state_dict().items()}

    def local_model(self, rank: int) -> Values:
        """The parameters of one worker before its next step."""
        return {name: value.clone() for name, value in self.workers[rank].values().items()}

    def _step_group(self, group: list[Worker], sgd: Sgd, warming: bool) -> None:
        for name in sgd.names:
            gradients = [worker.gradients.pop(name, None) for worker in group]
            if all(gradient is None for gradient in gradients):
                continue
            value = group[0].values()[name]
            own = [torch.zeros_like(value) if one is None else one for one in gradients]
            t = self.recipe.threshold
            exact = warming or len(group) == 1 or value.numel() < self.recipe.exact_below
            if t is not None and not exact:
                own = [w.send(name, g, t) for w, g in zip(group, own, strict=True)]
            mean = torch.stack(own).mean(0)
            for worker in group:
                worker.descend(name, mean, sgd)

    def _mean(self, index: int) -> Values:
        values = [worker.values() for worker in self.leaders]
        names = self.optimizers[index].names
        return {name: self._mean_over([one[name] for one in values]) for name in names}

    def _mean_over(self, own: Sequence[Any]) -> Any:
        """Mean of one value per group."""
        return sum(own) / len(own)

    def _mean_buffer(self, name: str) -> Tensor:
        """The mean of a float buffer without block momentum, or an integer buffer of worker 0."""
        own = [worker.model.get_buffer(name) for worker in self.leaders]
        return self._mean_over(own) if own[0].is_floating_point() else own[0]

    def _open_blocks(self) -> None:
        values = self.workers[0].values()
        for block in self.blocks:
            block.w = {name: values[name].clone() for name in block.w}
            block.start = dict(block.w)
        self._spread_buffers(self.workers[0].model)

    def _end_block(self, index: int) -> None:
        groups = self.recipe.world // self.recipe.group
        if self.recipe.overlap:
            self._end_overlapped(index)
        else:
            mean = self._mean(index)
            self.blocks[index] = self.blocks[index].advanced(mean, self.recipe)
            for worker in self.workers:
                for name, value in self.blocks[index].start.items():
                    worker.values()[name].copy_(value)
        block = self.blocks[index]
        if self.recipe.local_momentum == "average":
            self._average_momenta(index)
        elif self.recipe.local_momentum == "reset" and groups > 1:
            for worker in self.workers:
                for name in block.w:
                    worker.momenta.pop(name, None)
        if index == 0:
            mean = deepcopy(self.workers[0].model)
            for name, buffer in mean.named_buffers():
                buffer.copy_(self._mean_buffer(name))
            self._spread_buffers(mean)

    def _end_overlapped(self, index: int) -> None:
        """Apply the update in flight, and send the local updates of the block, which are kept."""
        updates = [self._made(worker, index) for worker in self.workers]
        travelling = self._mean_made(index)
        block = self.blocks[index] = self._landed(index)
        block.steps_in_block = 0
        block.travelling = travelling
        for worker, update in zip(self.workers, updates, strict=True):
            for name, value in update.items():
                worker.begun_with[name] = block.start[name] + value
                worker.values()[name].copy_(worker.begun_with[name])

    def _landed(self, index: int) -> Block:
        block = self.blocks[index]
        landed = block.moved(block.travelling, self.recipe) if block.travelling else block
        return replace(landed, steps_in_block=block.steps_in_block)

    def _made(self, worker: Worker, index: int) -> Values:
        first = self.blocks[index].start
        return {n: worker.values()[n] - worker.begun_with.get(n, first[n]) for n in first}

    def _mean_made(self, index: int) -> Values:
        updates = [self._made(worker, index) for worker in self.leaders]
        return {name: torch.stack([own[name] for own in updates]).mean(0) for name in updates[0]}

    def _average_momenta(self, index: int) -> None:
        """Average the momenta. A worker that has had no gradient contributes zero."""
        for name, value in self.blocks[index].w.items():
            zero = torch.zeros_like(value)
            own = [worker.momenta.get(name, zero) for worker in self.leaders]
            for worker in self.workers:
                worker.momenta[name] = self._mean_over(own)

    def _spread_buffers(self, source: Module) -> None:
        for worker in self.workers:
            for name, buffer in worker.model.named_buffers():
                buffer.copy_(source.get_buffer(name))
