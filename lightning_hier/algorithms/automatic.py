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
_SHORTEST_BLOCK = 4
_LONGEST_WARMUP = 500
_WARMUP_SHARE = 10
_BLOCKS_PER_RUN = 20
_BLOCKS_PER_MODEL = 20
_LEAST_DENSITY = 0.01
_LARGEST_DENSITY = 0.1
_STEPS_OF_AN_ELEMENT = 30.0


def auto_block_size(run_steps: float, num_models: int | None = None) -> int:
    """Steps of a block: a twentieth of the run, from 1 to 50.

    Args:
        run_steps: steps of one optimizer in the run, or infinity.
        num_models: averaged models, where the block momentum needs 20 blocks for each of them.
            Blocks of fewer than 4 steps are not made for that.

    """
    longest = min(run_steps / _BLOCKS_PER_RUN, _LONGEST_BLOCK)
    if num_models is not None:
        longest = min(longest, max(run_steps / (_BLOCKS_PER_MODEL * num_models), _SHORTEST_BLOCK))
    return max(1, math.floor(longest))


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
