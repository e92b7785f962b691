"""What a user describes: the hosts, links and processors of a cluster, and a rank's training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from lightning_hier.algorithms.arguments import (
    check_choice,
    check_flag,
    check_not_negative,
    check_positive,
    check_whole,
)

# Importing torch takes longer than a plan.
if TYPE_CHECKING:
    from torch.nn import Module

OptimizerName = Literal["sgd", "sgd_momentum", "adam"]
"""Optimizers by the number of state tensors per parameter: none, one or two."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A full-duplex link on which a message takes ``latency_s + bytes / bytes_per_second``.

    Attributes:
        bytes_per_second: payload bandwidth in one direction.
        latency_s: one-way time of an empty message.

    """

    bytes_per_second: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        check_positive("bytes_per_second", self.bytes_per_second)
        check_not_negative("latency_s", self.latency_s)


@dataclass(frozen=True, kw_only=True)
class Processor:
    """Rates at which a host moves bytes through its memory and its sockets.

    Attributes:
        cores: cores that the ranks of a host share. None: one for each rank, as with GPUs.
        copy_bytes_per_second: rate at which a rank copies a large tensor on the model's device
            while all ranks of the host copy.
        socket_bytes_per_second: rate at which one core sends or receives through the kernel.
            None: no limit, as with NCCL.

    """

    cores: int | None = None
    # Of a CPU, which has 5 to 10 GB/s. A GPU has hundreds (docs/planning.md).
    copy_bytes_per_second: float = 7e9
    socket_bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        check_positive("copy_bytes_per_second", self.copy_bytes_per_second)
        if self.cores is not None:
            check_whole("cores", self.cores)
        if self.socket_bytes_per_second is not None:
            check_positive("socket_bytes_per_second", self.socket_bytes_per_second)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Identical hosts with one NIC each.

    Attributes:
        hosts: number of hosts.
        devices: ranks of one host.
        within: link between two ranks of one host.
        between: link between two hosts; all ranks of a host share it.
        processor: processor of each host.

    """

    hosts: int
    devices: int
    within: Link
    between: Link
    processor: Processor = field(default_factory=Processor)

    def __post_init__(self) -> None:
        check_whole("hosts", self.hosts)
        check_whole("devices", self.devices)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.hosts * self.devices


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
