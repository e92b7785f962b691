"""The parameters that the backward passes of a step reach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.nn import Parameter

from lightning_hier.comm.channel import Channel


class ReachedParameters:
    """The parameters that have received a gradient since the last reduction.

    DDP fills the bucket of a parameter that a backward pass does not reach with its ``.grad``. In
    manual optimisation this is often the gradient of an earlier step that another optimizer has
    already used, so values do not show that a parameter is unused.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        """Watch ``parameters``, which must require gradient."""
        self._reached: set[Parameter] = set()
        # These hooks run before DDP's own, hence before a bucket can be complete.
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._reached.add)
            for parameter in parameters
        ]

    def __contains__(self, parameter: Parameter) -> bool:
        """Whether the parameter has received a gradient, accumulation passes included."""
        return parameter in self._reached

    def clear(self) -> None:
        """Begin the next step."""
        self._reached.clear()

    def remove(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()


@torch.enable_grad()
def reach(parameters: Iterable[Parameter]) -> None:
    """Run the hooks of a backward pass that reaches ``parameters``; gradients become zero.

    By these hooks DDP records the parameters that a step has used. The record is lost where a step
    is interrupted, and parameters that only the passes before it used would not be reduced.
    """
    ends = [own.reshape(-1)[:1] for own in parameters if own.requires_grad]
    torch.autograd.backward(ends, [torch.zeros_like(end) for end in ends])


def reached_by_any(
    parameters: Sequence[Parameter], here: Sequence[bool], channel: Channel
) -> set[Parameter]:
    """The parameters that have a gradient on any rank. A collective of the channel.

    Args:
        parameters: the same on all ranks.
        here: whether each has one on this rank.
        channel: the ranks.

    """
    if channel.size > 1:
        counts = torch.tensor(here, dtype=torch.int32, device=parameters[0].device)
        channel.all_reduce_(counts, "gradient_counts").wait()
        here = (counts > 0).tolist()
    return {own for own, found in zip(parameters, here, strict=True) if found}
