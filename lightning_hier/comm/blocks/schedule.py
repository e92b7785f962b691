"""When the fragments of a model are sent and applied in a block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
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
        return DueFragments(self._applies.get(step), self._sends.get(step))

    @cached_property
    def _applies(self) -> dict[int, int]:
        """Fragments by the step at which they are applied."""
        return {self.block_size * (i + 1) // self.fragments: i for i in range(self.fragments)}

    @cached_property
    def _sends(self) -> dict[int, int]:
        """Fragments by the step at which they are sent."""
        # A send in the block before is at a step of 0 or less.
        return {(end - self.delay - 1) % self.block_size + 1: i for end, i in self._applies.items()}

    def order_after(self, step: int) -> list[int]:
        """All fragments, in the order in which they are applied after this step of a block."""
        at = {fragment: step for step, fragment in self._applies.items()}
        return sorted(at, key=lambda fragment: (at[fragment] - step - 1) % self.block_size)

    def end_block(self, count: StepCount) -> None:
        """Count the block of ``count`` if all its steps have been counted, and start the next."""
        # Above the block size if a run resumes with a smaller block_size.
        if count.in_block >= self.block_size:
            count.in_block = 0
            count.blocks += 1


class BlockSchedule:
    """Schedule of the blocks of one optimizer, whose lengths a rule may compute.

    Args:
        config: settings.
        optimizer: optimizer of the blocks, whose learning rate the rule reads.
        models: averaged models. A single model is not averaged, so it has nothing in flight.

    Attributes:
        current: schedule of the current block.

    """

    def __init__(self, config: BlockSync, optimizer: Optimizer, *, models: int) -> None:
        self._config = config
        self._optimizer = optimizer
        self._delays = models > 1
        self.current = self._of_size(config.steps)

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
            if count.block_size != self.current.block_size:
                self.current = self._of_size(count.block_size)
        return self.current.due(count.in_block)

    def _of_size(self, block_size: int) -> Schedule:
        delay = self._config.delay(block_size) if self._delays else 0
        return Schedule(block_size, self._config.fragments, delay)
