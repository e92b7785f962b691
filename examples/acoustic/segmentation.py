"""Senones of frames from phone intervals, and from a uniform segmentation (flat start)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from examples.acoustic.lexicon import Lexicon
from examples.acoustic.senones import SILENCE, SenoneMap


class PhoneInterval(NamedTuple):
    """A phone from ``start_s`` to ``end_s``, in the word at position ``word``, or in none."""

    phone: str
    start_s: float
    end_s: float
    word: int | None


def senones_at(
    times_s: np.ndarray, intervals: Sequence[PhoneInterval], senones: SenoneMap
) -> Tensor:
    """Return the senone at each time. The states of a phone divide its interval evenly.

    Args:
        times_s: (T,) times in seconds.
        intervals: phone intervals in order, without gaps. Times before the first interval or after
            the last one belong to it.
        senones: numbering of the senones.

    Returns:
        (T,) int64, senones.
    """
    starts = np.array([interval.start_s for interval in intervals])
    ends = np.array([interval.end_s for interval in intervals])
    first = np.array([senones.of(interval.phone)[0] for interval in intervals])
    at = np.clip(np.searchsorted(starts, times_s, side="right") - 1, 0, None)
    fraction = (times_s - starts[at]) / np.maximum(ends[at] - starts[at], 1e-9)
    states = senones.states_per_phone
    return torch.from_numpy(first[at] + np.clip((fraction * states).astype(int), 0, states - 1))


def uniform_segmentation(
    words: Sequence[str],
    lexicon: Lexicon,
    senones: SenoneMap,
    frames: int,
    silence_frames: int = 0,
) -> Tensor:
    """Divide the frames of an utterance evenly among the states of its words (flat start).

    Use it at the frame rate of the recording (100 frames per second), at which there are more
    frames than states. With fewer frames than states, some states have no frame.

    Args:
        words: transcript of the utterance.
        lexicon: pronunciations, of which the first variant of each word is used.
        senones: numbering of the senones.
        frames: number of frames of the utterance.
        silence_frames: number of frames of silence at each end, but at most a quarter of the
            utterance.

    Returns:
        (frames,) int64, senones.

    Raises:
        ValueError: there is no frame.
        KeyError: a word has no pronunciation.
    """
    if frames < 1:
        raise ValueError(f"an utterance needs at least 1 frame, got {frames}")
    silence = min(silence_frames, frames // 4)
    phones = [phone for word in words for phone in lexicon.pronunciations(word)[0]]
    if not phones:
        silence, phones = 0, [SILENCE]
    states = torch.tensor([state for phone in phones for state in senones.of(phone)])
    speech = frames - 2 * silence
    middle = states[torch.arange(speech) * len(states) // speech]
    silence_states = torch.tensor(senones.of(SILENCE))
    end = silence_states[torch.arange(silence) * len(silence_states) // max(silence, 1)]
    return torch.cat([end, middle, end])
