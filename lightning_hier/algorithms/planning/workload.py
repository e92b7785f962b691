"""What is trained: how large it is, how long a step takes, what the optimizer keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from lightning_hier.algorithms.arguments import check_positive, check_share, check_whole

OptimizerName = Literal["sgd", "sgd_momentum", "adam"]
"""What plans tell apart: an optimizer keeps nothing, one or two numbers for each parameter."""

_STATE = {"sgd": 0, "sgd_momentum": 1, "adam": 2}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One rank's part of the training, without any communication.

    Attributes:
        parameters: trainable elements.
        step_s: seconds from one step to the next of one rank by itself: data, forward, backward,
            update.
        element_bytes: of a parameter; 4 for float32.
        backward_share: of the step, in which gradients come one after the other, so that they can
            travel meanwhile.
        optimizer: SGD without or with momentum, or Adam and its relatives.
        tensors: parameter tensors.
        buffers: floating-point elements that are averaged with the model (BatchNorm statistics).
        efficiency: share of a rank's speed that it keeps when all others run too, whatever they
            exchange: stragglers, uneven data, shared disks. 1 where they do not disturb each other,
            above 1 where the one that was measured alone was held up.
        on_cores: whether a step is computed by the cores that also carry messages; they take turns
            then, and nothing hides behind the other.
        name: for tables.

    Raises:
        ValueError: a value outside its range.

    """

    parameters: int
    step_s: float
    element_bytes: int = 4
    backward_share: float = 2 / 3
    optimizer: OptimizerName = "sgd_momentum"
    tensors: int = 1
    buffers: int = 0
    efficiency: float = 1.0
    on_cores: bool = False
    name: str = "model"

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("parameters", "element_bytes", "tensors"):
            check_whole(name, getattr(self, name))
        check_whole("buffers", self.buffers, least=0)
        check_positive("step_s", self.step_s)
        check_share("backward_share", self.backward_share, zero=True)
        check_positive("efficiency", self.efficiency)
        if not isinstance(self.on_cores, bool):
            raise ValueError(f"on_cores must be True or False, got {self.on_cores!r}")
        if self.optimizer not in get_args(OptimizerName):
            said = ", ".join(get_args(OptimizerName))
            raise ValueError(f"optimizer must be one of {said}, got {self.optimizer!r}")
        if not isinstance(self.name, str):
            raise ValueError(f"name must be a text, got {self.name!r}")

    @property
    def gradient_bytes(self) -> int:
        """Of all gradients, and of all parameters."""
        return self.parameters * self.element_bytes

    @property
    def model_bytes(self) -> int:
        """Of what groups average: parameters and floating-point buffers."""
        return (self.parameters + self.buffers) * self.element_bytes

    @property
    def state_bytes(self) -> int:
        """Of the optimizer's state."""
        return _STATE[self.optimizer] * self.gradient_bytes

    @property
    def disturbed_step_s(self) -> float:
        """Of a step beside all others: longer than alone by the fixed efficiency."""
        return self.step_s / self.efficiency
