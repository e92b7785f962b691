"""Low frame rate: neighbouring frames stacked into one, then subsampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stacking:
    """Stack ``stack`` frames and keep each ``subsample``-th stack (two_tiered_bmuf_gtc 3.2).

    Output frame k is centred on input frame ``k * subsample + phase``. The default phase,
    ``subsample // 2``, makes the stacks of 3 and 3 the plain ones: frames 0 to 2, 3 to 5, and so
    on. Targets are those of the centre frames. The other phases look at the frames between: the
    outputs at all phases, interleaved, give one output for each input frame, which an alignment
    needs whose phones are shorter than ``subsample`` frames.

    Stacks that reach beyond an end repeat the frame there. Input frames after the last centre and
    its neighbours (fewer than ``subsample``) belong to no output.

    Attributes:
        stack: frames in a stack.
        subsample: input frames for each output frame.

    Raises:
        ValueError: if either is below 1.
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
        """Phase of the features that training sees."""
        return self.subsample // 2

    def centres(self, frames: int, phase: int | None = None) -> Tensor:
        """Input frames, int64, on which the outputs are centred.

        Raises:
            ValueError: if ``phase`` is not from 0 to ``subsample - 1``.
        """
        phase = self.default_phase if phase is None else phase
        if not 0 <= phase < self.subsample:
            raise ValueError(f"phase must be from 0 to {self.subsample - 1}, got {phase}")
        return torch.arange(phase, max(frames, phase), self.subsample)

    def features(self, features: Tensor, phase: int | None = None) -> Tensor:
        """(T, D) to (T', D * stack), T' = number of :meth:`centres`."""
        frames = features.shape[0]
        first = -((self.stack - 1) // 2)
        window = torch.arange(first, first + self.stack)
        positions = self.centres(frames, phase)[:, None] + window
        return features[positions.clamp(0, frames - 1)].flatten(1)

    def targets(self, targets: Tensor, phase: int | None = None) -> Tensor:
        """(T,) to (T',): the target of each stack's centre frame."""
        return targets[self.centres(targets.shape[0], phase)]

    def interleave(self, outputs: Sequence[Tensor]) -> Tensor:
        """Merge outputs of phases 0 to ``subsample - 1`` into one per input frame.

        Args:
            outputs: for each phase in order, a tensor whose first axis is time.

        Raises:
            ValueError: if there is not one for each phase, or their lengths do not fit together.
        """
        lengths = [output.shape[0] for output in outputs]
        total = sum(lengths)
        expected = [len(self.centres(total, phase)) for phase in range(self.subsample)]
        if lengths != expected:
            raise ValueError(
                f"interleaving needs one output for each of {self.subsample} phases, of lengths "
                f"{expected} where there are {total} frames in all; got lengths {lengths}"
            )
        merged = outputs[0].new_empty((total, *outputs[0].shape[1:]))
        for phase, output in enumerate(outputs):
            merged[phase :: self.subsample] = output
        return merged
