"""When the fragments of a model are sent and applied in a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch.optim import Optimizer

from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.worker import StepCount


class DueFragments(NamedTuple):
    """Fragments that are due after a step, at most one of each kind.

    Attributes:
        applies: fragment whose mean is applied, or None.
        sends: fragment whose local update or model is sent, or None.

    """

    applies: int | None
    sends: int | None


@dataclass(frozen=True)
class Schedule:
    """Schedule of a block of tau steps, which repeats.

    Fragment i of n is applied at step ``tau (i + 1) / n``, rounded down, and sent ``delay`` steps
    before, which may be in the block before. With a delay of tau, an update is sent at the step at
    which the previous one of its fragment is applied.

    Attributes:
        block_size: tau.
        fragments: n, at most tau.
        delay: steps between sending and applying, at most tau.

    """

    block_size: int
    fragments: int = 1
    delay: int = 0

    def due(self, step: int) -> DueFragments:
        """Fragments that are due after step ``step`` of a block, counted from 1.

        A step above ``block_size`` is the last one of the block.
        """
        step = min(step, self.block_size)
        ends = [self.block_size * (i + 1) // self.fragments for i in range(self.fragments)]
        # A send in the block before is at a step of 0 or less.
        sends = [(end - self.delay - 1) % self.block_size + 1 for end in ends]
        return DueFragments(
            ends.index(step) if step in ends else None, sends.index(step) if step in sends else None
        )

    def end_block(self, count: StepCount) -> None:
        """Count the block of ``count`` if all its steps have been counted, and start the next."""
        # Above the block size if a run resumes with a smaller block_size.
        if count.in_block >= self.block_size:
            count.in_block = 0
            count.blocks += 1


def current_schedule(
    config: BlockSync, optimizer: Optimizer, count: StepCount, *, models: int
) -> Schedule:
    """Schedule of the current block, whose length a rule computes after its first step.

    Args:
        config: settings.
        optimizer: optimizer of the block, whose learning rate the rule reads.
        count: counts of the optimizer, which keep the length of the block.
        models: averaged models. A single model is not averaged, so it has nothing in flight.

    """
    size = config.steps
    if config.block_rule is None:
        count.block_size = 0  # a run with a rule may have been resumed without it
    else:
        # 0 in the middle of a block that a run without a rule has started.
        if count.in_block == 1 or not count.block_size:
            rates = [float(group["lr"]) for group in optimizer.param_groups]
            # Kept in the count, because the learning rate may change within the block.
            count.block_size = config.block_rule.block_size(max(rates), size)
        size = count.block_size
    return Schedule(size, config.fragments, config.delay(size) if models > 1 else 0)
