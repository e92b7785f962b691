"""What plans need to know of a module's size."""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn import Module


@dataclass(frozen=True, kw_only=True)
class ModuleSize:
    """Under the names that a ``Workload`` has for it.

    Attributes:
        parameters: trainable elements.
        tensors: trainable tensors.
        buffers: elements of its floating-point buffers.
        element_bytes: of its widest parameter; 0 where there is none.

    """

    parameters: int
    tensors: int
    buffers: int
    element_bytes: int


def size_of(module: Module) -> ModuleSize:
    """Count what is trained in a module, and what is averaged with it."""
    trained = [own for own in module.parameters() if own.requires_grad]
    return ModuleSize(
        parameters=sum(own.numel() for own in trained),
        tensors=len(trained),
        buffers=sum(own.numel() for own in module.buffers() if own.is_floating_point()),
        element_bytes=max((own.element_size() for own in trained), default=0),
    )
