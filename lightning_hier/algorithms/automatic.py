"""Values of ``"auto"``, from the length of a run and the number of models.

Each rule is simple enough for one line of the log and of the documentation. A run of unknown
length, such as one on an iterable dataset without ``max_steps``, is infinite, except in
:func:`auto_warmup_steps`: a warm-up of the longest run would be the whole of a short one.
"""

from __future__ import annotations

import math
from typing import Literal

Auto = Literal["auto"]

# Measured in docs/reports/defaults.md; docs/choosing.md has the table.
_LONGEST_BLOCK = 50
_SHORTEST_BLOCK = 4
_LONGEST_WARMUP = 500
_WARMUP_SHARE = 10
_LEAST_BLOCKS = 20
_LEAST_DENSITY = 0.01
_LARGEST_DENSITY = 0.1
_STEPS_OF_AN_ELEMENT = 30.0

MOMENTS_EVERY = 4
"""Blocks between two exchanges of the moments of BMUF-Adam."""


def auto_block_size(run_steps: float, blocks: int) -> int:
    """Steps of a block, for so many blocks in a run: from 4 to 50, and 1 in runs of 20 steps.

    Args:
        run_steps: steps of one optimizer in the run, or infinity.
        blocks: number of blocks, if they are long enough.

    """
    # A run of unknown length (infinity) has the longest blocks.
    shortest = min(run_steps / _LEAST_BLOCKS, _SHORTEST_BLOCK)
    return max(1, math.floor(min(max(run_steps / blocks, shortest), _LONGEST_BLOCK)))


def momentum_of_run(momentum: float, outer_lr: float, blocks: float, least_blocks: int) -> float:
    """Momentum between blocks, less than for the number of models where a run has few blocks.

    A momentum of eta builds up over 1 / (1 - eta) blocks, which are at most a share of
    ``1 / least_blocks`` of the run: eta is at most ``1 - least_blocks / blocks``. The limit is not
    below ``1 - outer_lr``, with which the update of a block counts once.

    Args:
        momentum: momentum for the number of models.
        outer_lr: learning rate of the outer step.
        blocks: number of blocks of the run, or infinity.
        least_blocks: see above.

    """
    return min(momentum, max(1.0 - least_blocks / max(blocks, 1.0), 1.0 - outer_lr, 0.0))


def auto_warmup_steps(run_steps: float) -> int:
    """Steps that average gradients over all ranks: a tenth of the run, at most 500.

    A run of unknown length has the warm-up of one with 500 steps: 50, as many as a block. If it
    ends after 100 steps or more, it has synchronised a whole block.

    Args:
        run_steps: steps of one optimizer in the run, or infinity.

    """
    if run_steps == math.inf:
        return _LONGEST_BLOCK
    return math.floor(min(run_steps / _WARMUP_SHARE, _LONGEST_WARMUP))


def auto_density(run_steps: float) -> float:
    """Fraction of the elements that GTC sends: 30 / run_steps, from 1% to 10%.

    An element is sent about every ``1 / density`` steps, hence about 30 times or more in a run.

    Args:
        run_steps: steps of one optimizer in the run, or infinity.

    """
    # A run of unknown length (infinity) gets the lowest density.
    density = _STEPS_OF_AN_ELEMENT / max(1.0, run_steps)
    return min(_LARGEST_DENSITY, max(_LEAST_DENSITY, density))
