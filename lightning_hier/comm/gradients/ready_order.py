"""The order in which a backward pass makes gradients, on which DDP's buckets depend.

DDP forms its buckets anew after the first step, in that order. A sum over three ranks or more is
rounded by where in a bucket an element lies, so a run that is resumed must begin with the buckets
that the run had which was stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel


class ReadyOrder:
    """Notes in which order parameters get their gradients in the first step that DDP reduces.

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
        """All gradients of the first step are there; watch no longer."""
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
        # Passes that only accumulate come before: the last one counts.
        self._seen.pop(parameter, None)
        self._seen[parameter] = None


def rehearse(model: DistributedDataParallel, order: Sequence[Parameter]) -> None:
    """Have DDP form its buckets as after a step whose gradients came in ``order``.

    The hook of ``model`` must not communicate meanwhile. Gradients are None afterwards. The ranks
    of the group must all call it: DDP agrees on the buckets at the next forward pass.

    Args:
        model: wrapped without ``find_unused_parameters``, not used yet, and on the CPU.
        order: all its trainable parameters.

    """
    chain = torch.zeros((), requires_grad=True)
    for parameter in reversed(order):
        # The later a node is made, the sooner the backward pass comes to it.
        chain = _link(chain, parameter)
    model.reducer.prepare_for_backward([])
    chain.backward()
    for parameter in order:
        parameter.grad = None


def _link(chain: Tensor, parameter: Parameter) -> Tensor:
    return chain + 0.0 * parameter.reshape(-1)[:1].sum().to(chain.dtype)
