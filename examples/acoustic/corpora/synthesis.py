"""The embedded corpus: synthesised speech with exact alignments, nothing to download."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from examples.acoustic.corpora.cache import cached
from examples.acoustic.corpora.espeak import Espeak, Speech
from examples.acoustic.corpora.grammar import RULES, sample_sentence
from examples.acoustic.corpora.recording import (
    NormalisationMode,
    RecordedCorpus,
    Recording,
)
from examples.acoustic.corpus import Corpus
from examples.acoustic.features import (
    SAMPLE_RATE_HZ,
    frame_times,
    log_filter_bank,
    resample,
)
from examples.acoustic.fitted import Fitted
from examples.acoustic.lexicon import Lexicon
from examples.acoustic.segmentation import PhoneInterval, senones_at
from examples.acoustic.senones import SILENCE, SenoneMap
from examples.acoustic.stacking import Stacking

ACCENTS = ("en-us", "en-us-nyc", "en-gb-x-rp", "en-gb-scotland", "en")
# No variant, and so no voice, is in two splits; every accent is in all three.
VARIANTS = {
    "train": ("m1", "m2", "m3", "m4", "m6", "f1", "f2", "f3", "f5"),
    "valid": ("m5",),
    "test": ("m7", "f4"),
}


@dataclass(frozen=True, kw_only=True)
class SynthesisConfig:
    """What the corpus is made of; the same values always give the same corpus.

    Attributes:
        sentences: utterances in all.
        seed: of every draw.
        valid_fraction: share of the utterances in the valid split.
        test_fraction: share of the utterances in the test split.
        words_per_minute: slowest and fastest speed.
        pitch: lowest and highest pitch, on espeak's scale from 0 to 100.
        silence_s: shortest and longest silence added at each end.
        noise_snr_db: worst and best ratio of speech to added noise; None adds none.

    Raises:
        ValueError: if a range is empty, or a split would be.
    """

    sentences: int = 600
    seed: int = 0
    valid_fraction: float = 0.1
    test_fraction: float = 0.1
    words_per_minute: tuple[int, int] = (130, 220)
    pitch: tuple[int, int] = (35, 65)
    silence_s: tuple[float, float] = (0.1, 0.3)
    noise_snr_db: tuple[float, float] | None = (10.0, 30.0)

    def __post_init__(self) -> None:
        """Check ranges and shares."""
        for name in ("words_per_minute", "pitch", "silence_s", "noise_snr_db"):
            limits = getattr(self, name)
            if limits is not None and not (len(limits) == 2 and limits[0] <= limits[1]):
                raise ValueError(f"{name} must be a pair (smallest, largest), got {limits}")
        if self.silence_s[0] < 0:
            raise ValueError(f"silence_s must not be negative, got {self.silence_s}")
        sizes = self.split_sizes()
        if min(sizes.values()) < 1:
            raise ValueError(
                f"every split needs at least one sentence, {self.sentences} sentences with these "
                f"fractions give {sizes}; ask for more"
            )

    def split_sizes(self) -> dict[str, int]:
        """Utterances in each split."""
        valid = round(self.sentences * self.valid_fraction)
        test = round(self.sentences * self.test_fraction)
        return {"train": self.sentences - valid - test, "valid": valid, "test": test}


def build_synthetic_corpus(
    *,
    sentences: int = 600,
    seed: int = 0,
    cache_dir: str | Path | None = None,
    valid_fraction: float = 0.1,
    test_fraction: float = 0.1,
    noise_snr_db: tuple[float, float] | None = (10.0, 30.0),
    stack: int = 3,
    subsample: int = 3,
    normalisation: NormalisationMode = "global",
    fitted: Fitted | None = None,
) -> Corpus:
    """Synthesise commands in many voices, with exact alignments of phones in three states.

    Args:
        sentences: utterances in all, about 2.5 s each.
        seed: the same seed and sizes give the same corpus.
        cache_dir: folder where the corpus is kept for other ranks and later runs; None keeps none.
        valid_fraction: share of the valid split.
        test_fraction: share of the test split.
        noise_snr_db: worst and best ratio of speech to added noise; None adds none.
        stack: frames in a stack.
        subsample: 10 ms frames for each frame of the model.
        normalisation: ``"global"``, ``"speaker"`` or ``"none"``.
        fitted: what the model that is tested was trained on; None to train.
    """
    config = SynthesisConfig(
        sentences=sentences,
        seed=seed,
        valid_fraction=valid_fraction,
        test_fraction=test_fraction,
        noise_snr_db=None if noise_snr_db is None else (noise_snr_db[0], noise_snr_db[1]),
    )
    made_from = {
        "config": asdict(config),
        "voices": [ACCENTS, VARIANTS],
        "grammar": RULES,
        "espeak": version("espeakng-loader"),
    }
    recorded = cached("synthetic", made_from, cache_dir, lambda: synthesise(config))
    recorded = recorded.as_fitted(fitted)
    return recorded.finish(Stacking(stack, subsample), normalisation, fitted)


def synthesise(config: SynthesisConfig) -> RecordedCorpus:
    """Speak every sentence and take filter banks and senones of it."""
    spoken = list(_speak_all(config))
    phones = {interval.phone for item in spoken for interval in item.phones}
    senones = SenoneMap.from_phones(phones)
    recordings = tuple(
        Recording(
            key=item.key,
            speaker=item.speaker,
            split=item.split,
            words=item.words,
            features=item.features,
            senones=senones_at(frame_times(item.features.shape[0]), item.phones, senones),
        )
        for item in spoken
    )
    return RecordedCorpus(
        name="synthetic", recordings=recordings, senones=senones, lexicon=_lexicon(spoken)
    )


@dataclass(frozen=True, kw_only=True)
class _Spoken:
    key: str
    speaker: str
    split: str
    words: tuple[str, ...]
    features: torch.Tensor
    phones: tuple[PhoneInterval, ...]


def _speak_all(config: SynthesisConfig) -> Iterator[_Spoken]:
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
                words_per_minute=int(draw.integers(*config.words_per_minute, endpoint=True)),
                pitch=int(draw.integers(*config.pitch, endpoint=True)),
            )
            samples, phones = _record(speech, config, draw)
            wave = resample(torch.from_numpy(samples), speech.rate_hz, SAMPLE_RATE_HZ)
            yield _Spoken(
                key=f"synthetic-{number:05d}",
                speaker=voice,
                split=split,
                words=words,
                features=log_filter_bank(wave),
                phones=phones,
            )
            number += 1


def _record(
    speech: Speech, config: SynthesisConfig, draw: np.random.Generator
) -> tuple[np.ndarray, tuple[PhoneInterval, ...]]:
    """Add silence at both ends, and noise; samples are float32 between -1 and 1."""
    before, after = (int(s * speech.rate_hz) for s in draw.uniform(*config.silence_s, size=2))
    samples = np.pad(speech.samples.astype(np.float32) / 32_768, (before, after))
    if config.noise_snr_db is not None:
        noise = _coloured_noise(len(samples), float(draw.uniform(0.0, 2.0)), draw)
        ratio = 10 ** (-draw.uniform(*config.noise_snr_db) / 20)
        samples = samples + np.float32(np.sqrt(np.mean(samples**2)) * ratio) * noise
    shift = before / speech.rate_hz
    moved = [p._replace(start_s=p.start_s + shift, end_s=p.end_s + shift) for p in speech.phones]
    end = len(samples) / speech.rate_hz
    lead = PhoneInterval(SILENCE, 0.0, shift, None)
    tail = PhoneInterval(SILENCE, moved[-1].end_s, end, None)
    return samples.astype(np.float32), _join_silences([lead, *moved, tail])


def _join_silences(phones: Iterable[PhoneInterval]) -> tuple[PhoneInterval, ...]:
    """Make one silence of several that follow each other: its states last as long as it does."""
    joined: list[PhoneInterval] = []
    for phone in phones:
        if joined and phone.phone == joined[-1].phone == SILENCE:
            joined[-1] = joined[-1]._replace(end_s=phone.end_s)
        else:
            joined.append(phone)
    return tuple(joined)


def _coloured_noise(samples: int, slope: float, draw: np.random.Generator) -> np.ndarray:
    """Gaussian noise of power 1 that falls as frequency ** -slope (0 white, 1 pink, 2 brown)."""
    longer = 1 << (samples - 1).bit_length()  # transforms of other lengths can be 10 times slower
    spectrum = np.fft.rfft(draw.standard_normal(longer))
    spectrum *= np.maximum(np.arange(len(spectrum)), 1.0) ** (-slope / 2)
    noise = np.fft.irfft(spectrum, longer)[:samples]
    return (noise / np.sqrt(np.mean(noise**2))).astype(np.float32)


def _lexicon(spoken: Iterable[_Spoken]) -> Lexicon:
    """All pronunciations that were heard, the most frequent one first."""
    heard: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for item in spoken:
        for position, word in enumerate(item.words):
            heard[word][tuple(p.phone for p in item.phones if p.word == position)] += 1
    ranked = {
        word: sorted(counts, key=lambda variant: (-counts[variant], variant))
        for word, counts in sorted(heard.items())
    }
    return Lexicon(ranked)
