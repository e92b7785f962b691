"""What of a module is trained: the tensors that blocks synchronise, optimizer by optimizer."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from lightning_hier.comm.blocks.health import ModelHealth
from lightning_hier.comm.blocks.members import Members, divide
from lightning_hier.comm.blocks.module_buffers import ModuleBuffers
from lightning_hier.comm.broadcast import is_averaged, is_direction


class TrainedTensors:
    """Parameters that are or have been trainable, and buffers.

    A buffer that holds NaN or inf before training has no mean, be it the mask of an attention or a
    minimum that nothing has lowered yet. It is kept equal instead, and makes no model sick. So are
    the vectors of ``spectral_norm``, whose mean would not have their length.

    Attributes:
        parameters: those that are or have been trainable.
        buffers: of the module.
        kept_equal: names of buffers that would be averaged but have no mean. A run that goes on
            has those of the run that was saved.

    """

    def __init__(
        self, module: Module, optimizers: Sequence[Optimizer], buffers: ModuleBuffers
    ) -> None:
        """Take the present trainable parameters; the module must be the same on all ranks."""
        self._module = module
        self._optimizers = optimizers
        self.buffers = buffers
        self.parameters: set[Parameter] = {p for p in module.parameters() if p.requires_grad}
        self.kept_equal: Collection[str] = {
            name
            for buffer, name in buffers.names.items()
            # torch has no isfinite for 8-bit floats, which have no mean anyway.
            if is_averaged(buffer) and (not buffer.isfinite().all() or is_direction(name, buffer))
        }

    def tensors(self, *, also_frozen: bool = False) -> list[Tensor]:
        """What is or has been trainable, or all parameters, and all buffers, brought back."""
        self.buffers.reclaim()
        parameters = self._module.parameters()
        own = [one for one in parameters if also_frozen or one in self.parameters]
        return [*own, *self.buffers.tensors]

    def names(self, tensors: Collection[Tensor]) -> list[str]:
        """Names of the trained parameters among ``tensors``."""
        own = self.parameters.intersection(tensors)
        return [name for name, parameter in self._module.named_parameters() if parameter in own]

    @property
    def all_admitted(self) -> bool:
        """Whether no parameter of the module is left that has never been trainable."""
        return all(own in self.parameters for own in self._module.parameters())

    def admit(self) -> bool:
        """Take in parameters that have become trainable; whether there were any."""
        new = {p for p in self._module.parameters() if p.requires_grad} - self.parameters
        self.parameters |= new
        return bool(new)

    def members(self) -> list[Members]:
        """Those of each optimizer's block."""
        return divide(
            self._module, self._optimizers, self.parameters, self.buffers.names, self.kept_equal
        )

    def reading(self, *, averaged: bool, carried: Sequence[Tensor] = ()) -> ModelHealth:
        """How the model is where all ranks train one.

        Args:
            averaged: whether to look at floating-point buffers too.
            carried: state of local optimizers to look at.

        """
        buffers = [b for own in self.members() for b in own.float_buffers] if averaged else ()
        return ModelHealth.of_tensors(self.parameters, buffers, carried)
