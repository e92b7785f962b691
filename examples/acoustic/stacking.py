"""Stacking and subsampling of frames, for models at a low frame rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stacking:
    """Concatenation of ``stack`` frames around every ``subsample``-th frame.

    See two_tiered_bmuf_gtc, section 3.2. The centre of output frame k is input frame
    ``k * subsample + phase``. With stacks of 3, every 3 frames, and the default phase
    ``subsample // 2``, the stacks are frames 0 to 2, 3 to 5, and so on. Targets are those of the
    centre frames.

    Together, the outputs at all phases have one frame for each input frame. Alignments need this,
    because phones may be shorter than ``subsample`` frames.

    Beyond the ends, stacks repeat the first or last frame. Fewer than ``subsample`` input frames at
    the end may be in no stack.

    Attributes:
        stack: number of frames in a stack.
        subsample: number of input frames for each output frame.

    Raises:
        ValueError: either is below 1.
    """

    stack: int = 3
    subsample: int = 3

    def __post_init__(self) -> None:
        """Check both numbers."""
        for name, value in (("stack", self.stack), ("subsample", self.subsample)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @property
    def default_phase(self) -> int:
        """Phase of the features for training."""
        return self.subsample // 2

    def centres(self, frames: int, phase: int | None = None) -> Tensor:
        """Return the input frames at the centres of the outputs, int64.

        Raises:
            ValueError: ``phase`` is not from 0 to ``subsample - 1``.
        """
        phase = self.default_phase if phase is None else phase
        if not 0 <= phase < self.subsample:
            raise ValueError(f"phase must be from 0 to {self.subsample - 1}, got {phase}")
        return torch.arange(phase, max(frames, phase), self.subsample)

    def features(self, features: Tensor, phase: int | None = None) -> Tensor:
        """Stack features (T, D) to (T', D * stack), where T' is the number of :meth:`centres`."""
        frames = features.shape[0]
        first = -((self.stack - 1) // 2)
        window = torch.arange(first, first + self.stack)
        positions = self.centres(frames, phase)[:, None] + window
        return features[positions.clamp(0, frames - 1)].flatten(1)

    def targets(self, targets: Tensor, phase: int | None = None) -> Tensor:
        """Return the targets (T',) of the centre frames, from targets (T,) of all frames."""
        return targets[self.centres(targets.shape[0], phase)]

    def interleave(self, outputs: Sequence[Tensor]) -> Tensor:
        """Merge the outputs of all phases into one output for each input frame.

        Args:
            outputs: outputs of phases 0 to ``subsample - 1``. Their first dimension is time.

        Raises:
            ValueError: the number of outputs or their lengths are wrong.
        """
        lengths = [output.shape[0] for output in outputs]
        total = sum(lengths)
        expected = [len(self.centres(total, phase)) for phase in range(self.subsample)]
        if lengths != expected:
            raise ValueError(
                f"interleaving needs one output for each of {self.subsample} phases, with lengths "
                f"{expected} for {total} frames, got lengths {lengths}"
            )
        merged = outputs[0].new_empty((total, *outputs[0].shape[1:]))
        for phase, output in enumerate(outputs):
            merged[phase :: self.subsample] = output
        return merged
