"""Control of the thresholds of GTC."""

from __future__ import annotations

import math
import warnings

from lightning_hier.algorithms.threshold import first_threshold, next_threshold
from lightning_hier.comm.gradients.gradient_sync import GTC
from lightning_hier.comm.gradients.gtc_selection import Selection

# Share of elements sent above which gradients are larger than a fixed threshold can send.
_SATURATED = 0.5


class Thresholds:
    """Updates the threshold of each tensor after a step, and counts the elements sent.

    All workers of a group have the same counts, so their thresholds are the same.

    Args:
        config: a fixed threshold, or the density that the control aims at.

    """

    def __init__(self, config: GTC) -> None:
        self._config = config
        self._sent = self._elements = 0
        self._warned = False

    def read_density(self) -> float:
        """Share of the compressed elements sent since the last call; NaN if there were none."""
        share = self._sent / self._elements if self._elements else math.nan
        self._sent = self._elements = 0
        return share

    def follow(self, selection: Selection, *, workers: int) -> None:
        """Count the elements sent of a tensor, and set the threshold of the next step.

        Args:
            selection: of one worker of this rank, with the facts of the group.
            workers: number of workers of the group.

        """
        memory = selection.memory
        if selection.skipped:
            return
        if memory.threshold is not None:
            self._sent += sum(words.numel() for words in selection.words)
            self._elements += selection.flat.numel()
        elements = selection.flat.numel() * workers
        if self._config.threshold != "auto":
            self._warn_if_saturated(selection.sent / elements, memory.threshold)
        elif memory.threshold is None:
            memory.threshold = first_threshold(selection.group_rms, self._config.share)
        else:
            memory.threshold = next_threshold(
                memory.threshold,
                sent=selection.sent,
                elements=elements,
                density=self._config.share,
            )

    def _warn_if_saturated(self, share: float, threshold: float | None) -> None:
        if share > _SATURATED and not self._warned:
            self._warned = True
            warnings.warn(
                f"GTC sends {share:.0%} of a tensor at threshold={threshold:g}: each element can "
                "send only one threshold a step, so the residual of larger gradients grows without "
                "limit. Raise the threshold, or use threshold='auto'.",
                stacklevel=2,
            )
