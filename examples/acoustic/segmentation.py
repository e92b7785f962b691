"""Senones over time from intervals of phones, and without any alignment (flat start)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from examples.acoustic.lexicon import Lexicon
from examples.acoustic.senones import SILENCE, SenoneMap


class PhoneInterval(NamedTuple):
    """A phone from ``start_s`` to ``end_s``; ``word`` is its position in the sentence, or None."""

    phone: str
    start_s: float
    end_s: float
    word: int | None


def senones_at(
    times_s: np.ndarray, intervals: Sequence[PhoneInterval], senones: SenoneMap
) -> Tensor:
    """Senone at each of (T,) times; the states of a phone share its interval evenly.

    Args:
        times_s: seconds.
        intervals: without gaps, in order; the first and the last one reach to both ends.
        senones: numbering.

    Returns:
        (T,) int64.
    """
    starts = np.array([interval.start_s for interval in intervals])
    ends = np.array([interval.end_s for interval in intervals])
    first = np.array([senones.of(interval.phone)[0] for interval in intervals])
    at = np.clip(np.searchsorted(starts, times_s, side="right") - 1, 0, None)
    part = (times_s - starts[at]) / np.maximum(ends[at] - starts[at], 1e-9)
    states = senones.states_per_phone
    return torch.from_numpy(first[at] + np.clip((part * states).astype(int), 0, states - 1))


def uniform_segmentation(
    words: Sequence[str],
    lexicon: Lexicon,
    senones: SenoneMap,
    frames: int,
    silence_frames: int = 0,
) -> Tensor:
    """Flat start: the states of the words' first pronunciations share the frames evenly.

    Use it at the rate of the recording (100 frames per second), where there are more frames than
    states; with fewer frames than states some states go without a frame.

    Args:
        words: what was said.
        lexicon: pronunciations; the first variant of each word counts.
        senones: numbering.
        frames: frames of the utterance.
        silence_frames: frames of silence assumed at each end; fewer where a quarter of the
            utterance is shorter, so that the words keep at least half of it.

    Returns:
        (frames,) int64.

    Raises:
        ValueError: if there is no frame.
        KeyError: if a word has no pronunciation.
    """
    if frames < 1:
        raise ValueError(f"an utterance needs at least 1 frame, got {frames}")
    silence = min(silence_frames, frames // 4)
    phones = [phone for word in words for phone in lexicon.pronunciations(word)[0]]
    if not phones:
        silence, phones = 0, [SILENCE]
    states = torch.tensor([state for phone in phones for state in senones.of(phone)])
    spoken = frames - 2 * silence
    middle = states[torch.arange(spoken) * len(states) // spoken]
    quiet = torch.tensor(senones.of(SILENCE))
    edge = quiet[torch.arange(silence) * len(quiet) // max(silence, 1)]
    return torch.cat([edge, middle, edge])
