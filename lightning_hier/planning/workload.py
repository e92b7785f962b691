"""Training of one rank: size of the model, duration of a step, optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from lightning_hier.algorithms.arguments import (
    check_choice,
    check_flag,
    check_positive,
    check_whole,
)

# Importing torch takes longer than a plan.
if TYPE_CHECKING:
    from torch.nn import Module

OptimizerName = Literal["sgd", "sgd_momentum", "adam"]
"""Optimizers by the number of state tensors per parameter: none, one or two."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Training of one rank without communication.

    Attributes:
        parameters: number of trainable elements.
        step_s: seconds of one step: data, forward, backward and update, while all ranks train.
        element_bytes: bytes of one parameter.
        optimizer: ``"adam"`` means any optimizer with two state tensors per parameter.
        buffers: floating-point elements that are averaged with the model (BatchNorm statistics).
        on_cores: whether steps run on the cores that also send messages.
        name: name in tables.

    """

    parameters: int
    step_s: float
    element_bytes: int = 4
    optimizer: OptimizerName = "sgd_momentum"
    buffers: int = 0
    on_cores: bool = False
    name: str = "model"

    def __post_init__(self) -> None:
        check_whole("parameters", self.parameters)
        check_whole("element_bytes", self.element_bytes)
        check_whole("buffers", self.buffers, least=0)
        check_positive("step_s", self.step_s)
        check_flag("on_cores", self.on_cores)
        check_choice("optimizer", self.optimizer, get_args(OptimizerName))

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients, or of all parameters."""
        return self.parameters * self.element_bytes

    @property
    def model_bytes(self) -> int:
        """Bytes of parameters and floating-point buffers."""
        return (self.parameters + self.buffers) * self.element_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer state."""
        # The position of a name is the number of its state tensors.
        return get_args(OptimizerName).index(self.optimizer) * self.gradient_bytes


def size_of(module: Module) -> dict[str, int]:
    """Size of a module, for :class:`Workload`: ``Workload(**size_of(module), step_s=0.1)``."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    floating = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    return {
        "parameters": sum(parameter.numel() for parameter in trained),
        "buffers": sum(buffer.numel() for buffer in floating),
        "element_bytes": max((parameter.element_size() for parameter in trained), default=0),
    }
