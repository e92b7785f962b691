"""Parameters that all ranks must synchronise alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import torch
from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.blocks.health import span
from lightning_hier.comm.blocks.trained import TrainedTensors, optimizer_parameters
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators

# Whole numbers up to 2**53 are exact in the double precision of health reports.
_DIGEST_BYTES = 6
_MOST_NAMES = 5

Entries = Mapping[str, str]


class OutOfStepError(RuntimeError):
    """Ranks came to different synchronisations, or synchronise different parameters."""


class AgreedParameters:
    """Digest of the parameters that this rank synchronises, part of every health report.

    Args:
        module: being trained.
        trained: its synchronised tensors.
        optimizers: each has its own block.
        communicators: channels of this rank.

    Attributes:
        digest: of names, shapes, dtypes and optimizers of the parameters.

    """

    def __init__(
        self,
        module: Module,
        trained: TrainedTensors,
        optimizers: Sequence[Optimizer],
        communicators: Communicators,
    ) -> None:
        self._module = module
        self._trained = trained
        self._optimizers = optimizers
        self._communicators = communicators
        self._entries: dict[str, str] = {}
        self.digest = 0
        self.note()

    def note(self) -> None:
        """Compute the digest of the present parameters. Communicates nothing."""
        names = {own: name for name, own in self._module.named_parameters()}
        self._entries = {}
        for index, members in enumerate(self._trained.members()):
            # Parameters of an optimizer have state that may be averaged too.
            held = set(optimizer_parameters(self._optimizers[index]))
            for own in members.parameters:
                holder = f"optimizer {index}" if own in held else "no optimizer"
                self._entries[names[own]] = f"{tuple(own.shape)} {own.dtype} in {holder}"
        text = json.dumps(sorted(self._entries.items()))
        found = hashlib.sha256(text.encode()).digest()
        self.digest = int.from_bytes(found[:_DIGEST_BYTES], "big")

    def admit(self, channel: Channel) -> tuple[bool, bool]:
        """Add parameters that have become trainable.

        A collective of the channel, as long as some have never been trainable.

        Returns:
            Whether there are new ones, and whether all ranks of the channel have the same.

        """
        if self._trained.all_admitted:
            return False, True
        new = self._trained.admit()
        if new:
            self.note()
        return new, channel.size == 1 or self._same_in(channel)

    def _same_in(self, channel: Channel) -> bool:
        own = torch.tensor([self.digest], device=self._communicators.device)
        digests = own.new_empty(channel.size)
        channel.all_gather(digests, own, "status").wait()
        return bool((digests == own).all())

    def require_same(self, digests: Sequence[int]) -> None:
        """Check the digests of all ranks. A collective of the world if they differ.

        Raises:
            OutOfStepError: on every rank, if ranks synchronise different parameters.

        """
        if len(set(digests)) == 1:
            return
        rank = self._communicators.world.position
        # Of the ranks with the same digest the first one sends its entries.
        own = self._entries if digests.index(digests[rank]) == rank else None
        entries = gather_json(own, self._communicators.device)
        raise OutOfStepError(_difference([entries[digests.index(digest)] for digest in digests]))


def _difference(entries: Sequence[Entries]) -> str:
    names = dict.fromkeys(name for own in entries for name in own)
    differences = []
    for name in names:
        ranks: dict[str | None, list[int]] = {}
        for rank, own in enumerate(entries):
            ranks.setdefault(own.get(name), []).append(rank)
        if len(ranks) > 1:
            kinds = (f"{kind or 'not at all'} on rank {span(on)}" for kind, on in ranks.items())
            differences.append(f"{name!r} ({'; '.join(kinds)})")
    omitted = len(differences) - _MOST_NAMES
    more = f" and {omitted} more" if omitted > 0 else ""
    return (
        f"the ranks train different parameters: {', '.join(differences[:_MOST_NAMES])}{more}. "
        "Unfreeze the same parameters at the same step on all ranks, and add them to the same "
        "optimizer."
    )
