"""A tensor in a step of gradient threshold compression, and its next threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels import kernels_for
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
        flats: residual plus gradient of each worker of this rank, as its part of the bucket.
        memories: residual and threshold of each of these workers.
        words: elements that each of them sends. Empty in the first step.
        facts: for each of them, a number that the group exchanges: its number of words, or ``-1 -
            number`` if the worker has no gradient for the tensor. In the first step, the root mean
            square of its gradient, negated if it has none.
        is_first_step: whether the tensor has no threshold yet.
        finite: whether all values are finite.
        skipped: whether no worker of the group has a gradient.
        counts: number of words of every worker of the group.
        is_bitmap: whether bitmaps need fewer bytes than words. Equal on all ranks, like the counts.
        payloads: words or bitmap of every worker of the group.

    """

    flats: Sequence[Tensor]
    memories: Sequence[TensorMemory]
    is_first_step: bool
    words: list[Tensor] = field(default_factory=list)
    facts: list[float] = field(default_factory=list)
    finite: bool = True
    skipped: bool = False
    counts: list[int] = field(default_factory=list)
    is_bitmap: bool = False
    payloads: list[Tensor] = field(default_factory=list)
    _group_rms: float = 0.0

    @classmethod
    def encode_(
        cls,
        flats: Sequence[Tensor],
        memories: Sequence[TensorMemory],
        absent: Sequence[bool],
        scale: float,
    ) -> CompressedTensor:
        """Divide the gradients by ``scale``, add the residuals, in place, and select elements.

        Args:
            flats: gradient of each worker of this rank.
            memories: residual and threshold of each of them.
            absent: for each of them, whether only other workers have a gradient. Its values are
                then used as in DDP: zeros, or the finite values of an earlier backward pass in
                ``.grad``.
            scale: current factor of loss scaling.

        """
        tensor = cls(flats, memories, is_first_step=memories[0].threshold is None)
        for flat, memory, missing in zip(flats, memories, absent, strict=True):
            if memory.threshold is None:
                # No residual is added: without a threshold, nothing has been withheld yet.
                if scale != 1.0:
                    flat.div_(scale)
                norm = float(torch.linalg.vector_norm(flat, dtype=torch.float64))
                rms = norm / math.sqrt(max(flat.numel(), 1))
                # The sign carries the second fact, so each tensor needs one number of each worker.
                fact, finite = -rms if missing else rms, math.isfinite(norm)
            else:
                words, finite = kernels_for(flat, memory.residual).encode_(
                    flat, memory.residual, memory.threshold, scale=scale
                )
                tensor.words.append(words)
                fact = float(-1 - len(words) if missing else len(words))
            tensor.facts.append(fact)
            tensor.finite = tensor.finite and finite
        return tensor

    @property
    def sent_share(self) -> float:
        """Fraction of the elements that the workers of the group send."""
        return sum(self.counts) / (len(self.flats[0]) * len(self.counts))

    def add_facts(self, facts: Tensor) -> None:
        """Add the facts of every worker of the group."""
        if self.is_first_step:
            # Also if all gradients are zero: they give no threshold, so the first step comes later.
            self.skipped = bool((facts <= 0.0).all())
            self._group_rms = float(facts.square().mean().sqrt())
        else:
            self.skipped = bool((facts < 0).all())
            self.counts = torch.where(facts < 0, -1 - facts, facts).long().tolist()
            # The longest list of words decides, because all rows are padded to the longest one.
            self.is_bitmap = max(self.counts) > bitmap_words(len(self.flats[0]))

    def payload_lengths(self) -> list[int]:
        """Number of 32-bit words in the payload of every worker of the group."""
        if self.is_bitmap:
            return [bitmap_words(len(self.flats[0]))] * len(self.counts)
        return self.counts

    def own_payloads(self) -> list[Tensor]:
        """The payload of each worker of this rank."""
        if not self.is_bitmap:
            return self.words
        return [words_to_bitmap(words, len(self.flats[0])) for words in self.words]

    def decode_(self, scale: float) -> None:
        """Update the residuals, and write the mean times ``scale`` for the first worker.

        Not used in the first step, unless no worker has a gradient.
        """
        if self.skipped:
            self.flats[0].zero_()
        if self.skipped or self.is_first_step:
            return
        rows = [row for row in self.payloads if len(row)]
        for flat, memory, words in zip(self.flats, self.memories, self.words, strict=True):
            assert memory.threshold is not None
            factors = [memory.threshold / len(self.counts)] + [scale] * (scale != 1.0)
            kernels_for(flat, memory.residual).decode_(
                flat,
                memory.residual,
                words,
                memory.threshold,
                rows,
                factors,
                bitmaps=self.is_bitmap,
            )
            rows = []  # the mean is written for the first worker only
        self.payloads = []  # freed here, and not only when all buckets are finished

    def adapt_threshold(self, density: float) -> None:
        """Set the threshold of the next step, the same on all workers of the group.

        Args:
            density: wanted fraction of sent elements.

        """
        before = self.memories[0].threshold
        if before is None:
            threshold = first_threshold(self._group_rms, density)
        else:
            elements = len(self.flats[0]) * len(self.counts)
            threshold = next_threshold(
                before, sent=sum(self.counts), elements=elements, density=density
            )
        for memory in self.memories:
            memory.threshold = threshold


def payload_rows(tensors: Sequence[CompressedTensor], workers: int) -> tuple[Tensor, Tensor]:
    """The payloads of this rank's workers, and memory for those of all ``workers``, one row each.

    The payloads of each tensor become views of this memory.
    """
    lengths = list(zip(*(tensor.payload_lengths() for tensor in tensors), strict=True))
    own = list(zip(*(tensor.own_payloads() for tensor in tensors), strict=True))
    # Padded, because gloo gathers equal lengths only.
    longest, device = max(map(sum, lengths)), tensors[0].flats[0].device
    rows = torch.zeros(len(own), longest, dtype=torch.int32, device=device)
    for row, of_worker in zip(rows, own, strict=True):
        torch.cat(of_worker, out=row[: sum(map(len, of_worker))])
    received = rows.new_empty(workers, longest)
    for row, of_tensors in zip(received, lengths, strict=True):
        pieces = row[: sum(of_tensors)].split(of_tensors)
        for tensor, payload in zip(tensors, pieces, strict=True):
            tensor.payloads.append(payload)
    return rows, received


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
        sent: elements sent in this step, over all workers of the group.
        elements: elements that could have been sent, over all workers of the group.
        density: wanted share of the elements.

    """
    ratio = (sent + 1) / (elements * density + 1)
    return max(threshold * float(ratio ** (0.5 * math.sqrt(density))), _SMALLEST_THRESHOLD)
