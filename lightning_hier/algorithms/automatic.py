"""The settings that ``"auto"`` stands for, from the length of a run and the number of models.

Each rule is one line, so that the log and the documentation can state it. An unknown
length, as of an iterable dataset without ``max_steps``, is infinite.
"""

from __future__ import annotations

import math
from typing import Literal

Auto = Literal["auto"]

# Measured on byte-level transformers with AdamW; docs/choosing.md has the table.
_LONGEST_BLOCK = 50
_LONGEST_WARMUP = 500
_WARMUP_SHARE = 10
BLOCKS_PER_RUN = 20
_LEAST_DENSITY = 0.01
_LARGEST_DENSITY = 0.1
_STEPS_OF_AN_ELEMENT = 30.0


def auto_block_size(run_steps: float, blocks: int = BLOCKS_PER_RUN) -> int:
    """Steps of a block, from 1 to 50, so that the run has at least ``blocks`` of them.

    Args:
        run_steps: steps of one optimizer in the run, or infinity.
        blocks: the least number of blocks, if the run has as many steps.

    """
    return max(1, math.floor(min(run_steps / blocks, _LONGEST_BLOCK)))


def auto_warmup_steps(run_steps: float) -> int:
    """Steps that average gradients over all ranks: a tenth of the run, at most 500.

    Args:
        run_steps: steps of one optimizer in the run, or infinity.

    """
    return math.floor(min(run_steps / _WARMUP_SHARE, _LONGEST_WARMUP))


def auto_density(run_steps: float) -> float:
    """Share of the elements that GTC sends: 30 / run_steps, from 1% to 10%.

    An element is sent about every ``1 / density`` steps, so that over a run each is sent at least
    some 30 times.

    Args:
        run_steps: steps of one optimizer in the run, or infinity.

    """
    density = _STEPS_OF_AN_ELEMENT / max(1.0, run_steps)
    return min(_LARGEST_DENSITY, max(_LEAST_DENSITY, density))
