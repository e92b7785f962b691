"""Settings of the gradient synchronisation inside a group, at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.optim import SGD, Optimizer
from typing_extensions import Self, override

from lightning_hier.algorithms.arguments import (
    NamedArguments,
    check_positive,
    check_whole,
    is_number,
)
from lightning_hier.algorithms.automatic import Auto, auto_density
from lightning_hier.algorithms.kernels.payload import MOST_ELEMENTS
from lightning_hier.comm.blocks.adam_state import SUPPORTED

CompressedValues = Literal["auto", "gradient", "update"]

Hook = Callable[[Any, GradBucket], "torch.futures.Future[torch.Tensor]"]


class GradientSync(NamedArguments):
    """Base class of the settings for ``HierarchicalStrategy(gradient_sync=...)``."""

    def resolved(self, run_steps: float) -> Self:
        """Return the same settings with a number instead of each ``"auto"``.

        Args:
            run_steps: steps of one optimizer in the run, or infinity if unknown.

        """
        return self

    def suited(self, optimizers: Sequence[Optimizer]) -> Self:
        """Return the same settings with what ``"auto"`` is for these optimizers."""
        return self

    def advice(self, optimizer: Optimizer) -> str | None:
        """Warning that is logged once before training, or None."""
        return None

    def chosen(self, optimizers: Sequence[Optimizer]) -> str | None:
        """Line with what ``"auto"`` is for these optimizers, or None."""
        return None


@dataclass(frozen=True, kw_only=True)
class AllReduce(GradientSync):
    """Average the gradients of a group exactly, as DDP does."""


@dataclass(frozen=True, kw_only=True)
class GTC(GradientSync):
    """Gradient threshold compression inside a group (two_tiered_bmuf_gtc 2.1).

    Every worker adds its gradient g to its residual r, sends +T or -T for each element of r that
    exceeds the threshold T, subtracts the sent values, and uses their mean over all workers::

        r <- r + g;   sent = T sign(r) where |r| > T, else 0;   r <- r - sent
        gradient = mean over the group of sent

    A residual also includes gradients that are discarded. With several optimizers, use
    ``toggle_optimizer``, so that a backward pass computes gradients for one of them only.

    Of updates, each worker's own optimizer steps on its own gradient, and what it has changed takes
    the place of g. What is not sent stays in the worker's local model::

        u = c (w - Optimizer(w)), without the factor for decoupled weight decay
        r <- r + u;   sent = T sign(r) where |r| > T, else 0;   r <- r - sent
        x <- x - mean over the group of sent;   w = x - r

    x is the same on all ranks of the group, and is its model in evaluations, checkpoints and block
    synchronisations. c is 1 for SGD, and the root of the group's size for other optimizers.

    Attributes:
        threshold: T in units of the gradient (of the mean loss, unscaled), or ``"auto"``: one
            threshold for each parameter tensor, adjusted such that about ``density`` of its
            elements are sent. The first step of a tensor is then averaged exactly, which gives the
            magnitude of its gradients.
        density: fraction of the elements to send with ``threshold="auto"``, in (0, 1), or
            ``"auto"``: 30 divided by the steps of the run, from 0.01 to 0.1, and 0.01 if the length
            is unknown.
        dense_below: tensors with fewer elements are averaged exactly. 0 compresses all tensors.
            Tensors of more than 2**31 elements are averaged exactly as well.
        of: what is compressed: ``"gradient"``, ``"update"``, or ``"auto"``: updates if an optimizer
            has a state, gradients with plain SGD, as in the paper. ``threshold`` is in its units.

    Raises:
        ValueError: a value is outside its range.

    """

    threshold: float | Literal["auto"] = "auto"
    density: float | Auto = "auto"
    dense_below: int = 1024
    of: CompressedValues = "auto"

    def __post_init__(self) -> None:
        """Check the values."""
        if self.threshold != "auto" and not (is_number(self.threshold) and self.threshold > 0):
            raise ValueError(
                f"threshold must be 'auto' or a finite number above 0, got {self.threshold!r}"
            )
        if self.density != "auto" and not (is_number(self.density) and 0.0 < self.density < 1.0):
            raise ValueError(
                f"density must be 'auto' or between 0 and 1 (0.01 sends about 1% of the elements), "
                f"got {self.density!r}; for uncompressed gradients use AllReduce()"
            )
        check_whole("dense_below", self.dense_below, least=0)
        if self.of not in get_args(CompressedValues):
            raise ValueError(f"of must be 'auto', 'gradient' or 'update', got {self.of!r}")

    @property
    def is_automatic(self) -> bool:
        """Whether the density depends on the length of the run. Not for fixed thresholds."""
        return self.threshold == "auto" and self.density == "auto"

    @property
    def share(self) -> float:
        """The density, as a number.

        Raises:
            RuntimeError: ``density`` is still ``"auto"``.

        """
        if self.density == "auto":
            raise RuntimeError(
                "density='auto' has no number before the run starts: call resolved(...)"
            )
        return self.density

    def compresses(self, elements: int) -> bool:
        """Whether a tensor of this number of elements is compressed."""
        # At least 1, because the density of an empty tensor is undefined.
        return max(self.dense_below, 1) <= elements <= MOST_ELEMENTS

    @override
    def advice(self, optimizer: Optimizer) -> str | None:
        """Advise against Adam, which divides by magnitudes that GTC makes equal in a tensor."""
        # Optimizers that BMUFAdam supports are those with Adam's moments.
        if self.of != "gradient" or not isinstance(optimizer, SUPPORTED):
            return None
        return (
            f"GTC of gradients with {type(optimizer).__name__}: in short runs of a transformer it "
            "learned less than a single worker (docs/reports/defaults.md). Pass "
            "of='update', or use exact gradients inside groups, "
            "HierarchicalStrategy(block_sync=BMUFAdam(...))."
        )

    @override
    def suited(self, optimizers: Sequence[Optimizer]) -> Self:
        if self.of != "auto":
            return self
        return replace(self, of="gradient" if all(map(_is_plain, optimizers)) else "update")

    @override
    def chosen(self, optimizers: Sequence[Optimizer]) -> str | None:
        if self.of != "auto":
            return None
        if self.suited(optimizers).of == "gradient":
            return "of='auto' is 'gradient', because the optimizer is SGD without momentum."
        kinds = dict.fromkeys(type(own).__name__ for own in optimizers if not _is_plain(own))
        return (
            f"of='auto' is 'update', because {' and '.join(kinds)} keeps a state: each rank's "
            "optimizer steps by itself, and what it changes is compressed."
            + f" threshold={self.threshold} is in units of that."
            * (self.threshold != "auto")
        )

    @override
    def resolved(self, run_steps: float) -> Self:
        return replace(self, density=auto_density(run_steps)) if self.is_automatic else self


@dataclass(frozen=True)
class CommHook(GradientSync):
    """A DDP communication hook inside a group.

    Attributes:
        hook: ``hook(state, bucket) -> Future[Tensor]``, as for ``register_comm_hook``.
        state: state of the hook. None is replaced by the process group of the group, which is the
            state of torch's hooks. If the attribute ``process_group`` of a state (as of
            ``PowerSGDState``) is None, it is set to this process group during a fit. Otherwise such
            a hook would communicate with the world.
        bytes_per_element: bytes that the hook sends per element of the gradient, for the traffic
            counts (2.0 for fp16 compression). None counts the bytes of the gradient.

    """

    hook: Hook
    state: Any = None
    bytes_per_element: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the values."""
        if not callable(self.hook):
            raise ValueError(f"hook must be callable as hook(state, bucket), got {self.hook!r}")
        if self.bytes_per_element is not None:
            check_positive("bytes_per_element", self.bytes_per_element)


def _is_plain(optimizer: Optimizer) -> bool:
    """Whether an optimizer is SGD without momentum, which has no state."""
    return isinstance(optimizer, SGD) and not any(g["momentum"] for g in optimizer.param_groups)
