"""A repeated synchronisation is recorded once, and a failed one changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import lightning_hier as lh
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.block_synchroniser import BlockSynchroniser
from lightning_hier.comm.communicators import AcrossRoute, Communicators
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.comm.traffic import Traffic
from lightning_hier.comm.worker import Worker
from tests.ranks import run_ranks

ATTEMPTS = 3


class Repeated:
    """Membership in which the first attempts of every synchronisation fail in another group.

    Args:
        counts: whether the last attempt counts. Otherwise it fails as well.

    """

    def __init__(self, *, counts: bool) -> None:
        self.counts = counts
        self.begun = False

    def begin(self, name: str, attempt: Callable[[], None]) -> None:
        attempt()
        self.begun = True

    def fail(self, error: PeerError) -> None:
        self.begun = False

    def synchronise(
        self,
        name: str,
        attempt: Callable[[], None],
        complete: Callable[[], None],
        undo: Callable[[], None],
    ) -> None:
        for _ in range(ATTEMPTS - 1):
            if not self.begun:
                attempt()
            self.begun = False
            complete()
            undo()
        attempt()
        complete()
        if not self.counts:
            raise PeerError("the Lighthouse was lost before the vote")


def _synchroniser(
    membership: Repeated, optimizer: torch.optim.Optimizer, module: Any, sync: BlockSync
) -> Any:
    communicators = Communicators.build(
        RankLayout.two_tiers(1, 2),
        device=torch.device("cpu"),
        timeout=timedelta(seconds=60),
        traffic=Traffic(),
    )
    communicators.route = AcrossRoute(communicators.across, None, 2)
    worker = Worker()
    worker.count_optimizers(1)
    return BlockSynchroniser(
        module,
        [optimizer],
        sync,
        communicators=communicators,
        worker=worker,
        membership=membership,
    )


def _step(counts: bool) -> tuple[tuple[int, int], bool, bool]:
    """Train one block. Returns steps in the block, and what has changed or is in flight."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    module = nn.Linear(600, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    sync = lh.DiLoCo(block_size=1, across_dtype="int8")
    synchroniser = _synchroniser(Repeated(counts=counts), optimizer, module, sync)
    synchroniser.before_step()
    with torch.no_grad():
        module.weight.mul_(2.0)
    before = [p.detach().clone() for p in module.parameters()]
    try:
        synchroniser.after_step(0)
    except PeerError:
        assert not counts
    pairs = zip(module.parameters(), before, strict=True)
    changed = any(not torch.equal(p.detach(), b) for p, b in pairs)
    (block,) = synchroniser.blocks
    count = synchroniser.worker.steps[0]
    return (count.in_block, count.blocks), changed, block._fragments[0].has_update


def test_a_repeated_synchronisation_counts_once_and_one_that_fails_changes_nothing() -> None:
    assert run_ranks(_step, 2, True) == [((0, 1), True, False)] * 2
    assert run_ranks(_step, 2, False) == [((1, 0), False, False)] * 2


def _unfreeze_in_flight() -> list[float]:
    """Train a block of three steps, and unfreeze the bias after its update was sent."""
    dist.init_process_group("gloo")
    module = nn.Linear(2, 1)
    nn.init.zeros_(module.weight)
    module.bias.requires_grad_(False)
    optimizer = torch.optim.SGD([module.weight], lr=0.1)
    sync = lh.DiLoCo(block_size=3, overlap=1, outer_lr=1.0, outer_momentum=0.0)
    synchroniser = _synchroniser(Repeated(counts=True), optimizer, module, sync)
    for step in range(3):
        synchroniser.before_step()
        if step == 2:
            module.bias.requires_grad_(True)
            synchroniser.admit_trainable({*module.parameters()})
        with torch.no_grad():
            module.weight.add_(2.0 * dist.get_rank())
        synchroniser.after_step(0)
    return module.weight.flatten().tolist()


def test_a_parameter_that_is_unfrozen_in_flight_loses_no_steps() -> None:
    """The exchange is undone, with all steps, although the block has more parameters since."""
    assert run_ranks(_unfreeze_in_flight, 2) == [[3.0, 3.0]] * 2
