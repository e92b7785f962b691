"""Parameter servers in the serial order of their messages: PSP-SGD and two-stage ASGD."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn, optim


@torch.no_grad()
def descend(
    w: Sequence[nn.Parameter], updater: optim.Optimizer, g: Sequence[Tensor], d: int = 1
) -> None:
    """w <- w - d eta Updater(g), in place."""
    before = [own.clone() for own in w]
    for own, gradient in zip(w, g, strict=True):
        own.grad = gradient.clone()
    updater.step()
    for own, old in zip(w, before, strict=True):
        own.copy_(old + d * (own - old))


class Server:
    """A server of PSP-SGD with version t of its shard w (psp, algorithm 1, lines 4 to 14)."""

    def __init__(self, w: Sequence[nn.Parameter], updater: optim.Optimizer, c: int) -> None:
        self.w, self.updater, self.c, self.t = w, updater, c, 0
        self.gradients: list[Sequence[Tensor]] = []

    def push(self, g: Sequence[Tensor], t: int) -> None:
        """Take a gradient for version t, if not late. After c: w <- w - c eta Updater(sum / c)."""
        if t >= self.t:
            self.gradients.append(g)
        if len(self.gradients) == self.c:
            g_over_c = [torch.stack(same).mean(0) for same in zip(*self.gradients, strict=True)]
            descend(self.w, self.updater, g_over_c, d=self.c)
            self.t, self.gradients = self.t + 1, []


class Node:
    """A node of two-stage ASGD: its replica w, an optimizer of w for each device, S and n."""

    def __init__(self, w: Sequence[nn.Parameter], optimizers: Sequence[optim.Optimizer]) -> None:
        self.w, self.optimizers = w, optimizers
        self.S, self.n = [torch.zeros_like(own) for own in w], 0

    def step(self, g: Sequence[Tensor], device: int = 0) -> None:
        """w <- w - eta g; S <- S + g (two-stage eq. 2 and 3)."""
        descend(self.w, self.optimizers[device], g)
        self.S, self.n = [s + own for s, own in zip(self.S, g, strict=True)], self.n + 1

    def push(self, W: Sequence[nn.Parameter], optimizer: optim.Optimizer) -> None:
        """W <- W - gamma S with gamma = eta / n, at the master (eq. 4 and 5)."""
        descend(W, optimizer, [s / self.n for s in self.S])
        self.S, self.n = [torch.zeros_like(s) for s in self.S], 0

    def pull(self, W: Sequence[Tensor]) -> None:
        """w <- W."""
        for own, value in zip(self.w, W, strict=True):
            own.data.copy_(value)
