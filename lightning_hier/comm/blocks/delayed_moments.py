"""Moments and step counts of Adam that are applied some steps after they were sent (overlap)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from lightning_hier.algorithms.adam_moments import merge_moment_, merge_square_
from lightning_hier.comm.blocks.adam_state import AdamMoments
from lightning_hier.comm.blocks.health import Averaging


class DelayedMoments(AdamMoments):
    """Averages both moments, while the local optimizer makes steps of its own.

    The moments m(sent) are sent with the local update, and s steps later the means give
    the moments m_init and the step count k_init of the start model, by the equations of
    :class:`AdamMoments`. Adam's moments are linear in their past, so those of an optimizer that
    started from m_init at the send, and made the same s steps, are::

        m <- m + beta1^s (m_init - m(sent))
        v <- max(v - beta2^s v(sent), 0) + beta2^s v_init
        k <- k_init + s

    The next block thus started at the send, with m_init and k_init: its tau, which includes the
    steps in flight, is that between two sends. Each parameter has its own s.

    Arguments are those of :class:`AdamMoments`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._noted: Tensor | None = None  # from note() until collect()
        self._sent: Tensor | None = None

    def note(self) -> None:
        """See :class:`LocalState`. An evaluation calls it, too, while moments are in flight."""
        super().note()
        if self._steps:
            self._noted = self._counts()

    def collect(self, averaging: Averaging, *, exchanged: bool = True, kept: float = 1.0) -> None:
        """See :class:`LocalState`. What is sent is that of the last :meth:`note`."""
        # The steps of the last exchange, before the next one replaces it.
        self._count_update()
        super().collect(averaging, exchanged=exchanged, kept=kept)
        if exchanged:
            self._sent = self._noted

    def arrive(self, *, exchanged: bool) -> None:
        """See :class:`LocalState`. The counts at the start of the block become k_init."""
        self._count_update()
        if exchanged:
            self._begin_block()

    def begin_merge(self) -> None:
        """Set the step counts, and NAdam's products, to k_init + s, in place."""
        if self._sent is None:
            return
        # Counts are rounded fractions, but their differences are integers.
        since_send = (self._counts() - self._sent).round_()
        for steps, since in zip(self._steps.values(), since_send.tolist(), strict=True):
            steps.since = since
            steps.write(since)

    def merge_(self, tensor: Tensor, values: Tensor, sent: Tensor, start: Tensor) -> None:
        """Merge a range of a moment, in place."""
        steps = self._owners[id(tensor)]
        if id(tensor) in self._squares:
            merge_square_(values, sent, start, beta=steps.beta(1), steps=steps.since)
        else:
            merge_moment_(values, sent, start, beta=steps.beta(0), steps=steps.since)

    def finish(self) -> None:
        """Do nothing: :meth:`begin_merge` has set the counts."""

    def counts(self) -> dict[Parameter, list[float]]:
        """See :class:`AdamMoments`. Waits for the sum in flight: rho contains its update."""
        self._count_update()
        return super().counts()

    def sent_counts(self) -> dict[Parameter, float]:
        """Step counts of the local model when it was sent."""
        sent = self._sent
        return {} if sent is None else dict(zip(self._steps, sent.tolist(), strict=True))

    def set_sent_counts(self, counts: Mapping[Parameter, float]) -> None:
        """See :class:`LocalState`. Other parameters count from the present."""
        if self._steps:
            sent = self._counts()
            for number, parameter in enumerate(self._steps):
                if parameter in counts:
                    sent[number] = counts[parameter]
            self._sent = sent
