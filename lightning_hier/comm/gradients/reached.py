"""Parameters that the backward passes of a step reach, and the order of their gradients.

DDP forms new buckets in this order after the first step. The rounding of a sum over three ranks or
more depends on the position of an element in its bucket, so a resumed run must start with the
buckets of the interrupted run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel


class ReachedParameters:
    """Records which parameters have received a gradient since the last reduction.

    If a backward pass does not reach a parameter, DDP copies its ``.grad`` into the bucket. In
    manual optimization, this is often the gradient of an earlier step that another optimizer has
    already used, so the values do not show that the parameter is unused.

    Args:
        parameters: observed parameters, which must require gradients.
        every_step: whether to observe them in every step, and not only in the first one.

    Attributes:
        first_order: parameters in the order of their gradients in the first step. Empty until this
            step has been reduced.

    """

    def __init__(self, parameters: Iterable[Parameter], *, every_step: bool) -> None:
        self.first_order: list[Parameter] = []
        self._every_step = every_step
        self._seen: dict[Parameter, None] = {}
        # These hooks run before DDP's hooks, and therefore before a bucket can be complete. With
        # accumulation they run in every pass, and DDP's hook of a bucket only in the last one.
        self._handles = [p.register_post_accumulate_grad_hook(self._note) for p in parameters]

    def missing_of(self, parameters: Iterable[Parameter]) -> set[Parameter]:
        """Parameters without a gradient in this step, including accumulation passes."""
        if not self._every_step:
            return set()
        return {parameter for parameter in parameters if parameter not in self._seen}

    def end_step(self) -> None:
        """Reset the record when all gradients of a step are complete."""
        if not self._handles:
            return
        # The first step only, because DDP forms its buckets anew only once.
        if not self.first_order:
            self.first_order = list(self._seen)
        self._seen.clear()
        if not self._every_step:
            self.remove()

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._seen.clear()

    def _note(self, parameter: Tensor) -> None:
        assert isinstance(parameter, Parameter)
        # Earlier passes only accumulate, so the order of the last one is used.
        self._seen.pop(parameter, None)
        self._seen[parameter] = None


@torch.enable_grad()
def reach(parameters: Iterable[Parameter]) -> None:
    """Run the hooks of a backward pass that reaches ``parameters``. Gradients become zero.

    DDP records the parameters of a step by these hooks. If a step is interrupted, the record is
    lost, and parameters that only earlier passes have used would not be reduced.
    """
    # One element is enough: the hooks of a parameter run whatever its gradient is.
    ends = [parameter.reshape(-1)[:1] for parameter in parameters if parameter.requires_grad]
    torch.autograd.backward(ends, [torch.zeros_like(end) for end in ends])


@torch.enable_grad()
def rehearse(model: DistributedDataParallel, order: Sequence[Parameter]) -> None:
    """Make DDP form its buckets as after a step with gradients in this ``order``.

    The hook of ``model`` must not communicate during the call. Gradients are None afterwards. All
    ranks of the group must call it, because DDP synchronises the buckets at the next forward pass.

    Args:
        model: new DDP model on the CPU, without ``find_unused_parameters``.
        order: all trainable parameters of the model.

    """
    chain = torch.zeros((), requires_grad=True)
    for parameter in reversed(order):
        # The backward pass visits the most recent node first.
        # 0.0 times one element is a gradient of zeros, of a parameter of any size and dtype.
        chain = chain + 0.0 * parameter.reshape(-1)[:1].sum().to(chain.dtype)
    # As DDP's forward pass does. Here the module is not called.
    model.reducer.prepare_for_backward([])
    chain.backward()
    for parameter in order:
        parameter.grad = None
