"""Workers, how they train, and the step of a group: mean gradients, exact or by GTC."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn, optim


@dataclass(frozen=True, kw_only=True)
class Method:
    """Settings of both tiers."""

    group: int = 1  # P, workers in a group; groups are consecutive
    threshold: float | None = None  # T of GTC inside groups; None: exact means
    exact_below: int = 0  # tensors with fewer elements have exact means
    tau: int = 0  # steps in a block; 0: nothing is averaged across groups
    outer: Any = None  # makes the outer step from W: partial(BlockMomentum, eta=0.0) for MA
    moments: Literal["keep", "corrected", "average"] = "keep"  # of Adam, across groups
    moments_every: int = 1  # sends of a fragment for one of its moments (DES-LOC)
    momentum: Literal["keep", "reset", "average"] = "keep"  # of SGD, across groups (bmuf eq. 8)
    fragments: int = 1  # n
    delay: int = 0  # steps from sending a fragment to applying it
    merge: float | Literal["progress"] = "progress"  # alpha, or keep the steps made in flight
    codec: Callable[[Tensor], Tensor] = torch.clone  # what arrives; the rest is sent later
    groups_per_host: int = 1  # groups whose sum is sent as one vector
    warmup: int = 0  # first steps, with the mean gradient of all workers


@dataclass
class Worker:
    """A model, its optimizers (mostly one), and GTC's residual r by parameter."""

    model: nn.Module
    optimizers: Sequence[optim.Optimizer]
    residuals: dict[nn.Parameter, Tensor] = field(default_factory=dict)

    def parameters(self, index: int = 0) -> list[nn.Parameter]:
        """The trained parameters of one optimizer, in the order of the module."""
        held = {p for group in self.optimizers[index].param_groups for p in group["params"]}
        return [p for p in self.model.parameters() if p in held and p.requires_grad]


def send(r: Tensor, g: Tensor, threshold: float) -> Tensor:
    """What is sent of a gradient g, with T = ``threshold`` (two-tiered, section 2.1)::

        r <- r + g
        sent = +T where r > T, -T where r < -T, 0 elsewhere
        r <- r - sent

    Over any number of steps, the sum of sent values plus r is the sum of g. Changes r in place.
    """
    r += g
    sent = threshold * ((r > threshold).to(r) - (r < -threshold).to(r))
    r -= sent
    return sent


def group_step(group: Sequence[Worker], index: int, threshold: float | None, least: int) -> None:
    """One step of an optimizer of all workers, with the mean of what each sends of ``.grad``.

    All have the same parameters. Tensors of fewer than ``least`` elements are sent whole. Gradients
    of parameters that only some workers have used are zero on the others.
    """
    for copies in zip(*(worker.parameters(index) for worker in group), strict=True):
        if any(p.grad is not None for p in copies):
            sent = [torch.zeros_like(p) if p.grad is None else p.grad for p in copies]
            if threshold is not None and len(group) > 1 and copies[0].numel() >= least:
                for k, (worker, p) in enumerate(zip(group, copies, strict=True)):
                    r = worker.residuals.setdefault(p, torch.zeros_like(p))
                    sent[k] = send(r, sent[k], threshold)
            for p in copies:
                p.grad = torch.stack(sent).mean(0)
    for worker in group:
        worker.optimizers[index].step()
        worker.optimizers[index].zero_grad()
