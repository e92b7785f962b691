"""A plain loop in a group that comes and goes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from lightning_hier.algorithms.arguments import counted
from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.random_state import random_state, set_random_state
from lightning_hier.loop.engine import Engine
from lightning_hier.loop.groups import Groups
from lightning_hier.loop.settings import described
from lightning_hier.loop.state import LoopState
from lightning_hier.membership.group_exchange import GroupExchange
from lightning_hier.membership.quorums import Quorums
from lightning_hier.membership.state_transfer import StateTransfer
from lightning_hier.membership.torchft import TorchFT, check_membership

_log = logging.getLogger("lightning_hier")


class ElasticLoop:
    """Connects the loop of a job with the groups that are present.

    A group that synchronises writes its state to files, which one that joins reads. Methods are
    collectives of the job unless stated otherwise.

    Args:
        settings: settings of the groups.
        groups: the ranks of the job, which are one group.
        required: settings that must be equal in all groups.

    Attributes:
        exchange: synchronisations with the groups that are present.
        joined: whether this group has taken the state of another at its start.

    """

    def __init__(self, settings: TorchFT, groups: Groups, required: Mapping[str, Any]) -> None:
        quorums = Quorums(
            settings,
            groups.communicators,
            limit=groups.limit,
            log=_log_once,
            position=lambda: (0, 0),  # the data belongs to the loop
            required={**required, "device": groups.device.type},
        )
        self.exchange = GroupExchange(quorums, groups.communicators)
        self._transfer = StateTransfer(self.exchange, host_of=groups.host_of, rank=dist.get_rank())
        self.joined = False

    def start(self, engine: Engine, state: LoopState) -> None:
        """Wait for the groups that start together, or take the state of one that trains."""
        module = engine.module
        # Those that follow from the hosts and the steps of this job.
        self.exchange.quorums.required |= {
            **state.kinds(),
            **described({"block_sync": engine.settings.block_sync}),
            "across": engine.synchroniser.placement.across,
            "divided": state.divided,
        }
        if self.exchange.start(module):
            self.exchange.share_initial_model(module)
            engine.synchroniser.trained.note_frozen()  # they were not written by the user
            return
        device = self.exchange.device
        own = random_state(device)
        state.read(self._transfer.receive())
        set_random_state(own, device)  # groups must draw different numbers
        engine.synchroniser.forget_errors()  # those of the group that has sent the state
        self.joined = True
        with raise_everywhere(device, place="the state of another group was read"):
            pass  # all ranks have read the files
        self._transfer.remove()
        _log_once(f"Took the state after {counted(self.exchange.commits, 'synchronisation')}.")

    def refuses_state(self) -> bool:
        """Whether a state of this group is older than the one it has taken. Warns on rank 0."""
        if self.joined and dist.get_rank() == 0:
            warnings.warn(
                "the state that is loaded was not used: this group has taken a newer one from the "
                "groups that train",
                stacklevel=4,
            )
        return self.joined

    def serve(self, state: LoopState) -> None:
        """Send the state to the groups that wait for it, after the synchronisations of a step."""
        self._transfer.serve(state.write)

    def close(self) -> None:
        """Leave the groups. Does not communicate."""
        self._transfer.remove()
        self.exchange.close()


def check_elastic(
    settings: TorchFT, sync: BlockSync | None, groups: Groups, warmup_steps: int
) -> None:
    """Check the arguments of a loop whose groups come and go. Does not communicate.

    Raises:
        ValueError: they cannot be combined.

    """
    check_membership(settings, sync, warmup_steps=warmup_steps, limit=groups.limit)
    size, number = groups.communicators.layout.sizes
    if number > 1:
        raise ValueError(
            f"with membership=TorchFT(...) all ranks of a job are one group, got {number} groups "
            f"of {counted(size, 'rank')}: pass groups=Groups('world'), or leave groups out"
        )
    if groups.across is not groups.mesh.get_group("across"):
        raise ValueError(
            "membership=TorchFT(...) synchronises one module at a time: pass all optimizers of one "
            "module, and call finish() of its blocks before the next one is attached"
        )


def _log_once(text: str) -> None:
    if dist.get_rank() == 0:
        _log.info(text)
