"""Synchronised tensors of a module, divided among the blocks of its optimizers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from lightning_hier.algorithms.fingerprint import bit_sums
from lightning_hier.comm.agreement import list_difference
from lightning_hier.comm.blocks.module_buffers import ModuleBuffers
from lightning_hier.comm.broadcast import is_averaged, without_mean
from lightning_hier.comm.sharded_tensors import local_tensor, reshard_

# Integers up to 2**53 are exact in the double precision of health reports. With 48 bits, different
# parameters have the same digest with a probability of 4e-15.
_DIGEST_BYTES = 6


@dataclass
class Members:
    """Tensors that one block synchronises.

    Attributes:
        parameters: trainable parameters, to which the outer step applies.
        float_buffers: floating-point buffers such as BatchNorm statistics. They are averaged
            without block momentum, whose look-ahead could make a variance negative.
        other_buffers: integer and boolean buffers, and those without a mean. They are those of the
            first rank.

    """

    parameters: list[Parameter] = field(default_factory=list)
    float_buffers: list[Tensor] = field(default_factory=list)
    other_buffers: list[Tensor] = field(default_factory=list)

    @property
    def tensors(self) -> list[Tensor]:
        """Parameters and buffers."""
        return [*self.parameters, *self.float_buffers, *self.other_buffers]


def divide_parameters(parameters: Sequence[Parameter], fragments: int) -> list[list[Parameter]]:
    """Divide parameters into consecutive parts of about equal bytes, some of them perhaps empty.

    A parameter belongs to the part in which the middle of its bytes lies.
    """
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    parts: list[list[Parameter]] = [[] for _ in range(fragments)]
    before, total = 0, sum(sizes)
    for parameter, size in zip(parameters, sizes, strict=True):
        middle = before + size / 2
        parts[min(int(fragments * middle / max(total, 1)), fragments - 1)].append(parameter)
        before += size
    return parts


def optimizer_parameters(optimizer: Optimizer) -> list[Parameter]:
    """Parameters of all groups of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def parameters_of(module: Module) -> set[Parameter]:
    """All parameters of a module and its children, for checks at every step.

    ``module.parameters()`` nests a generator for each level of the module. A check of 24 layers of
    a Transformer then takes 0.5 ms, and with this function 0.06 ms.
    """
    found: set[Parameter | None] = set()
    seen: set[Module | None] = {None}
    modules: list[Module | None] = [module]
    for child in modules:  # which grows
        if child is not None and child not in seen:
            seen.add(child)
            found.update(child._parameters.values())
            modules += child._modules.values()
    return cast(set[Parameter], found - {None})


class KnownParameters:
    """The parameters of a module when training began, which it must keep.

    Args:
        module: module that is trained.

    Attributes:
        names: name of each parameter, in order.

    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self.names: dict[Parameter, str] = {p: name for name, p in module.named_parameters()}

    def require_kept(self, present: Collection[Parameter]) -> None:
        """Check the module's parameters, which are those of :func:`parameters_of`.

        Raises:
            RuntimeError: some are new, or are missing.

        """
        if present == self.names.keys():
            return
        reshard_(self._module)  # FSDP2 shows other tensors after a forward pass without a backward
        after = dict(self._module.named_parameters())
        new = [repr(name) for name, p in after.items() if p not in self.names]
        gone = [repr(name) for p, name in self.names.items() if p not in {*after.values()}]
        if new or gone:
            raise RuntimeError(
                "the module's parameters are not those with which training began: "
                f"{', '.join(new) or 'none'} new, {', '.join(gone) or 'none'} gone. They would not "
                "be synchronised. Create all layers in __init__, configure_model or setup, and "
                "freeze those that train later; or end this fit and begin another one."
            )


class TrainedTensors:
    """What ranks synchronise: parameters that are or have been trainable, and buffers.

    A buffer that contains NaN or inf before training, such as an attention mask, has no mean. It is
    kept equal on all ranks, and is not part of the health check. The same holds for the vectors of
    ``spectral_norm``, because the mean of unit vectors is shorter.

    Frozen parameters are synchronised as buffers from the first exchange at which any rank has
    written to them, as hooks do to the teacher of BYOL, DINO or a mean teacher.

    Args:
        module: module, equal on all ranks. Its current trainable parameters are used.
        optimizers: optimizers of the module.
        buffers: buffers of the module.

    Attributes:
        known: all parameters of the module.
        parameters: parameters that are or were trainable.
        buffers: buffers of the module, and frozen parameters that were written.
        kept_equal: names of floating-point buffers without a mean. A resumed run uses those of the
            saved run.
        entries: role, shape and dtype of each tensor, in order, which are equal on all ranks.
        found: names of tensors that become buffers at the next exchange.

    """

    def __init__(
        self, module: Module, optimizers: Sequence[Optimizer], buffers: ModuleBuffers
    ) -> None:
        self._module = module
        self._optimizers = optimizers
        self.buffers = buffers
        self.known = KnownParameters(module)
        self.parameters: set[Parameter] = {p for p in module.parameters() if p.requires_grad}
        # A list: sets call Tensor.__hash__ for each parameter, and this is read at every step.
        self._untrained = [p for p in self.known.names if p not in self.parameters]
        # Decided once: a later NaN in a buffer with a mean is an error, and a resume restores
        # buffers whose values say nothing about the start.
        self.kept_equal: Collection[str] = without_mean(buffers.names)
        self.entries: list[str] = []
        self.found: dict[Tensor, str] = {}
        self._frozen: dict[Parameter, int] = {}
        self.note_frozen()

    def note_frozen(self) -> None:
        """Record the values of frozen parameters, which are equal on all ranks."""
        frozen = [p for p in self.known.names if p not in {*self.parameters, *self.buffers.names}]
        self._frozen = dict(zip(frozen, _bits(frozen), strict=True))

    def mark_written(self, names: Collection[str]) -> None:
        """Regard these parameters as written since :meth:`note_frozen`."""
        for parameter in self._frozen:
            if self.known.names[parameter] in names:
                self._frozen[parameter] = -1

    def note(self) -> None:
        """Find what has changed, and describe all tensors. Does not communicate."""
        self.describe()
        synchronised = {*self.parameters, *self.buffers.names}
        self._frozen = {p: bits for p, bits in self._frozen.items() if p not in synchronised}
        bits = zip(self._frozen.items(), _bits(self._frozen), strict=True)
        written = {p for (p, before), now in bits if before != now}
        # In the order of the module, which a set does not have.
        self.found = {p: name for p, name in self.known.names.items() if p in written}
        self.found |= self.buffers.registered_since()

    def describe(self) -> None:
        """Describe all tensors, without reading them. Does not communicate."""
        self.buffers.reclaim()
        stepped = {
            p: f"in optimizer {index}"
            for index, optimizer in reversed([*enumerate(self._optimizers)])
            for p in optimizer_parameters(optimizer)
        }
        # The optimizer is included, because its state may be averaged.
        self.entries = [
            _described(name, p, stepped.get(p, "in no optimizer") if p.requires_grad else "frozen")
            for p, name in self.known.names.items()
        ]
        self.entries += [
            _described(name, buffer, "kept equal" if name in self.kept_equal else "buffer")
            for buffer, name in self.buffers.names.items()
        ]

    def digest(self, *, with_found: bool) -> int:
        """Digest of the entries, for comparisons of ranks, perhaps with what was found."""
        # Not by hash(), which differs between processes.
        text = json.dumps(self.sent_entries() if with_found else self.entries)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES], "big")

    def sent_entries(self) -> list[list[str]]:
        """Entries, those of new buffers, and names of written parameters, for :meth:`unite`."""
        written = [name for tensor, name in self.found.items() if isinstance(tensor, Parameter)]
        new = {t: name for t, name in self.found.items() if not isinstance(t, Parameter)}
        # Which have a mean depends on their values, and must not differ between ranks.
        kept = without_mean(new)
        entries = [
            _described(n, t, f"new buffer{' kept equal' * (n in kept)}") for t, n in new.items()
        ]
        return [[*self.entries, *entries], written]

    def unite(self, of_ranks: Sequence[Sequence[list[str]]]) -> str | None:
        """Find the frozen parameters that any rank has written, from the entries of all ranks.

        A hook may write to them on some ranks only, or to some by a value that they already have.

        Returns:
            A message about other differences, or None if there are none.

        """
        names = {name for _, written in of_ranks for name in written}
        buffers = {t: n for t, n in self.found.items() if not isinstance(t, Parameter)}
        self.found = {p: n for p, n in self.known.names.items() if n in names} | buffers
        return list_difference([entries for entries, _ in of_ranks])

    def admit_found(self) -> list[Tensor]:
        """Synchronise the found tensors as buffers from now on. Returns them."""
        found, self.found = self.found, {}
        new = {t: name for t, name in found.items() if not isinstance(t, Parameter)}
        self.kept_equal = {*self.kept_equal, *without_mean(new)}
        self.buffers.add(found)
        return [*found]

    def names(self, tensors: Collection[Tensor]) -> list[str]:
        """Names of the trained parameters among ``tensors``."""
        trained = self.parameters.intersection(tensors)
        return [name for parameter, name in self.known.names.items() if parameter in trained]

    def admit(self, present: Collection[Parameter]) -> bool:
        """Add those of ``present`` that have become trainable. Returns whether there are any."""
        new = {p for p in present if p.requires_grad} - self.parameters
        self.add(new)
        for parameter in new:  # which may have been written before
            self.buffers.names.pop(parameter, None)
        return bool(new)

    def add(self, trained: Collection[Parameter]) -> None:
        """Synchronise these parameters, which are or were trainable, as well."""
        self.parameters |= {*trained}
        self._untrained = [p for p in self._untrained if p not in self.parameters]

    def unfrozen(self) -> dict[str, Parameter]:
        """Parameters that have become trainable, and are not synchronised, by name."""
        return {self.known.names[p]: p for p in self._untrained if p.requires_grad}

    def require_admitted(self) -> None:
        """Behind a step, check that it has changed only parameters that are synchronised.

        Raises:
            RuntimeError: one was unfrozen within the step, so ranks have stepped it differently.

        """
        new = [name for name, p in self.unfrozen().items() if p.grad is not None]
        if new:
            raise RuntimeError(
                f"{len(new)} parameters were unfrozen within a step, among them {min(new)!r}, so "
                "their gradients were not averaged, and ranks have changed them differently: "
                "unfreeze in on_train_epoch_start or on_train_batch_start instead of training_step"
            )

    def members(self) -> list[Members]:
        """Tensors of each optimizer's block, which have every parameter and buffer exactly once.

        A parameter belongs to the first optimizer that contains it. Buffers, and trained parameters
        without an optimizer, belong to the first optimizer. Tied weights count once. The order is
        that of the module, so it is the same on all ranks.
        """
        # A second block of a shared parameter would average it twice.
        owners: dict[Parameter, int] = {}
        for index, optimizer in enumerate(self._optimizers):
            for parameter in optimizer_parameters(optimizer):
                owners.setdefault(parameter, index)
        members = [Members() for _ in self._optimizers]
        for parameter in self._module.parameters():
            # Not by requires_grad, which modules with several optimizers change during training.
            if parameter in self.parameters:
                members[owners.get(parameter, 0)].parameters.append(parameter)
        for buffer, name in self.buffers.names.items() if members else ():
            averaged = is_averaged(buffer) and name not in self.kept_equal
            (members[0].float_buffers if averaged else members[0].other_buffers).append(buffer)
        return members


def _described(name: str, tensor: Tensor, role: str) -> str:
    return f"{name} {tuple(tensor.shape)} {tensor.dtype} {role}"


def _bits(tensors: Iterable[Tensor]) -> list[int]:
    return bit_sums([local_tensor(tensor) for tensor in tensors])
