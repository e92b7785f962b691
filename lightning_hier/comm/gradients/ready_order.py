"""The order in which a backward pass computes gradients, on which DDP's buckets depend.

DDP forms new buckets in this order after the first step. The rounding of a sum over three ranks or
more depends on the position of an element in its bucket, so a resumed run must start with the
buckets of the interrupted run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel


class ReadyOrder:
    """Records the order in which parameters get their gradients in the first step of DDP.

    Attributes:
        parameters: in that order; empty until the first step has been reduced.

    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        """Watch ``parameters``, which must require gradient, until :meth:`end_step`."""
        self.parameters: list[Parameter] = []
        self._seen: dict[Parameter, None] = {}
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._note) for parameter in parameters
        ]

    def end_step(self) -> None:
        """All gradients of the first step are complete; stop watching."""
        if self._handles:
            self.parameters = list(self._seen)
            self.remove()

    def remove(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._seen.clear()

    def _note(self, parameter: Tensor) -> None:
        assert isinstance(parameter, Parameter)
        # Earlier passes only accumulate: the last one counts.
        self._seen.pop(parameter, None)
        self._seen[parameter] = None


def rehearse(model: DistributedDataParallel, order: Sequence[Parameter]) -> None:
    """Let DDP form its buckets as after a step whose gradients came in ``order``.

    The hook of ``model`` must not communicate during the call. Gradients are None afterwards. All
    ranks of the group must call it: DDP synchronises the buckets at the next forward pass.

    Args:
        model: wrapped without ``find_unused_parameters``, not used yet, and on the CPU.
        order: all its trainable parameters.

    """
    chain = torch.zeros((), requires_grad=True)
    for parameter in reversed(order):
        # The backward pass visits the latest node first.
        chain = _link(chain, parameter)
    model.reducer.prepare_for_backward([])
    chain.backward()
    for parameter in order:
        parameter.grad = None


def _link(chain: Tensor, parameter: Parameter) -> Tensor:
    return chain + 0.0 * parameter.reshape(-1)[:1].sum().to(chain.dtype)
