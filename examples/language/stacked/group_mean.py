"""Mean of the local updates of many models: exact, quantised, or sparse, with error feedback."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from examples.language.stacked.settings import Settings

# Elements of a quantisation group, and the largest quantised value.
_LEVELS = {"int8": (512, 127), "int4": (128, 7)}
# The largest elements are selected from each range of this length.
_SELECTION_BLOCK = 4096


class GroupMean:
    """Mean of local updates. Each model is on a different host.

    With the error feedback e_k of model k, and f of the sum::

        q_k = Q(update_k / N + e_k),  e_k <- update_k / N + e_k - q_k
        s   = sum over k of q_k + f,  mean = Q(s),  f <- s - Q(s)

    The sum of sparse updates is not quantised: mean = s.

    Args:
        settings: settings of the run.
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
        """Return the mean (P,) of the updates (N, P)."""
        if self._exact:
            return updates.mean(0)
        self._errors.add_(updates, alpha=1.0 / self._models)
        if self._density < 1.0:
            return torch.stack([self._sparse(errors) for errors in self._errors]).sum(0)
        received = [self._quantise(errors) for errors in self._errors]
        self._error_of_sum += torch.stack(received).sum(0)
        return self._quantise(self._error_of_sum)

    def _quantise(self, values: Tensor) -> Tensor:
        """Return the quantised values, and replace ``values`` by their errors, in place."""
        received = _quantised(values, self._levels)
        values -= received
        return received

    def _sparse(self, values: Tensor) -> Tensor:
        """Like :meth:`_quantise`, with 0 except for the largest magnitudes of 4096 elements."""
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
        """Return the mean (P,) of moments (N, P), in bfloat16 unless updates are exact."""
        if self._exact:
            return values.mean(0)
        sent = (values / self._models).bfloat16().to(values.dtype)
        return sent.sum(0).bfloat16().to(values.dtype)


def _largest(values: Tensor, share: float) -> Tensor:
    """Return the positions of the largest magnitudes, in ascending order."""
    return values.abs().topk(math.ceil(share * values.numel())).indices.sort().values


def _quantised(values: Tensor, levels: tuple[int, int] | None) -> Tensor:
    """Return the values rounded to multiples of the scale of their quantisation group.

    The scale is the largest magnitude of the group, divided by the number of levels, in float32.
    """
    if levels is None:
        return values
    size, largest = levels
    groups = pad(values, (0, -values.numel() % size)).view(-1, size)
    scales = (groups.abs().amax(1, keepdim=True) / largest).float().to(values.dtype)
    multiples = (groups / scales).nan_to_num().round()
    return (multiples * scales).flatten()[: values.numel()]
