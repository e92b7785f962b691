"""A tensor in a step of gradient threshold compression, and its next threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels import gtc
from lightning_hier.algorithms.kernels.payload import bitmap_words, words_to_bitmap
from lightning_hier.comm.worker import TensorMemory

# Lower limit for a tensor whose gradient is zero for thousands of steps, so that corrections can
# raise the threshold again. It is a normal number even in float32.
_SMALLEST_THRESHOLD = 1e-30


@dataclass
class CompressedTensor:
    """A tensor of a bucket, from encoding to mean.

    A tensor without a threshold is in its first step: its gradients are averaged exactly, and their
    magnitude gives the threshold.

    Attributes:
        flat: residual plus gradient of this rank, as its part of the bucket.
        memory: residual and threshold of this rank.
        words: elements that this rank sends. None in the first step.
        fact: a number that the group exchanges: the number of words, or ``-1 - number`` if the rank
            has no gradient for the tensor. In the first step, the root mean square of its gradient,
            negated if it has none.
        finite: whether all values are finite.
        skipped: whether no rank of the group has a gradient.
        counts: number of words of every rank of the group.
        is_bitmap: whether bitmaps need fewer bytes than words. Equal on all ranks, like the counts.
        payloads: words or bitmap of every rank of the group.

    """

    flat: Tensor
    memory: TensorMemory
    words: Tensor | None
    fact: float
    finite: bool
    skipped: bool = False
    counts: list[int] = field(default_factory=list)
    is_bitmap: bool = False
    payloads: list[Tensor] = field(default_factory=list)
    _group_rms: float = 0.0

    @classmethod
    def encode_(
        cls,
        flat: Tensor,
        memory: TensorMemory,
        *,
        absent: bool,
        scale: float,
    ) -> CompressedTensor:
        """Divide the gradient by ``scale``, add the residual, in place, and select elements.

        Args:
            flat: gradient of this rank.
            memory: residual and threshold of this rank.
            absent: whether only other ranks have a gradient. The values are then used as in DDP:
                zeros, or the finite values of an earlier backward pass in ``.grad``.
            scale: current factor of loss scaling.

        """
        if memory.threshold is None:
            # No residual is added: without a threshold, nothing has been withheld yet.
            if scale != 1.0:
                flat.div_(scale)
            norm = float(torch.linalg.vector_norm(flat, dtype=torch.float64))
            rms = norm / math.sqrt(max(flat.numel(), 1))
            # The sign carries the second fact, so each tensor needs one number of each rank.
            return cls(flat, memory, None, -rms if absent else rms, math.isfinite(norm))
        words, finite = gtc.encode_(flat, memory.residual, memory.threshold, scale=scale)
        fact = float(-1 - len(words) if absent else len(words))
        return cls(flat, memory, words, fact, finite)

    @property
    def is_first_step(self) -> bool:
        """Whether the tensor had no threshold when it was encoded."""
        return self.words is None

    @property
    def sent_share(self) -> float:
        """Fraction of the elements that the ranks of the group send."""
        return sum(self.counts) / (len(self.flat) * len(self.counts))

    def add_facts(self, facts: Tensor) -> None:
        """Add the facts of every rank of the group."""
        if self.is_first_step:
            # Also if all gradients are zero: they give no threshold, so the first step comes later.
            self.skipped = bool((facts <= 0.0).all())
            self._group_rms = float(facts.square().mean().sqrt())
        else:
            self.skipped = bool((facts < 0).all())
            self.counts = torch.where(facts < 0, -1 - facts, facts).long().tolist()
            # The longest list of words decides, because all rows are padded to the longest one.
            self.is_bitmap = max(self.counts) > bitmap_words(len(self.flat))

    def payload_lengths(self) -> list[int]:
        """Number of 32-bit words in the payload of every rank of the group."""
        if self.is_bitmap:
            return [bitmap_words(len(self.flat))] * len(self.counts)
        return self.counts

    def own_payload(self) -> Tensor:
        """The payload of this rank, after the first step."""
        assert self.words is not None
        return words_to_bitmap(self.words, len(self.flat)) if self.is_bitmap else self.words

    def decode_(self, scale: float) -> None:
        """Update the residual, and write the mean times ``scale``.

        Not used in the first step, unless no rank has a gradient.
        """
        if self.skipped:
            self.flat.zero_()
        if self.skipped or self.words is None:
            return
        flat, memory = self.flat, self.memory
        assert memory.threshold is not None
        gtc.decode_(
            flat,
            memory.residual,
            self.words,
            memory.threshold,
            [row for row in self.payloads if len(row)],
            [memory.threshold / len(self.counts)] + [scale] * (scale != 1.0),
            bitmaps=self.is_bitmap,
        )
        self.payloads = []  # freed here, and not only when all buckets are finished

    def adapt_threshold(self, density: float) -> None:
        """Set the threshold of the next step, the same on all ranks of the group.

        Args:
            density: wanted fraction of sent elements.

        """
        before = self.memory.threshold
        if before is None:
            self.memory.threshold = first_threshold(self._group_rms, density)
        else:
            elements = len(self.flat) * len(self.counts)
            self.memory.threshold = next_threshold(
                before, sent=sum(self.counts), elements=elements, density=density
            )


def payload_rows(tensors: Sequence[CompressedTensor], ranks: int) -> tuple[Tensor, Tensor]:
    """The payloads of this rank, and memory for those of all ``ranks``, a row each.

    The payloads of each tensor become views of this memory.
    """
    lengths = list(zip(*(tensor.payload_lengths() for tensor in tensors), strict=True))
    own = [tensor.own_payload() for tensor in tensors]
    # Padded, because gloo gathers equal lengths only.
    longest, device = max(map(sum, lengths)), tensors[0].flat.device
    sent = torch.zeros(longest, dtype=torch.int32, device=device)
    torch.cat(own, out=sent[: sum(map(len, own))])
    received = sent.new_empty(ranks, longest)
    for row, of_tensors in zip(received, lengths, strict=True):
        pieces = row[: sum(of_tensors)].split(of_tensors)
        for tensor, payload in zip(tensors, pieces, strict=True):
            tensor.payloads.append(payload)
    return sent, received


def first_threshold(gradient_rms: float, density: float) -> float:
    """Threshold from which the automatic control starts.

    A residual under noise of standard deviation sigma is a random walk: it needs about
    (T / sigma)**2 steps to reach T, so the share of elements sent per step is (sigma / T)**2, and
    T = sigma / sqrt(density).
    """
    return gradient_rms / math.sqrt(density)


def next_threshold(threshold: float, *, sent: int, elements: int, density: float) -> float:
    """Move the threshold of one tensor so that about ``density`` of its elements is sent.

    In the long run the density is proportional to T**-2, so the exact correction has exponent 1/2.
    But a residual moves by sigma in a step, which is a fraction sqrt(density) of T. A change of T
    by this amount immediately affects all residuals near T. The exponent is therefore multiplied by
    sqrt(density). Otherwise T would oscillate between sending nothing and sending many times the
    density. One is added to both counts so that a tensor that sends nothing has a ratio above 0.

    Args:
        threshold: T of this step.
        sent: elements sent in this step, over all ranks of the group.
        elements: elements that could have been sent, over all ranks of the group.
        density: wanted share of the elements.

    """
    ratio = (sent + 1) / (elements * density + 1)
    return max(threshold * float(ratio ** (0.5 * math.sqrt(density))), _SMALLEST_THRESHOLD)
