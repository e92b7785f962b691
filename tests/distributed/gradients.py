"""A small model under DDP with the package's hook, and the gradients of each rank alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel as DDP

from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gradient_sync import GradientSync
from lightning_hier.comm.gradients.reached import ReachedParameters
from lightning_hier.comm.gradients.reduction import GradientHook, build_reducer, gradient_hook
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.comm.traffic import Traffic
from lightning_hier.comm.worker import Worker

CPU = torch.device("cpu")


def open_world(
    group_size: int | None = None, *, timeout_s: float = 60.0, host_of: Sequence[int] | None = None
) -> Communicators:
    """Create the process groups of this rank. By default, one group contains all ranks.

    This function may be called more than once.
    """
    timeout = timedelta(seconds=timeout_s)
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=timeout)
    return Communicators.build(
        RankLayout.two_tiers(group_size or dist.get_world_size(), dist.get_world_size()),
        device=CPU,
        timeout=timeout,
        traffic=Traffic(),
        host_of=host_of,
    )


class Tower(nn.Module):
    """Layers that are not used in the order of their creation, so that DDP rebuilds its buckets."""

    def __init__(self, layers: int = 4, width: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.used = list(range(0, layers, 2)) + list(range(1, layers, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        for index in self.used:
            inputs = torch.tanh(self.layers[index](inputs))
        return inputs


@dataclass
class Run:
    """A model under DDP, and records of its hook.

    Attributes:
        communicators: process groups of this rank.
        model: the model under DDP.
        worker: state of this rank.
        hook: the hook of the package.
        buckets: for every step and call of the hook, names of the parameters in the bucket.
        sent: sum over the steps of the mean gradient times the group size.
        had: sum over the steps of this rank's own gradient.

    """

    communicators: Communicators
    model: DDP
    worker: Worker
    hook: GradientHook
    buckets: list[list[list[str]]] = field(default_factory=list)
    sent: dict[str, Tensor] = field(default_factory=dict)
    had: dict[str, Tensor] = field(default_factory=dict)

    def step(self, inputs: Tensor, *, factor: float = 1.0, counted: bool = True) -> None:
        """Run forward and backward, without an update of the weights."""
        own = self.own_gradients(inputs, factor)
        self.model.zero_grad()
        (self.model(inputs).square().sum() * factor).backward()
        if not counted:
            return
        size = self.communicators.group.size
        for name, parameter in self.model.module.named_parameters():
            gradient = parameter.grad if parameter.grad is not None else parameter.detach() * 0
            self.sent[name] = self.sent.get(name, 0) + gradient * size
            self.had[name] = self.had.get(name, 0) + own[name]

    def own_gradients(self, inputs: Tensor, factor: float = 1.0) -> dict[str, Tensor]:
        """Gradients of this rank alone, without DDP."""
        module = self.model.module
        loss = module(inputs).square().sum() * factor
        parameters = dict(module.named_parameters())
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        return {
            name: parameter.detach() * 0 if gradient is None else gradient
            for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True)
        }

    def residual(self, name: str) -> Tensor:
        """This rank's residual of a parameter, or zeros if it has none."""
        parameter = dict(self.model.module.named_parameters())[name]
        memory = self.worker.memory.tensors.get(parameter)
        return parameter.detach() * 0 if memory is None else memory.residual.view_as(parameter)

    def loss_of_gradient(self) -> dict[str, float]:
        """Largest error of sent + residuals - gradients over the group, for each parameter."""
        losses = {}
        for name in self.had:
            missing = self.had[name] - self.residual(name)
            dist.all_reduce(missing, group=self.communicators.group.group)
            losses[name] = float((self.sent[name] - missing).abs().max())
        return losses


def start(
    config: GradientSync,
    module: nn.Module,
    *,
    group_size: int | None = None,
    bucket_cap_mb: float = 25.0,
    grad_scale: Callable[[], float] = lambda: 1.0,
    find_unused: bool = False,
) -> Run:
    """Wrap a module in DDP in this rank's group, with the hook for ``config``."""
    communicators = open_world(group_size)
    worker = Worker()
    hook = GradientHook(
        build_reducer(config, communicators.group, worker.memory, grad_scale),
        ReachedParameters(module.parameters(), every_step=find_unused),
    )
    model = DDP(
        module,
        process_group=communicators.group.group,
        bucket_cap_mb=bucket_cap_mb,
        find_unused_parameters=find_unused,
    )
    run = Run(communicators, model, worker, hook)
    names = {parameter: name for name, parameter in module.named_parameters()}

    def watched(state: GradientHook, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if bucket.index() == 0:
            run.buckets.append([])
        run.buckets[-1].append([names[p] for p in bucket.parameters()])  # type: ignore[index]
        return gradient_hook(state, bucket)

    watched.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[Tensor]}
    model.register_comm_hook(hook, watched)
    return run


class Branches(nn.Module):
    """A module that uses the branches in ``used``."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.used: set[int] = set()

    def forward(self, batch: Tensor) -> Tensor:
        return batch + sum(self.branches[index](batch) for index in sorted(self.used))


def inputs(step: int, width: int = 6, rows: int = 3) -> Tensor:
    """Inputs in float64 that differ between ranks and steps."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(rows, width, dtype=torch.float64, generator=generator)


def tower(layers: int = 4, width: int = 6) -> Tower:
    """A tower in float64, equal on every rank."""
    torch.manual_seed(7)
    return Tower(layers, width).double()
