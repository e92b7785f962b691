"""Parameters are the servers': what hooks write into them would not last, so it is an error."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.algorithms.fingerprint import fingerprints
from lightning_hier.parameter_server.user_optimizer import trainable


class ServedParameters:
    """Finds what has been written into parameters between a look at the model and the next batch.

    Bits are compared by fingerprints, since a write through ``.data`` moves no counter.

    Args:
        module: that is trained.
        optimizers: of it; servers have what is trainable of their parameters.

    """

    def __init__(self, module: Module, optimizers: Sequence[Optimizer]) -> None:
        self._module = module
        self._parameters = [own for optimizer in optimizers for own in trainable(optimizer)]
        self._noted: list[int] | None = None

    def note(self) -> None:
        """Remember the present values, which are those of the servers."""
        self._noted = fingerprints(self._parameters)

    def forget(self) -> None:
        """Let who will write."""
        self._noted = None

    def check(self) -> None:
        """Hold the present values against those that were noted, if any, and forget these.

        Raises:
            RuntimeError: some have changed; names them.

        """
        noted, self._noted = self._noted, None
        if noted is None:
            return
        pairs = zip(self._parameters, noted, fingerprints(self._parameters), strict=True)
        written = {own for own, before, after in pairs if before != after}
        if not written:
            return
        named = [name for name, own in self._module.named_parameters() if own in written]
        raise RuntimeError(
            f"parameters were written to outside of training steps ({', '.join(named)}): they are "
            "on parameter servers, which know nothing of it and would overwrite it at the next "
            "step. Write them before training, in setup or configure_model."
        )
