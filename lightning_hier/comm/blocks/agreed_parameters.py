"""What ranks must agree on about parameters before models are exchanged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import torch
from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.blocks.health_report import HealthReport, OutOfStepError, span
from lightning_hier.comm.blocks.members import optimizer_parameters
from lightning_hier.comm.blocks.trained import TrainedTensors
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators

# Whole numbers up to 2**53 survive in the double precision of the health report.
_DIGEST_BYTES = 6
_MOST_NAMES = 5

Entries = Mapping[str, str]


class AgreedParameters:
    """Which parameters a rank synchronises. Ranks exchange a digest in every health report.

    Args:
        module: that is trained.
        trained: what of it is synchronised.
        optimizers: each has its own block.
        communicators: channels of this rank.

    Attributes:
        digest: of names, shapes, dtypes and optimizers of the synchronised parameters.

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
        """Remember the present parameters of each optimizer's block. Communicates nothing."""
        names = {own: name for name, own in self._module.named_parameters()}
        self._entries = {}
        for index, members in enumerate(self._trained.members()):
            # What an optimizer holds has state that may travel along.
            held = set(optimizer_parameters(self._optimizers[index]))
            for own in members.parameters:
                holder = f"optimizer {index}" if own in held else "no optimizer"
                self._entries[names[own]] = f"{tuple(own.shape)} {own.dtype} in {holder}"
        text = json.dumps(sorted(self._entries.items()))
        found = hashlib.sha256(text.encode()).digest()
        self.digest = int.from_bytes(found[:_DIGEST_BYTES], "big")

    def admit(self, channel: Channel) -> tuple[bool, bool]:
        """Take in parameters that have become trainable.

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

    def require(self, statuses: Sequence[HealthReport]) -> None:
        """Check what all ranks have reported. A collective of the world where digests differ.

        Raises:
            OutOfStepError: on every rank, if ranks synchronise different parameters.

        """
        digests = [status.digest for status in statuses]
        if len(set(digests)) == 1:
            return
        rank = self._communicators.world.position
        # One rank of those with the same digest speaks for all of them.
        own = self._entries if digests.index(digests[rank]) == rank else None
        told = gather_json(own, self._communicators.device)
        raise OutOfStepError(_difference([told[digests.index(digest)] for digest in digests]))


def _difference(entries: Sequence[Entries]) -> str:
    names = dict.fromkeys(name for own in entries for name in own)
    said = []
    for name in names:
        ranks: dict[str | None, list[int]] = {}
        for rank, own in enumerate(entries):
            ranks.setdefault(own.get(name), []).append(rank)
        if len(ranks) > 1:
            parts = (f"{kind or 'not at all'} on rank {span(on)}" for kind, on in ranks.items())
            said.append(f"{name!r} ({'; '.join(parts)})")
    more = f" and {len(said) - _MOST_NAMES} more" if len(said) > _MOST_NAMES else ""
    return (
        f"the ranks train different parameters: {', '.join(said[:_MOST_NAMES])}{more}. Unfreeze "
        "the same parameters at the same step on all ranks, and add them to the same optimizer."
    )
