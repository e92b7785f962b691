"""Moments and step counts of Adam, AdamW, NAdam and RAdam across blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Adam, NAdam, Optimizer, RAdam

from lightning_hier.algorithms.adam_moments import advance_moment_, merge_moment_, nadam_product
from lightning_hier.comm.blocks.health import Averaging
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.channel import Channel, Pending

# AdamW is a subclass of Adam in torch.
SUPPORTED = (Adam, NAdam, RAdam)

# Counts that are saved, see ParameterSteps.
_COUNTS = ("start", "start_product", "rho", "counted", "ahead", "sent")


@dataclass
class ParameterSteps:
    """Steps of one parameter.

    Attributes:
        state: optimizer state of the parameter.
        group: parameter group with betas and momentum_decay, which schedulers may change.
        largest_beta1: largest first beta with which the optimizer steps.
        start: Adam's step count at the start of the block, the same on all ranks.
        start_product: NAdam's ``mu_product`` at the start of the block; 1 for other optimizers.
        rho: rho_n, number of mini-batches in the global update.
        counted: steps since the start that are part of rho, as a mean over the groups.
        ahead: eta * rho_n, steps to which the look-ahead of the global update corresponds.
        sent: step count of the local model when its moments were sent.
        noted: step count of the local model at the last :meth:`AdamMoments.note`.
        tau: steps of the last block whose moments were averaged, as a mean over the groups.
        since: steps of the local model from the send of these moments until their means arrived.

    """

    state: dict[str, Any]
    group: dict[str, Any]
    largest_beta1: float
    start: float = field(init=False)
    start_product: float = field(init=False)
    rho: float = 0.0
    counted: float = 0.0
    ahead: float = 0.0
    sent: float = field(init=False)
    noted: float = 0.0
    tau: float = 0.0
    since: float = 0.0

    def __post_init__(self) -> None:
        """Start a block with the current counts."""
        self.start = self.sent = float(self.state["step"])
        self.start_product = float(self.state.get("mu_product", 1.0))

    def beta(self, *, square: bool) -> float:
        """Decay rate of the first or second moment."""
        beta = float(self.group["betas"][square])
        # Between steps the group has the user's value, but the moments decay by the limited one.
        return beta if square else min(beta, self.largest_beta1)

    def count(self, local: float, *, eta: float, kept: float) -> None:
        """Count the steps of a global update, and those of its look-ahead.

        ``rho_n = eta * rho_{n-1} + tau``, which converges to N * tau for eta = 1 - 1 / N (bmuf_adam
        2.1).

        Args:
            local: steps since the start, as a mean over the groups.
            eta: block momentum.
            kept: as in :meth:`LocalState.send`.

        """
        # Other groups than at the last count may be present, whose mean may be smaller.
        self.rho = eta * self.rho + kept * max(local - self.counted, 0.0)
        self.counted = local
        # Without a step, moments are not advanced, so the step count is not either.
        self.ahead = eta * self.rho if local else 0.0

    def begin_block(self) -> None:
        """Compute the counts at the start of the next block, after :meth:`count`.

        Those of the optimizer become the counts ``since`` steps later, in place.
        """
        self.tau = self.counted
        moved = self.counted + self.ahead
        # The product first, because its factor is computed from the old start.
        self.start_product *= self._product(moved)
        self.start += moved
        self.counted = 0.0
        # Counts are rounded fractions, but their differences within a block are integers.
        self.since = float(round(self.noted - self.sent))
        # The tensors stay, because captured graphs refer to them.
        if "mu_product" in self.state:
            self.state["mu_product"].fill_(self.start_product * self._product(self.since))
        self.state["step"].fill_(self.start + self.since)

    def _product(self, steps: float) -> float:
        """Factor of NAdam's product for steps after the start of the block."""
        if "mu_product" not in self.state:
            return 1.0
        decay = float(self.group["momentum_decay"])
        return nadam_product(self.start, steps, beta1=self.beta(square=False), momentum_decay=decay)


class AdamMoments(LocalState):
    """Averages both moments of every parameter with the model (bmuf_adam 2.2).

    Every parameter has its own counts, because a parameter that was frozen, or had no gradient in
    some steps or on some ranks, has fewer steps. Its tau is the mean over the groups of its steps
    since the last synchronisation.

    The moments m(sent) are sent with the model, and s steps later, 0 without ``overlap``, their
    means give the moments m_init and the step count k_init of the start model. Adam's moments are
    linear in their past, so those of an optimizer that started from m_init at the send, and made
    the same s steps, are::

        m <- m + beta1^s (m_init - m(sent))
        v <- max(v - beta2^s v(sent), 0) + beta2^s v_init
        k <- k_init + s

    The next block thus started at the send, with m_init and k_init: its tau, which includes the
    steps in flight, is that between two sends. Each parameter has its own s.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Parameter],
        *,
        corrected: bool,
        eta: float,
        across: Channel,
        largest_beta1: float = 1.0,
        ahead: float = 1.0,
        eta_of: Callable[[float], float] | None = None,
    ) -> None:
        """Create missing states. The current moments start a block.

        Args:
            optimizer: one of ``SUPPORTED``.
            parameters: parameters of the block. Those that ``optimizer`` has are used.
            corrected: whether moments are extrapolated to the look-ahead (eq. 18) or only averaged
                (eq. 13).
            eta: block momentum.
            across: ranks at this position in all groups.
            largest_beta1: largest first beta with which ``optimizer`` steps; 1 does not limit it.
            ahead: share of the look-ahead that local models get where they are merged.
            eta_of: computes eta of every mean from the effective number of models, in place of
                ``eta``.

        """
        self._ahead = ahead
        # Without a look-ahead, eq. 18 leaves the mean unchanged, which is eq. 13.
        self._eta = ahead * eta if corrected else 0.0
        self._eta_of = eta_of if corrected else None
        self.keeps_previous = self._eta > 0.0
        self._across = across
        self._optimizer = optimizer
        groups = {p: group for group in optimizer.param_groups for p in group["params"]}
        self._steps = {
            parameter: ParameterSteps(
                create_state(optimizer, parameter, groups[parameter]),
                groups[parameter],
                largest_beta1,
            )
            for parameter in parameters
            if parameter in groups
        }
        moments = [
            (steps.state[name], steps, name == "exp_avg_sq")
            for name in ("exp_avg", "exp_avg_sq")
            for steps in self._steps.values()
        ]
        self.carried = [tensor for tensor, _, _ in moments]
        # By identity, because a tensor has no other name here.
        self._owners = {id(tensor): (steps, square) for tensor, steps, square in moments}
        self._models, self._kept = 1, 1.0
        self._sum: tuple[Pending | None, Tensor] | None = None
        self._begun = True

    def note(self) -> None:
        """Note the step count of the local model, for each parameter.

        Raises:
            RuntimeError: the optimizer has another state than the one that is averaged.

        """
        if not self._steps:
            return
        state = self._optimizer.state
        if any(state.get(parameter) is not own.state for parameter, own in self._steps.items()):
            raise RuntimeError(
                f"the state of {type(self._optimizer).__name__} was replaced during training, so "
                "its moments would not be averaged: reset them in place, as by exp_avg.zero_()"
            )
        counts = [steps.state["step"] for steps in self._steps.values()]
        # Most are in the memory of the host: one copy for all instead of one for each.
        stacked = torch.stack([count.to(counts[0].device) for count in counts])
        for steps, count in zip(self._steps.values(), stacked.tolist(), strict=True):
            steps.noted = count

    def send(self, averaging: Averaging, *, exchanged: bool, kept: float = 1.0) -> None:
        """Start the sum of the steps of the groups."""
        self._models, self._kept = averaging.models, kept
        self._begun = False
        if self._eta_of is not None:
            self._eta = self._ahead * self._eta_of(averaging.effective)
        if not self._steps:
            return
        taken = [steps.noted - steps.start for steps in self._steps.values()]
        device = next(iter(self._steps)).device
        # Counts are rounded fractions, but their differences within a block are integers.
        total = torch.tensor(taken, dtype=torch.float64, device=device).round_()
        if averaging.weight is not None:
            total.mul_(averaging.weight * self._models)  # the sum is divided by them
        self._sum = (self._across.all_reduce_(total, "steps"), total)
        if exchanged:
            for steps in self._steps.values():
                steps.sent = steps.noted

    def wait(self) -> None:
        """Wait for the sums."""
        if self._sum is not None:
            pending, total = self._sum
            if pending is not None:
                pending.wait()
            self._sum = None, total

    def advance_(self, tensor: Tensor, mean: Tensor, previous: Tensor | None) -> None:
        """Apply eq. 18 to a range of a moment, in place."""
        # Not earlier, so that the sum of steps is in flight together with the models.
        self._begin_block()
        if previous is None or self._eta == 0.0:
            return
        steps, square = self._owners[id(tensor)]
        counts = {"beta": steps.beta(square=square), "local": steps.tau, "ahead": steps.ahead}
        advance_moment_(mean, previous, **counts, square=square)

    def merge_(self, tensor: Tensor, values: Tensor, sent: Tensor, start: Tensor) -> None:
        """Merge a range of a moment, in place."""
        steps, square = self._owners[id(tensor)]
        beta = steps.beta(square=square)
        merge_moment_(values, sent, start, beta=beta, steps=steps.since, square=square)

    def finish(self, *, exchanged: bool) -> None:
        """Set the step counts, and NAdam's products, for the next block, in place."""
        self._count_update()
        if exchanged:  # the shard of this rank may contain no moments
            self._begin_block()

    def counts(self) -> dict[Parameter, list[float]]:
        """For each parameter, those of ``_COUNTS``.

        Waits for the sum in flight, because rho contains its update.
        """
        self._count_update()
        each = self._steps.items()
        return {parameter: [getattr(steps, n) for n in _COUNTS] for parameter, steps in each}

    def set_counts(self, counts: Mapping[Parameter, list[float]], *, begins: bool = False) -> None:
        """Load :meth:`counts`, without a sum that was started, or only rho if a block begins."""
        self._sum, self._begun = None, begins
        for parameter, values in counts.items():
            if parameter in self._steps:
                for name, value in zip(_COUNTS, values, strict=True):
                    if name == "rho" or not begins:
                        setattr(self._steps[parameter], name, value)

    def _count_update(self) -> None:
        """Wait for the sums, and count the steps of the update, once."""
        if self._sum is None:
            return
        self.wait()
        _, total = self._sum
        self._sum = None
        for steps, taken in zip(self._steps.values(), total.tolist(), strict=True):
            steps.count(taken / self._models, eta=self._eta, kept=self._kept)

    def _begin_block(self) -> None:
        """Compute the counts of the next block, once."""
        if self._begun:
            return
        self._begun = True
        self._count_update()
        for steps in self._steps.values():
            steps.begin_block()


def create_states(optimizer: Optimizer) -> None:
    """Create the missing state of the trainable parameters, with counts that keep fractions.

    ``torch.distributed.checkpoint`` copies a saved state into the tensors that an optimizer has,
    and rounds counts to their dtype.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                create_state(optimizer, parameter, group)


def create_state(
    optimizer: Optimizer, parameter: Parameter, group: dict[str, Any]
) -> dict[str, Any]:
    """The state of a parameter, created if it is missing, with counts that keep fractions."""
    state: dict[str, Any] = optimizer.state[parameter]
    if not state:
        _make_state(state, parameter, group)
    for name in ("step", "mu_product"):
        # Fractional counts need float64. Fused kernels and captured graphs require float32.
        if name in state and not (group.get("fused") or group.get("capturable")):
            state[name] = torch.as_tensor(state[name]).double()
    return state


def _make_state(state: dict[str, Any], parameter: Parameter, group: dict[str, Any]) -> None:
    """Create the state that the optimizer creates at the first gradient of a parameter."""
    # As in torch: on the CPU unless a kernel reads it, so that reading it does not wait for a GPU.
    on_device = group.get("fused") or group.get("capturable")
    count = torch.zeros((), device=parameter.device if on_device else "cpu")
    state["step"] = count.float()
    if "momentum_decay" in group:  # NAdam
        state["mu_product"] = torch.ones_like(state["step"])
    # Without the maximum of second moments, because BMUFAdam refuses amsgrad.
    for name in ("exp_avg", "exp_avg_sq"):
        state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
