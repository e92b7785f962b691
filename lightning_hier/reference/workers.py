"""Workers, how they train, and the step of a group: mean gradients, exact or by GTC."""

from collections.abc import Callable, Sequence
from copy import deepcopy
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
    of: Literal["gradient", "update"] = "gradient"  # what GTC sends
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
    """A model, its optimizers (mostly one), and GTC's residual r by parameter.

    With GTC of updates, the model holds x - r, where x is the same on all workers of a group.
    """

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


def mean_sent(group: Sequence[Worker], copies: Any, values: list[Tensor], method: Method) -> Tensor:
    """Mean over the workers of what each sends of its value for its copy of a parameter."""
    if method.threshold is not None and len(group) > 1 and values[0].numel() >= method.exact_below:
        for k, (worker, p) in enumerate(zip(group, copies, strict=True)):
            r = worker.residuals.setdefault(p, torch.zeros_like(p))
            values[k] = send(r, values[k], method.threshold)
    return torch.stack(values).mean(0)


def group_step(group: Sequence[Worker], index: int, method: Method) -> None:
    """One step of an optimizer of all workers, with the mean of what each sends.

    Of the gradient, before the optimizer. Where only some workers have one, it is 0 on the others.
    Of the update, behind the optimizer of each worker, which has gradients of its own::

        u_k = c (a w_k - Optimizer(w_k)) + (1 - a) w_k       a = 1 - rate * decoupled weight decay
        x  <- x - mean of sent_k;   w_k = x - r_k            sent_k, r_k: GTC of u_k

    c is 1 for SGD and the root of the number of workers otherwise: steps that an optimizer has
    normalised have a length of their own whatever the noise, so their mean is shorter.
    """
    trained = zip(*(worker.parameters(index) for worker in group), strict=True)
    used = [copies for copies in trained if any(p.grad is not None for p in copies)]
    for copies in used:
        g = [torch.zeros_like(p) if p.grad is None else p.grad for p in copies]
        if method.of == "gradient":
            g = [mean_sent(group, copies, g, method)] * len(g)
        for p, gradient in zip(copies, g, strict=True):
            p.grad = gradient.clone()
    before = deepcopy(used)
    for worker in group:
        worker.optimizers[index].step()
        worker.optimizers[index].zero_grad()
    for copies, w in zip(used, before, strict=True) if method.of == "update" else ():
        settings = settings_of(group[0].optimizers[index], copies[0])
        decay = settings["weight_decay"] if settings.get("decoupled_weight_decay") else 0.0
        a = 1 - settings["lr"] * decay
        c = 1.0 if isinstance(group[0].optimizers[index], optim.SGD) else len(group) ** 0.5
        u = [c * (a * own - p) + (1 - a) * own for p, own in zip(copies, w, strict=True)]
        x = w[0] + group[0].residuals.get(copies[0], 0.0)
        x = x - mean_sent(group, copies, u, method)
        for worker, p in zip(group, copies, strict=True):
            p.copy_(x - worker.residuals.get(p, 0.0))


def settings_of(optimizer: optim.Optimizer, p: nn.Parameter) -> dict[str, Any]:
    """The parameter group of a parameter."""
    return next(g for g in optimizer.param_groups if any(p is own for own in g["params"]))


def shift(workers: Sequence[Worker], method: Method, sign: float) -> None:
    """Turn x - r into x with a sign of 1, and back with -1, in place."""
    for worker in workers if method.of == "update" else ():
        for p, r in worker.residuals.items():
            p.add_(r, alpha=sign)
