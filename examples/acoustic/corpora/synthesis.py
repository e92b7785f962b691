"""Synthetic corpus: synthesised speech with exact alignments, without downloads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from examples.acoustic.corpora.espeak import Espeak, PhoneInterval, Speech
from examples.acoustic.corpora.grammar import RULES, sample_sentence
from examples.acoustic.corpora.recording import RecordedCorpus, Recording, cached_recordings
from examples.acoustic.corpus import Corpus
from examples.acoustic.features import frame_times, log_filter_bank
from examples.acoustic.fitted import Fitted
from examples.acoustic.lexicon import SILENCE, Lexicon, SenoneMap

ACCENTS = ("en-us", "en-us-nyc", "en-gb-x-rp", "en-gb-scotland", "en")
# Each voice variant is in one split only. All accents are in all splits.
VARIANTS = {
    "train": ("m1", "m2", "m3", "m4", "m6", "f1", "f2", "f3", "f5"),
    "valid": ("m5",),
    "test": ("m7", "f4"),
}
# Lowest and highest value.
_WORDS_PER_MINUTE = (130, 220)
_PITCH = (35, 65)  # on espeak's scale from 0 to 100
_SILENCE_S = (0.1, 0.3)  # at each end
_NOISE_SNR_DB = (10.0, 30.0)


@dataclass(frozen=True, kw_only=True)
class SynthesisConfig:
    """Settings of the corpus, as in :func:`build_synthetic_corpus`.

    Raises:
        ValueError: a split is empty.
    """

    sentences: int
    seed: int
    valid_fraction: float
    test_fraction: float

    def __post_init__(self) -> None:
        """Check the fractions."""
        sizes = self.split_sizes()
        if min(sizes.values()) < 1:
            raise ValueError(
                f"every split needs at least one sentence, {self.sentences} sentences with these "
                f"fractions give {sizes}; increase sentences"
            )

    def split_sizes(self) -> dict[str, int]:
        """Return the number of utterances of each split."""
        valid = round(self.sentences * self.valid_fraction)
        test = round(self.sentences * self.test_fraction)
        return {"train": self.sentences - valid - test, "valid": valid, "test": test}


def build_synthetic_corpus(
    *,
    sentences: int = 600,
    seed: int = 0,
    valid_fraction: float = 0.1,
    test_fraction: float = 0.1,
    cache_dir: str | Path | None = None,
    fitted: Fitted | None = None,
) -> Corpus:
    """Synthesise commands in many voices, with exact alignments of phones of three states.

    The same settings always produce the same corpus.

    Args:
        sentences: number of utterances of all splits, about 2.5 s each.
        seed: seed of all random choices.
        valid_fraction: fraction of the utterances in the valid split.
        test_fraction: fraction of the utterances in the test split.
        cache_dir: folder of the cache for other ranks and later runs. None: no cache.
        fitted: values of the training corpus of the model that is evaluated. None: training.
    """
    config = SynthesisConfig(
        sentences=sentences,
        seed=seed,
        valid_fraction=valid_fraction,
        test_fraction=test_fraction,
    )
    inputs = {
        "config": asdict(config),
        "voices": [ACCENTS, VARIANTS],
        "grammar": RULES,
        "espeak": version("espeakng-loader"),
    }
    recorded = cached_recordings("synthetic", inputs, cache_dir, lambda: synthesise(config))
    return recorded.finish("global", fitted)


def synthesise(config: SynthesisConfig) -> RecordedCorpus:
    """Synthesise every sentence, and compute its features and senones."""
    utterances = list(_speak_all(config))
    phones = {interval.phone for utterance in utterances for interval in utterance.phones}
    senones = SenoneMap.from_phones(phones)
    recordings = tuple(
        Recording(
            key=utterance.key,
            speaker=utterance.speaker,
            split=utterance.split,
            words=utterance.words,
            features=utterance.features,
            senones=_senones_of(utterance, senones),
        )
        for utterance in utterances
    )
    return RecordedCorpus(
        name="synthetic", recordings=recordings, senones=senones, lexicon=_lexicon(utterances)
    )


@dataclass(frozen=True, kw_only=True)
class _SyntheticUtterance:
    key: str
    speaker: str
    split: str
    words: tuple[str, ...]
    features: Tensor
    phones: tuple[PhoneInterval, ...]


def _speak_all(config: SynthesisConfig) -> Iterator[_SyntheticUtterance]:
    espeak = Espeak(config.seed)
    number = 0
    for split, size in config.split_sizes().items():
        for _ in range(size):
            draw = np.random.default_rng([config.seed, number])
            words = sample_sentence(draw)
            voice = f"{draw.choice(ACCENTS)}+{draw.choice(VARIANTS[split])}"
            speech = espeak.speak(
                words,
                voice=voice,
                words_per_minute=int(draw.integers(*_WORDS_PER_MINUTE, endpoint=True)),
                pitch=int(draw.integers(*_PITCH, endpoint=True)),
            )
            samples, phones = _add_silence_and_noise(speech, draw)
            yield _SyntheticUtterance(
                key=f"synthetic-{number:05d}",
                speaker=voice,
                split=split,
                words=words,
                features=log_filter_bank(torch.from_numpy(samples), speech.rate_hz),
                phones=phones,
            )
            number += 1


def _add_silence_and_noise(
    speech: Speech, draw: np.random.Generator
) -> tuple[np.ndarray, tuple[PhoneInterval, ...]]:
    """Return float32 samples between -1 and 1, with silence at both ends and noise, and phones."""
    before, after = (int(s * speech.rate_hz) for s in draw.uniform(*_SILENCE_S, size=2))
    samples = np.pad(speech.samples.astype(np.float32) / 32_768, (before, after))
    noise = _coloured_noise(len(samples), float(draw.uniform(0.0, 2.0)), draw)
    ratio = 10 ** (-draw.uniform(*_NOISE_SNR_DB) / 20)
    samples = samples + np.float32(np.sqrt(np.mean(samples**2)) * ratio) * noise
    shift = before / speech.rate_hz
    shifted = [p._replace(start_s=p.start_s + shift, end_s=p.end_s + shift) for p in speech.phones]
    end = len(samples) / speech.rate_hz
    first = PhoneInterval(SILENCE, 0.0, shift, None)
    last = PhoneInterval(SILENCE, shifted[-1].end_s, end, None)
    return samples.astype(np.float32), _join_silences([first, *shifted, last])


def _join_silences(phones: Iterable[PhoneInterval]) -> tuple[PhoneInterval, ...]:
    """Join adjacent intervals of silence, so that its states divide the whole silence."""
    joined: list[PhoneInterval] = []
    for phone in phones:
        if joined and phone.phone == joined[-1].phone == SILENCE:
            joined[-1] = joined[-1]._replace(end_s=phone.end_s)
        else:
            joined.append(phone)
    return tuple(joined)


def _coloured_noise(samples: int, slope: float, draw: np.random.Generator) -> np.ndarray:
    """Return Gaussian noise of power 1 and spectrum frequency ** -slope.

    Slopes of 0, 1 and 2 are white, pink and brown noise.
    """
    length = 1 << (samples - 1).bit_length()  # transforms of other lengths can be 10 times slower
    spectrum = np.fft.rfft(draw.standard_normal(length))
    spectrum *= np.maximum(np.arange(len(spectrum)), 1.0) ** (-slope / 2)
    noise = np.fft.irfft(spectrum, length)[:samples]
    return (noise / np.sqrt(np.mean(noise**2))).astype(np.float32)


def _senones_of(utterance: _SyntheticUtterance, senones: SenoneMap) -> Tensor:
    """Return the senone (T,) of each frame. The states of a phone divide its interval evenly."""
    times_s = frame_times(utterance.features.shape[0])
    starts = np.array([interval.start_s for interval in utterance.phones])
    ends = np.array([interval.end_s for interval in utterance.phones])
    first = np.array([senones.of(interval.phone)[0] for interval in utterance.phones])
    at = np.clip(np.searchsorted(starts, times_s, side="right") - 1, 0, None)
    fraction = (times_s - starts[at]) / np.maximum(ends[at] - starts[at], 1e-9)
    states = senones.states_per_phone
    return torch.from_numpy(first[at] + np.clip((fraction * states).astype(int), 0, states - 1))


def _lexicon(utterances: Iterable[_SyntheticUtterance]) -> Lexicon:
    """Return all pronunciations of the utterances, in order of frequency."""
    counts: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for utterance in utterances:
        for position, word in enumerate(utterance.words):
            phones = tuple(p.phone for p in utterance.phones if p.word == position)
            counts[word][phones] += 1
    ranked = {
        word: sorted(variants, key=lambda phones: (-variants[phones], phones))
        for word, variants in sorted(counts.items())
    }
    return Lexicon(ranked)
