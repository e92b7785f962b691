"""The mean of what many models send: exact, or rounded or sparse with error feedback."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from examples.language.stacked.settings import Settings

# Number of elements that share a scale, and the largest multiple of the scale.
_LEVELS = {"int8": (512, 127), "int4": (128, 7)}
# Elements of which the largest are selected together.
_SELECTION_BLOCK = 4096


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
        self._models = settings.models
        self._levels = _LEVELS.get(settings.across_dtype)
        self._density = settings.across_density
        self._exact = self._density == 1.0 and self._levels is None
        self._errors = like.new_zeros((self._models, like.numel()))
        self._error_of_sum = torch.zeros_like(like)

    def __call__(self, updates: Tensor) -> Tensor:
        """Mean (P,) of the updates (N, P)."""
        if self._exact:
            return updates.mean(0)
        self._errors.add_(updates, alpha=1.0 / self._models)
        if self._density < 1.0:
            return torch.stack([self._sparse(errors) for errors in self._errors]).sum(0)
        self._error_of_sum += torch.stack([self._rounded(own) for own in self._errors]).sum(0)
        return self._rounded(self._error_of_sum)

    def _rounded(self, values: Tensor) -> Tensor:
        """The values as they are received; they become their errors, in place."""
        received = _quantised(values, self._levels)
        values -= received
        return received

    def _sparse(self, values: Tensor) -> Tensor:
        """The same, of the largest magnitudes of each 4096 elements; the others are 0."""
        positions = torch.arange(values.numel())
        selected = torch.cat(
            [
                block[_largest(values[block], self._density)]
                for block in positions.split(_SELECTION_BLOCK)
            ]
        )
        received = torch.zeros_like(values)
        received[selected] = _quantised(values[selected], self._levels)
        values -= received
        return received

    def of_state(self, values: Tensor) -> Tensor:
        """Mean (P,) of moments (N, P), in bfloat16 where updates are not exact."""
        if self._exact:
            return values.mean(0)
        sent = (values / self._models).bfloat16().to(values.dtype)
        return sent.sum(0).bfloat16().to(values.dtype)


def _largest(values: Tensor, share: float) -> Tensor:
    """Positions of the largest magnitudes, in ascending order."""
    return values.abs().topk(math.ceil(share * values.numel())).indices.sort().values


def _quantised(values: Tensor, levels: tuple[int, int] | None) -> Tensor:
    """The nearest multiples of scales in float32, which are the largest of a group / levels."""
    if levels is None:
        return values
    size, largest = levels
    groups = pad(values, (0, -values.numel() % size)).view(-1, size)
    scales = (groups.abs().amax(1, keepdim=True) / largest).float().to(values.dtype)
    steps = (groups / scales).nan_to_num().round()
    return (steps * scales).flatten()[: values.numel()]
