"""Tests of batches of lines: all lines once, equally many batches on every rank, padding."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.ocr.batching import LineBatchSampler
from examples.ocr.line import collate

WIDTHS = st.lists(st.integers(1, 2000), min_size=1, max_size=150)


def _samplers(
    widths: list[int], world_size: int, batch_lines: int = 4, shuffle: bool = True, seed: int = 3
) -> list[LineBatchSampler]:
    return [
        LineBatchSampler(
            widths,
            batch_lines=batch_lines,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            seed=seed,
        )
        for rank in range(world_size)
    ]


def _epoch(samplers: list[LineBatchSampler], epoch: int) -> list[list[tuple[int, ...]]]:
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [[draw.positions for draw in sampler] for sampler in samplers]


@given(WIDTHS, st.sampled_from([1, 2, 4]), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_every_line_once_and_as_many_batches_on_every_rank(
    widths: list[int], world_size: int, batch_lines: int, epoch: int, shuffle: bool
) -> None:
    samplers = _samplers(widths, world_size, batch_lines, shuffle)
    batches = _epoch(samplers, epoch)
    assert {len(of_rank) for of_rank in batches} == {len(samplers[0])}
    sizes = [len(batch) for of_rank in batches for batch in of_rank]
    assert max(sizes) <= batch_lines
    assert max(sizes) - min(sizes) <= 1
    seen = Counter(p for of_rank in batches for batch in of_rank for p in batch)
    assert set(seen) == set(range(len(widths)))
    repeated = samplers[0].repeated
    assert sum(seen.values()) == len(widths) + repeated
    # Lines are repeated only if single lines cannot be divided evenly.
    assert repeated < world_size
    assert repeated == 0 or max(sizes) == 1


def test_collate_inverts_images_and_pads_them() -> None:
    narrow = np.array([[255, 0], [51, 255]], np.uint8)
    wide = np.full((2, 4), 255, np.uint8)
    batch = collate([narrow, wide], [[7], [1, 2, 3]], (5, 9))
    assert batch.images.shape == (2, 1, 2, 4)
    assert batch.images.dtype == torch.float32
    torch.testing.assert_close(
        batch.images[0, 0], torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.8, 0.0, 0.0, 0.0]])
    )
    assert not batch.images[1].any()
    assert batch.widths.tolist() == [2, 4]
    assert batch.targets.tolist() == [[7, 0, 0], [1, 2, 3]]
    assert batch.target_lengths.tolist() == [1, 3]
    assert batch.index.tolist() == [5, 9]
    assert batch.targets.dtype == batch.index.dtype == batch.widths.dtype == torch.int64
