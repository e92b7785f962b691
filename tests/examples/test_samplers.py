"""Tests of the samplers of all examples: each item once, equally many batches on every rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.acoustic.batching import FrameBatchSampler
from examples.ocr.lines import LineBatchSampler
from examples.rank_batches import EvenSampler

# By example: a sampler of items of these sizes, with at most `most` items or frames in a batch.
SAMPLERS: dict[str, Callable[..., Any]] = {
    "acoustic": lambda sizes, most, **rest: FrameBatchSampler(sizes, batch_frames=most, **rest),
    "ocr": lambda sizes, most, **rest: LineBatchSampler(sizes, batch_lines=most, **rest),
    "image": lambda sizes, most, **rest: EvenSampler(len(sizes), batch_items=most, **rest),
    "language": lambda sizes, most, **rest: EvenSampler(
        len(sizes), batch_items=most, whole=rest["shuffle"], **rest
    ),
}


@pytest.mark.parametrize("example", SAMPLERS)
@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=150),
    most=st.integers(1, 20),
    world_size=st.integers(1, 9),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
)
def test_every_item_is_in_one_batch_and_ranks_have_as_many(
    example: str, sizes: list[int], most: int, world_size: int, epoch: int, shuffle: bool
) -> None:
    """That of speech uses items twice if there are too few. The others refuse them."""
    settings: dict[str, Any] = {"world_size": world_size, "shuffle": shuffle, "seed": 3}
    if example == "acoustic":
        most *= 75
    try:
        samplers = [SAMPLERS[example](sizes, most, rank=r, **settings) for r in range(world_size)]
    except ValueError as error:
        steps = -(-len(sizes) // (most * world_size))
        assert "take " in str(error) and example != "acoustic"
        assert len(sizes) < max(steps, most * shuffle) * world_size
        return
    for sampler in samplers:
        sampler.set_epoch(epoch)
    by_rank = [[getattr(draw, "positions", draw) for draw in sampler] for sampler in samplers]
    assert {len(of_rank) for of_rank in by_rank} == {len(samplers[0])}
    batches = [batch for of_rank in by_rank for batch in of_rank]
    seen = Counter(item for batch in batches for item in batch)
    left_out = 0
    if example == "language" and shuffle:  # less than a step
        left_out = len(sizes) % (most * world_size)
    assert set(seen) <= set(range(len(sizes))) and len(seen) == len(sizes) - left_out
    repeated = getattr(samplers[0], "repeated", 0)
    assert sum(seen.values()) == len(seen) + repeated
    # Items are repeated only if single ones cannot be divided evenly.
    assert repeated < world_size and (not repeated or max(map(len, batches)) == 1)
    for batch in batches:
        of_batch = len(batch) * max(sizes[item] for item in batch) if example == "acoustic" else 0
        assert max(len(batch), of_batch) <= most or len(batch) == 1
