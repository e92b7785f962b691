"""Tests of mini-batches counted in frames: all utterances once, equally many on every rank."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.acoustic.batching import FrameBatchSampler
from examples.acoustic.utterance import PADDING_TARGET, Utterance, collate

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=120)


def _samplers(
    lengths: list[int], world_size: int, batch_frames: int, epoch: int, shuffle: bool = True
) -> list[FrameBatchSampler]:
    samplers = [
        FrameBatchSampler(
            lengths,
            batch_frames=batch_frames,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            seed=5,
        )
        for rank in range(world_size)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return samplers


@given(LENGTHS, st.integers(1, 5), st.integers(1, 1500), st.integers(0, 3), st.booleans())
def test_every_rank_gets_as_many_batches_and_no_utterance_is_lost(
    lengths: list[int], world_size: int, batch_frames: int, epoch: int, shuffle: bool
) -> None:
    samplers = _samplers(lengths, world_size, batch_frames, epoch, shuffle)
    per_rank = [list(sampler) for sampler in samplers]
    assert [len(batches) for batches in per_rank] == [len(s) for s in samplers]
    assert len({len(batches) for batches in per_rank}) == 1

    batches = [batch for batches in per_rank for batch in batches]
    positions = [position for batch in batches for position in batch]
    assert set(positions) == set(range(len(lengths)))
    assert len(positions) - len(lengths) == samplers[0].repeated
    if samplers[0].repeated:
        assert samplers[0].repeated < world_size
        assert all(len(batch) == 1 for batch in batches)

    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= batch_frames


def test_collate_pads_with_zeros_and_ignored_targets() -> None:
    utterances = [
        Utterance(
            key=str(n),
            speaker="s",
            features=torch.full((n, 2), float(n)),
            words=(),
            senones=torch.arange(n) if n != 2 else None,
        )
        for n in (3, 2, 1)
    ]
    batch = collate(utterances, [7, 8, 9])
    assert batch.features.shape == (3, 3, 2)
    assert batch.lengths.tolist() == [3, 2, 1]
    assert batch.index.tolist() == [7, 8, 9]
    assert batch.features[2, 1:].abs().sum() == 0
    assert batch.targets[0].tolist() == [0, 1, 2]
    assert batch.targets[1].tolist() == [PADDING_TARGET] * 3
    with pytest.raises(ValueError, match="at least one utterance"):
        collate([], [])
