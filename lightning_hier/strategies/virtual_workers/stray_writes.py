"""Finds parameters that are written to where it reaches one worker of a rank, or all together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from lightning_hier.comm.blocks.local_models import LocalModels

_RANKS = "or start a rank for each worker"


class StrayWrites:
    """Compares norms of the parameters around a round and after it.

    After a round the module holds the model of the rank's first worker, so what a batch's last
    hooks write into it would not reach the others. What is frozen is one for all, so what a worker
    writes into it in its turn would reach all of them.

    Args:
        module: that is trained.
        models: of this rank.

    """

    def __init__(self, module: Module, models: LocalModels) -> None:
        self._module = module
        self._models = models
        self._begun: Tensor | None = None
        self._left: Tensor | None = None

    def begin_round(self) -> None:
        """Look before a round."""
        self._begun = self._norms() if any(map(self._is_common, self._parameters)) else None

    def end_round(self) -> None:
        """Look after a round.

        Raises:
            ValueError: something that all workers have in common has been written in it.

        """
        several = self._models.present > 1
        self._left = self._norms() if several or self._begun is not None else None
        changed = self._changed(self._begun, self._left, self._is_common)
        if changed:
            raise ValueError(
                f"frozen parameters were written to in a step ({', '.join(changed)}), and "
                "with virtual_workers above 1 all workers of a rank have them in common: make them "
                f"buffers (register_buffer), {_RANKS}"
            )

    def end_batch(self) -> None:
        """Look after the hooks of a batch.

        Raises:
            ValueError: they have written to parameters, while workers have models of their own.

        """
        if self._models.present == 1:
            return
        changed = self._changed(self._left, self._norms(), lambda own: True)
        if changed:
            raise ValueError(
                f"parameters were written to in on_train_batch_end ({', '.join(changed)}), which "
                "with virtual_workers above 1 reaches only one worker of each rank: do it in "
                f"training_step, {_RANKS}"
            )

    @property
    def _parameters(self) -> list[Parameter]:
        return [own for own in self._module.parameters() if own.is_floating_point()]

    def _is_common(self, own: Parameter) -> bool:
        return not own.requires_grad and own not in self._models.parameters

    def _norms(self) -> Tensor:
        # Writes through `.data` move no version counter.
        norms = torch._foreach_norm([own.detach() for own in self._parameters])
        return torch.stack([norm.double() for norm in norms])

    def _changed(
        self, old: Tensor | None, new: Tensor | None, counts: Callable[[Parameter], bool]
    ) -> list[str]:
        """Names of parameters whose norms differ, of those that count."""
        if old is None or new is None:
            return []
        moved = (old.view(torch.int64) != new.view(torch.int64)).tolist()  # NaN is as NaN was
        names = {own: name for name, own in self._module.named_parameters()}
        return [
            names[own]
            for own, differs in zip(self._parameters, moved, strict=True)
            if differs and counts(own)
        ]
