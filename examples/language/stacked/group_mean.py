"""The mean of what many models send: exact, or rounded or sparse with error feedback.

The codecs are those of ``lightning_hier``, which its tests compare with the equations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from examples.language.stacked.settings import Settings
from lightning_hier.algorithms.quantisation import Codec, ExactCodec, Int4Codec, Int8Codec
from lightning_hier.algorithms.sparse_codec import SparseCodec

_PADDED_TO = 512
"""Elements of a quantisation group."""


class GroupMean:
    """Mean of local updates. Every model is on a host of its own.

    With error feedback e_k of model k, and f of the sum, which is not rounded if it is sparse::

        q_k = Q(update_k / N + e_k),  e_k <- update_k / N + e_k - q_k
        s   = sum over k of q_k + f,  mean = Q(s),  f <- s - Q(s)

    Args:
        settings: of the run.
        like: one update (P,).

    """

    def __init__(self, settings: Settings, like: Tensor) -> None:
        self._models, self._numel = settings.models, like.numel()
        self._sparse = settings.across_density < 1.0
        self._codec = _codec(settings, like.dtype)
        padded = -(-self._numel // _PADDED_TO) * _PADDED_TO
        length = self._numel if self._sparse else padded
        if self._codec is not None:
            self._errors = like.new_zeros((self._models, length))
            self._error_of_sum = like.new_zeros(length)

    def __call__(self, updates: Tensor) -> Tensor:
        """Mean (P,) of the updates (N, P)."""
        if self._codec is None:
            return updates.mean(0)
        return self._sparse_mean(updates) if self._sparse else self._rounded_mean(updates)

    def _sparse_mean(self, updates: Tensor) -> Tensor:
        assert self._codec is not None
        payload = torch.empty(self._codec.bytes_for(self._numel), dtype=torch.uint8)
        total = torch.zeros_like(updates[0])
        for errors, update in zip(self._errors, updates.contiguous(), strict=True):
            self._codec.encode_(errors, payload, plus=update, weight=1.0 / self._models)
            self._codec.decode(payload, total, add=True)
        return total

    def _rounded_mean(self, updates: Tensor) -> Tensor:
        # Rows are whole quantisation groups, so the codec can take them all as one.
        self._errors[:, : self._numel].add_(updates, alpha=1.0 / self._models)
        self._error_of_sum.add_(self._quantised(self._errors).sum(0))
        return self._quantised(self._error_of_sum)[: self._numel]

    def _quantised(self, values: Tensor) -> Tensor:
        """The values as they are received; they become their errors, in place."""
        assert self._codec is not None
        payload = torch.empty(self._codec.bytes_for(values.numel()), dtype=torch.uint8)
        received = torch.empty_like(values)
        self._codec.encode_(values.view(-1), payload)
        self._codec.decode(payload, received.view(-1))
        return received

    def of_state(self, values: Tensor) -> Tensor:
        """Mean (P,) of moments (N, P), in bfloat16 where updates are not exact."""
        if self._codec is None:
            return values.mean(0)
        sent = (values / self._models).bfloat16().to(values.dtype)
        return sent.sum(0).bfloat16().to(values.dtype)


def _codec(settings: Settings, dtype: torch.dtype) -> Codec | None:
    dense: dict[str, Codec] = {"int8": Int8Codec(), "int4": Int4Codec()}
    values = dense.get(settings.across_dtype)
    if settings.across_density < 1.0:
        return SparseCodec(values or ExactCodec(dtype), settings.across_density)
    return values
