"""When the fragments of a model are sent and applied in a block."""

from __future__ import annotations

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


NOTHING_DUE = DueFragments(None, None)


class BlockSchedule:
    """Schedule of the blocks of one optimizer, whose lengths a rule may compute.

    In a block of tau steps, fragment i of n is applied at step ``tau (i + 1) / n``, rounded down,
    and sent ``delay`` steps before, which may be in the block before. With a delay of tau, an
    update is sent at the step at which the previous one of its fragment is applied.

    Args:
        config: settings.
        optimizer: optimizer of the blocks, whose learning rate the rule reads.
        models: averaged models. A single model is not averaged, so it has nothing in flight.

    Attributes:
        delay: steps between sending and applying, at most the steps of the current block.

    """

    def __init__(self, config: BlockSync, optimizer: Optimizer, *, models: int) -> None:
        self._config = config
        self._optimizer = optimizer
        self._delays = models > 1
        self._plan(config.steps)

    def _plan(self, block_size: int) -> None:
        self._block_size, fragments = block_size, self._config.fragments
        self.delay = self._config.delay(block_size) if self._delays else 0
        # Fragments by the step of a block.
        self._applies = {block_size * (i + 1) // fragments: i for i in range(fragments)}
        # A send in the block before is at a step of 0 or less.
        self._sends = {
            (end - self.delay - 1) % block_size + 1: i for end, i in self._applies.items()
        }

    def due(self, count: StepCount) -> DueFragments:
        """Fragments that are due after the last step of ``count``, which keeps the block's length.

        A rule computes the length after the first step of a block.
        """
        if self._config.block_rule is None:
            count.block_size = 0  # a run with a rule may have been resumed without it
        else:
            # 0 in the middle of a block that a run without a rule has started.
            if count.in_block == 1 or not count.block_size:
                rates = [float(group["lr"]) for group in self._optimizer.param_groups]
                # Kept in the count, because the learning rate may change within the block.
                least = self._config.steps
                count.block_size = self._config.block_rule.block_size(max(rates), least)
            if count.block_size != self._block_size:
                self._plan(count.block_size)
        # Above the block size if a run resumes with a smaller one: the block then ends.
        step = min(count.in_block, self._block_size)
        return DueFragments(self._applies.get(step), self._sends.get(step))

    def order_after(self, count: StepCount) -> list[int]:
        """All fragments, in the order in which they are applied after the last step."""
        at = {fragment: step for step, fragment in self._applies.items()}
        return sorted(at, key=lambda i: (at[i] - count.in_block - 1) % self._block_size)

    def end_block(self, count: StepCount) -> None:
        """Count the block of ``count`` if all its steps have been counted, and start the next."""
        if count.in_block >= self._block_size:
            count.in_block = 0
            count.blocks += 1
