"""Tests of features: subsampling, filter bank, normalisation and segmentation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.acoustic.features import FILTERS, log_filter_bank
from examples.acoustic.lexicon import Lexicon
from examples.acoustic.normalisation import Normalisation
from examples.acoustic.segmentation import uniform_segmentation
from examples.acoustic.senones import SenoneMap
from examples.acoustic.stacking import Stacking

SENONES = SenoneMap(("sil", "a", "b"))
LEXICON = Lexicon.from_dict({"ab": [("a", "b")], "b": [("b",), ("a",)]})


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 5))
def test_phases_interleave_to_the_rate_of_the_recording(
    frames: int, stack: int, subsample: int
) -> None:
    stacking = Stacking(stack, subsample)
    original = torch.arange(float(frames))[:, None]
    middle = (stack - 1) // 2
    outputs = [stacking.features(original, phase)[:, middle] for phase in range(subsample)]
    assert torch.equal(stacking.interleave(outputs), original[:, 0])
    for phase in range(subsample):
        targets = stacking.targets(torch.arange(frames), phase)
        assert torch.equal(targets.float(), outputs[phase])


def test_filter_bank_has_a_frame_for_each_10_ms_and_finds_the_tone() -> None:
    time = torch.arange(16_000) / 16_000
    low = log_filter_bank(torch.sin(2 * torch.pi * 300 * time))
    high = log_filter_bank(torch.sin(2 * torch.pi * 4000 * time))
    assert low.shape == high.shape == (100, FILTERS)
    assert int(low.mean(0).argmax()) < FILTERS // 4 < FILTERS // 2 < int(high.mean(0).argmax())


def test_normalisation_gives_mean_0_and_deviation_1() -> None:
    parts = [torch.randn(n, 3) * 5 + 100 for n in (50, 80)]
    parts[0][:, 2] = parts[1][:, 2] = 7.0
    fit = Normalisation.fit(parts)
    normal = torch.cat([fit.apply(part) for part in parts])
    torch.testing.assert_close(normal.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        normal.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4, rtol=0
    )
    with pytest.raises(ValueError, match="at least one frame"):
        Normalisation.fit([])


@given(st.lists(st.sampled_from(["ab", "b"]), max_size=5), st.integers(1, 80), st.integers(0, 30))
def test_uniform_segmentation_has_the_words_in_order(
    words: list[str], frames: int, silence: int
) -> None:
    senones = uniform_segmentation(words, LEXICON, SENONES, frames, silence)
    assert senones.shape == (frames,)
    phones = [phone for word in words for phone in LEXICON.pronunciations(word)[0]]
    states = [state for phone in phones for state in SENONES.of(phone)]
    runs = torch.unique_consecutive(senones).tolist()
    spoken = [senone for senone in runs if senone not in SENONES.of("sil")]
    if not words:
        assert set(runs) <= set(SENONES.of("sil"))
    elif frames >= 2 * len(states):
        assert _without_repeats(spoken) == _without_repeats(states)
    assert (senones < len(SENONES)).all()


def _without_repeats(items: list[int]) -> list[int]:
    return torch.unique_consecutive(torch.tensor(items)).tolist()
