"""Across groups: outer steps, and fragments of the model that are sent, averaged and merged.

A plain synchronisation at the end of a block is one fragment with a delay of 0. The outer step
turns the mean local update G into the next global model W and the start model W_g of all workers.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn, optim
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lightning_hier.reference.adam import Moments
from lightning_hier.reference.workers import Method, Worker, group_step, shift


@dataclass
class BlockMomentum:
    """Model averaging (MA), and classical or Nesterov block momentum (CBM, NBM)::

        Delta(t) = eta Delta(t-1) + zeta G(t)            bmuf eq. 3
        W(t)     = W(t-1) + Delta(t)                     bmuf eq. 4
        W_g(t)   = W(t)                                  CBM, bmuf eq. 5
        W_g(t)   = W(t) + eta Delta(t)                   NBM, bmuf eq. 6

    MA has eta = 0 and zeta = 1. Without ``eta``, zeta / (N (1 - eta)) = C for the mean of N models
    (bmuf eq. 10). With ``literal``, Delta is added to W_g(t-1), as two-tiered eq. 4 is printed.
    """

    W: Tensor
    eta: float | None = None
    zeta: float = 1.0
    c: float = 1.0
    nesterov: bool = True
    literal: bool = False

    def __post_init__(self) -> None:
        self.W_g, self.Delta = self.W, torch.zeros_like(self.W)

    def eta_of(self, n: float) -> float:
        """Eta for the mean of N models. One model has none."""
        auto = 1 - self.zeta / (self.c * n) if n > 1 else 0.0
        return auto if self.eta is None else self.eta

    def step(self, G: Tensor, n: float) -> None:
        """Compute W and W_g from the mean local update of N models."""
        eta = self.eta_of(n)
        self.Delta = eta * self.Delta + self.zeta * G
        self.W = (self.W_g if self.literal else self.W) + self.Delta
        self.W_g = self.W + eta * self.Delta if self.nesterov else self.W


class DiLoCo:
    """Any optimizer, with minus the mean local update as its gradient (DiLoCo, algorithm 1).

    In the paper, SGD with lr=0.7, momentum=0.9 and nesterov=True. W_g is W, with the look-ahead.
    """

    def __init__(self, W: Tensor, optimizer: Callable[..., optim.Optimizer]) -> None:
        self.W, self.W_g = nn.Parameter(W.clone()), W
        self.optimizer = optimizer([self.W])

    def step(self, G: Tensor, n: float) -> None:
        """Compute W from the mean local update of N models, whose number does not matter."""
        self.W.grad = -G
        self.optimizer.step()
        self.W_g = self.W.detach().clone()


class Fragment:
    """Consecutive parameters of one optimizer, as one vector w_k on worker k::

        u_k = w_k - s_k                                   send; with "progress", s_k <- w_k
        G   = sum of p_k u_k over groups; outer step      apply, ``delay`` steps later
        w_k <- W_g + (w_k - s_k)                          merge = "progress"
        w_k <- alpha w_k + (1 - alpha) W_g                merge = alpha (Streaming DiLoCo eq. 3)
        s_k <- W_g

    Of the steps in a block, fragment i of n is applied after tau (i + 1) / n.
    """

    def __init__(
        self, method: Method, workers: Sequence[Worker], index: int, i: int, places: Sequence[int]
    ) -> None:
        self.method, self.index, self.i = method, index, i
        self.optimizers = [worker.optimizers[index] for worker in workers]
        self.own = [[worker.parameters(index)[place] for place in places] for worker in workers]
        self.outer = method.outer(parameters_to_vector(self.own[0]).detach())
        self.s = [self.outer.W_g] * len(workers)
        self.samples = [0.0] * len(workers)  # since the last send
        self.in_flight: tuple[Tensor, float] | None = None
        self.errors: dict[int, Tensor] = {}  # what the codec has left on each host
        copies = list(zip(*self.own, strict=True)) if method.moments != "keep" else []
        self.moments = [Moments(own, self.optimizers, method) for own in copies]

    def advance(self, t: int, samples: Sequence[float]) -> None:
        """Do what is due after step t."""
        self.samples = [a + b for a, b in zip(self.samples, samples, strict=True)]
        tau, delay = self.method.tau, self.method.delay
        late = t - tau * (self.i + 1) // self.method.fragments
        if late % tau == 0 and delay:
            self.apply()
        if (late + delay) % tau == 0:
            self.send()
        if late % tau == 0 and not delay:
            self.apply()

    def send(self) -> None:
        """Send the local updates. Groups count by their samples."""
        p, n = shares(self.samples, self.method.group)
        w = [parameters_to_vector(own) for own in self.own]
        u = [p[k] * (w[k] - self.s[k]) for k in p]
        G, size = torch.zeros_like(u[0]), self.method.groups_per_host
        for host in range(0, len(u), size):
            whole = torch.stack(u[host : host + size]).sum(0) + self.errors.get(host, 0.0)
            sent = self.method.codec(whole)
            G, self.errors[host] = G + sent, whole - sent
        self.in_flight, self.samples = (G, n), [0.0] * len(w)
        for moments in self.moments:
            moments.send(p, self.outer.eta_of(n))
        if self.method.momentum == "average":
            self.set_momentum(p)
        if self.method.merge == "progress":
            self.s = w

    def apply(self) -> None:
        """Take the outer step with what is in flight, and merge its start model."""
        if self.in_flight is not None:
            self.outer.step(*self.in_flight)
            self.in_flight, W_g, alpha = None, self.outer.W_g, self.method.merge
            for own, s in zip(self.own, self.s, strict=True):
                w = parameters_to_vector(own)
                kept = w - s if alpha == "progress" else alpha * (w - W_g)
                vector_to_parameters(W_g + kept, own)
            self.s = [W_g] * len(self.own)
            if alpha != "progress":  # the share of the steps in flight that is kept
                self.samples = [alpha * n for n in self.samples]
            for moments in self.moments:
                moments.apply()
        if self.method.momentum == "reset" and self.method.group < len(self.own):
            self.set_momentum({})

    def set_momentum(self, p: dict[int, float]) -> None:
        """Give all workers the weighted mean of some workers' momentum. Of none, it is 0."""
        for same in zip(*self.own, strict=True):
            states = [o.state[own] for o, own in zip(self.optimizers, same, strict=True)]
            average([s.setdefault("momentum_buffer", torch.zeros_like(same[0])) for s in states], p)


class Training:
    """N workers that train one model, which is the same on all at the start."""

    def __init__(self, workers: Sequence[Worker], method: Method) -> None:
        self.workers, self.method = workers, method
        self.t = [-method.warmup] * len(workers[0].optimizers)  # steps of each after the warm-up
        self.fragments: list[Fragment] = []
        self.samples = [0.0] * len(workers)  # since buffers were averaged
        if method.warmup == 0:
            self._open_blocks()

    def _open_blocks(self) -> None:
        self.t = [0] * len(self.t)
        average_buffers(self.workers, {0: 1.0})
        for index in range(len(self.t) if self.method.tau else 0):
            sizes = [p.numel() for p in self.workers[0].parameters(index)]
            for i, places in enumerate(divide(sizes, self.method.fragments)):
                if places:
                    self.fragments.append(Fragment(self.method, self.workers, index, i, places))

    @torch.no_grad()
    def step(self, index: int = 0, samples: Sequence[float] | None = None) -> None:
        """One step of one optimizer from ``.grad``. Groups count by ``samples``, or equally."""
        method, world, warming = self.method, len(self.workers), min(self.t) < 0
        if warming:
            method = replace(method, group=world, threshold=None, of="gradient")
        for k in range(0, world, method.group):
            group_step(self.workers[k : k + method.group], index, method)
        self.t[index] += 1
        if warming:
            if min(self.t) == 0:
                self._open_blocks()
            return
        samples = samples or [1.0] * world
        shift(self.workers, method, 1.0)
        for fragment in (own for own in self.fragments if own.index == index):
            fragment.advance(self.t[index], samples)
        shift(self.workers, method, -1.0)
        if index == 0 and method.tau:
            self.samples = [a + b for a, b in zip(self.samples, samples, strict=True)]
            if (self.t[0] + method.delay) % method.tau == 0:  # the last fragment is sent
                average_buffers(self.workers, shares(self.samples, method.group)[0])
                self.samples = [0.0] * world

    @torch.no_grad()
    def global_model(self) -> dict[str, Tensor]:
        """W and averaged buffers, as if training ended here. Nothing changes in training."""
        end = deepcopy(self)
        shift(end.workers, self.method, 1.0)
        for fragment in end.fragments:
            fragment.apply()
            if any(fragment.samples):
                fragment.send()
                fragment.apply()
            vector_to_parameters(fragment.outer.W.detach(), fragment.own[0])
        if min(self.t) >= 0:
            average_buffers(end.workers, shares(end.samples, self.method.group)[0])
        return end.workers[0].model.state_dict()


def shares(samples: Sequence[float], size: int) -> tuple[dict[int, float], float]:
    """Share p of each group in the mean, by its first worker, and N = 1 / sum of p^2."""
    n = {k: sum(samples[k : k + size]) for k in range(0, len(samples), size)}
    total = sum(n.values())
    p = {k: own / total if total else 1 / len(n) for k, own in n.items()}
    return p, 1 / sum(own**2 for own in p.values())


def divide(sizes: Sequence[int], n: int) -> list[list[int]]:
    """Places of the parameters of each fragment, which contains the middle of their elements."""
    fragments: list[list[int]] = [[] for _ in range(n)]
    for place, size in enumerate(sizes):
        fragments[n * (2 * sum(sizes[:place]) + size) // (2 * sum(sizes))].append(place)
    return fragments


def average(copies: Sequence[Tensor], p: dict[int, float]) -> None:
    """Write the weighted mean of some workers' tensors into those of all."""
    mean = torch.zeros_like(copies[0]) + sum(share * copies[k] for k, share in p.items())
    for copy in copies:
        copy.copy_(mean)


def average_buffers(workers: Sequence[Worker], p: dict[int, float]) -> None:
    """Average floating-point buffers. The integer ones of worker 0 are taken."""
    for copies in zip(*(worker.model.buffers() for worker in workers), strict=True):
        average(copies, p if copies[0].is_floating_point() else {0: 1})
