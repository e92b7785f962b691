"""GTC of updates: each worker's optimizer steps by itself, and its change is sent by threshold.

The module of a worker holds x minus its residual. x has the same bits on all ranks of a group, and
is the model of the group wherever models are evaluated, saved or synchronised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Adafactor, Muon, Optimizer

from lightning_hier.comm.blocks.local_state import steps_by_rate
from lightning_hier.comm.blocks.trained import optimizer_parameters
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.gradients.gradient_sync import GTC
from lightning_hier.comm.gradients.gtc_reducer import GTCReducer
from lightning_hier.comm.gradients.reducers import GradientBucket
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.worker import GradientMemory

# Elements of a bucket: one is encoded while the one before is sent, as with DDP's buckets.
_BUCKET = 1 << 23


class UpdateExchange:
    """Exchanges what the optimizers of a group's workers have changed, behind their steps::

        u_k = c (a w_k - Optimizer(w_k)) + (1 - a) w_k       a = 1 - rate * decoupled weight decay
        x  <- x - mean of sent_k;   w_k = x - r_k            sent_k, r_k: GTC of u_k

    c is 1 for SGD and ASGD. Otherwise, it is the root of the number of workers, because the mean of
    N steps that an optimizer has normalised is shorter than each of them. What hooks of the user
    write to parameters between steps is a part of the update as well, without this factor.

    Args:
        channel: ranks of the group.
        config: thresholds.
        memory: residuals, thresholds and x of this rank.
        optimizers: optimizers of the module.

    """

    def __init__(
        self,
        channel: Channel,
        config: GTC,
        memory: GradientMemory,
        optimizers: Sequence[Optimizer],
    ) -> None:
        self._channel = channel
        self._memory = memory
        self._optimizers = optimizers
        self._reducer = GTCReducer(channel, config, memory)
        self._kept: dict[Parameter, float] = {}
        self._written: dict[Parameter, Tensor] = {}
        # By optimizer, those of its last step: a loop may freeze them for a while behind it.
        self._stepped: dict[int, list[Parameter]] = {}

    @contextmanager
    def stepping(self, optimizer: int) -> Iterator[None]:
        """Context of a step of an optimizer, which changes the module of this rank alone."""
        if self._sends:
            self._stepped[optimizer] = parameters = _held(self._optimizers[optimizer])
            self._memory.share(parameters)
            if self._factor(self._optimizers[optimizer]) != 1.0:
                # What hooks of the user have written since the last step: it has no factor c.
                written = self._memory.written({p: p.detach() for p in parameters})
                self._written |= {p: value.clone() for p, value in written.items()}
        yield
        # Here, because a scheduler may change the rate before the exchange.
        always = isinstance(self._optimizers[optimizer], (Adafactor, Muon))
        for group in self._optimizers[optimizer].param_groups:
            # Weight decay that is no part of the gradient. AdamW and its kin say so.
            is_decoupled = always or group.get("decoupled_weight_decay")
            decay = float(group["weight_decay"]) if is_decoupled else 0.0
            kept = 1.0 - float(group["lr"]) * decay if decay else 1.0
            self._kept |= dict.fromkeys(group["params"], kept)

    @torch.no_grad()
    def exchange(self, optimizer: int) -> None:
        """Exchange what the last step of an optimizer has changed. A collective of the group.

        All ranks must call it, also one whose step was skipped. Parameters change in place. If an
        update is not finite on some rank, x becomes NaN on all of them, and no residual changes.
        """
        if not self._sends:
            return
        # Where loss scaling has skipped a step, on some ranks alone, those of the one before.
        held = {*_held(self._optimizers[optimizer]), *self._stepped.get(optimizer, ())}
        every = dict.fromkeys(optimizer_parameters(self._optimizers[optimizer]))
        self._memory.release(p for p in every if p not in held)
        parameters = [p for p in every if p in held]
        self._memory.share(parameters)
        factor = self._factor(self._optimizers[optimizer])
        parts = _buckets(parameters)
        buckets: list[GradientBucket] = []
        with profiler_range("hier/updates/exchange"):
            for number, part in enumerate(parts):
                place = {"is_first": number == 0, "is_last": number == len(parts) - 1}
                buckets.append(self._updates(part, factor, **place))
                self._reducer.reduce(buckets[-1])
            # The last bucket has completed all of them.
            for bucket in buckets:
                for parameter, mean in bucket.tensors():
                    self._memory.shared[parameter].sub_(mean.view_as(parameter))
                    self._memory.write_local(parameter)
        if self._channel.size == 1:  # it has no residual any more
            self._memory.shared.clear()

    @property
    def _sends(self) -> bool:
        """Whether the group has several ranks, or this rank has the residuals of a larger one."""
        return self._channel.size > 1 or bool(self._memory.tensors)

    def metrics(self) -> dict[str, float]:
        """Metrics of the compression by name."""
        return self._reducer.metrics()

    def _factor(self, optimizer: Optimizer) -> float:
        return 1.0 if steps_by_rate(optimizer) else math.sqrt(self._channel.size)

    def _updates(
        self, parameters: Sequence[Parameter], factor: float, *, is_first: bool, is_last: bool
    ) -> GradientBucket:
        """The updates of some parameters, flat."""
        first = parameters[0]
        numel = sum(parameter.numel() for parameter in parameters)
        buffer = torch.empty(numel, dtype=first.dtype, device=first.device)
        absent, start = set(), 0
        for parameter in parameters:
            update = buffer[start : (start := start + parameter.numel())]
            if not self._write_update(parameter, factor, update):
                absent.add(parameter)
        return GradientBucket(parameters, buffer, absent, is_first=is_first, is_last=is_last)

    def _write_update(self, parameter: Parameter, factor: float, out: Tensor) -> bool:
        """Write the update of a parameter, flat, and return whether something has changed it."""
        written = self._written.pop(parameter, None)
        decayed = (1.0 - self._kept.get(parameter, 1.0)) * (1.0 - factor)
        before_step = None if written is None else written.reshape(-1)
        now = parameter.detach().reshape(-1)
        changed = written is not None
        for local, after, update, step_from in self._memory.local_chunks(
            parameter, now, out, before_step
        ):
            before = local if step_from is None else step_from
            torch.sub(before, after, out=update)
            changed = changed or not torch.equal(before, after)
            if factor != 1.0:
                # c (a w - w') + (1 - a) w, from u = w - w'.
                update.mul_(factor).add_(before, alpha=decayed)
            if step_from is not None:
                update.add_(local).sub_(before)
        if not changed:
            out.zero_()
        return changed


def _held(optimizer: Optimizer) -> list[Parameter]:
    """The parameters of an optimizer that are trained."""
    return [p for p in dict.fromkeys(optimizer_parameters(optimizer)) if p.requires_grad]


def _buckets(parameters: Sequence[Parameter]) -> list[list[Parameter]]:
    """Consecutive parameters of one dtype and device, of at most ``_BUCKET`` elements or one."""
    buckets: list[list[Parameter]] = []
    kind, elements = None, 0
    for parameter in parameters:
        own = parameter.dtype, parameter.device
        if own != kind or elements + parameter.numel() > _BUCKET:
            buckets.append([])
            kind, elements = own, 0
        buckets[-1].append(parameter)
        elements += parameter.numel()
    return buckets
