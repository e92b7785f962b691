"""Alignment of a corpus without alignments, by a small network that is trained from a flat start.

Each round trains the network on the current alignments, and then aligns the train split with it.
The network classifies frames of the recording with some context. Only its alignments are used
afterwards. Later runs read them from a cache.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.acoustic.alignment import Aligner, Transcript
from examples.acoustic.corpus import Corpus, Utterance
from examples.acoustic.priors import log_priors, scaled_likelihoods
from examples.array_cache import Arrays, as_json_array, cached_arrays, from_json_array, is_cached

_LOG = logging.getLogger(__name__)

# Version of the cache. A change of the files, or of the computation of alignments, increments it.
_FORMAT = 3
_SEED = 0
_ROUNDS = 5  # of training and alignment
_EPOCHS = 2  # of each round
_CONTEXT = 7  # frames on each side
_HIDDEN = 256
_BATCH_FRAMES = 512
_LEARNING_RATE = 1e-3
_DROPOUT = 0.2


def aligned_corpus(corpus: Corpus, cache_dir: str, *, only_cached: bool = False) -> Corpus:
    """Return the corpus with targets. A corpus that has targets is returned unchanged.

    Several ranks may call it at the same time. One of them computes the alignments, which depend
    only on the corpus.

    Args:
        corpus: corpus with transcripts.
        cache_dir: folder of the cache.
        only_cached: whether to return the corpus without targets if the cache does not contain
            them. Alignment trains a network, which takes too long for a test.
    """
    if corpus.is_aligned:
        return corpus
    name, inputs = f"{corpus.name}-alignments", _inputs(corpus)
    if only_cached and not is_cached(name, inputs, cache_dir):
        return corpus
    arrays = cached_arrays(name, inputs, cache_dir, lambda: _to_arrays(align_corpus(corpus)))
    alignments = torch.from_numpy(arrays["senones"]).long().split(arrays["frames"].tolist())
    keys = from_json_array(arrays["keys"])
    return corpus.with_alignments(dict(zip(keys, alignments, strict=True)))


def align_corpus(corpus: Corpus) -> dict[str, Tensor]:
    """Align all splits of a corpus, with a network that is trained on the train split.

    Utterances that are too short for their words are left out, with a warning that names them.

    Returns:
        int64 senones of each utterance by key, at the frame rate of the recording, as for
        ``Corpus.with_alignments``.

    Raises:
        ValueError: no utterance of the train split can be aligned.
    """
    train = _transcripts(corpus, corpus.train)
    aligner = Aligner(corpus.lexicon, corpus.senones)
    current = aligner.flat(train)
    if not current.by_key:
        raise ValueError(f"no utterance of the train split can be aligned: {current.summary()}")
    network = _FrameNetwork(corpus)
    for number in range(1, _ROUNDS + 1):
        network.train_on(current.senones())
        current = aligner.by_scores(train, network.score, current)
        _LOG.info("realignment %d: %s", number, current.summary())
    others = _transcripts(corpus, [*corpus.valid, *corpus.test])
    held_out = aligner.by_scores(others, network.score)
    for name, alignments in (("train", current), ("valid and test", held_out)):
        log = _LOG.warning if alignments.left_out else _LOG.info
        log("%s: %s", name, alignments.summary())
    return {**current.senones(), **held_out.senones()}


class _FrameNetwork:
    """Classifier of frames with context, and its scaled likelihoods."""

    def __init__(self, corpus: Corpus) -> None:
        self.recorded = corpus.recorded
        self.senones = len(corpus.senones)
        self.rounds = 0
        width = next(iter(corpus.recorded.values())).shape[1] * (2 * _CONTEXT + 1)
        with _seeded(_SEED):
            self.network = _perceptron(width, self.senones)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=_LEARNING_RATE)
        self.log_prior = torch.zeros(self.senones)

    def train_on(self, targets: Mapping[str, Tensor]) -> None:
        """Train on the frames of these utterances in random order, and set the priors."""
        self.log_prior = log_priors(targets.values(), self.senones)
        padded, centres = _padded(self.recorded[key] for key in targets)
        labels = torch.cat(list(targets.values()))
        self.network.train()
        self.rounds += 1
        with _seeded(_SEED + self.rounds):
            for _ in range(_EPOCHS):
                for batch in torch.randperm(len(labels)).split(_BATCH_FRAMES):
                    windows = _windows(padded, centres[batch])
                    loss = functional.cross_entropy(self.network(windows), labels[batch])
                    self.optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    self.optimizer.step()

    @torch.no_grad()
    def score(self, key: str) -> Tensor:
        """Return the scaled log likelihoods (T, S) of an utterance."""
        self.network.eval()
        padded, centres = _padded([self.recorded[key]])
        return scaled_likelihoods(self.network(_windows(padded, centres)), self.log_prior)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Context with a seeded global generator, which dropout uses. Its state is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _perceptron(width: int, senones: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (width, _HIDDEN):
        layers += [nn.Linear(inputs, _HIDDEN), nn.ReLU(), nn.Dropout(_DROPOUT)]
    return nn.Sequential(*layers, nn.Linear(_HIDDEN, senones))


def _padded(features: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Concatenate utterances, with their end frames repeated, and the positions of real frames."""
    frames, centres, start = [], [], 0
    for utterance in features:
        first, last = utterance[:1], utterance[-1:]
        frames += [first.expand(_CONTEXT, -1), utterance, last.expand(_CONTEXT, -1)]
        centres.append(torch.arange(start + _CONTEXT, start + _CONTEXT + len(utterance)))
        start += len(utterance) + 2 * _CONTEXT
    return torch.cat(frames), torch.cat(centres)


def _windows(padded: Tensor, centres: Tensor) -> Tensor:
    """Return the frames around each centre, (N, (2 * context + 1) * D)."""
    offsets = torch.arange(-_CONTEXT, _CONTEXT + 1)
    return padded[centres[:, None] + offsets].flatten(1)


def _transcripts(corpus: Corpus, utterances: Iterable[Utterance]) -> list[Transcript]:
    return [Transcript(u.key, u.words, len(corpus.recorded[u.key])) for u in utterances]


def _inputs(corpus: Corpus) -> dict[str, Any]:
    """Return everything that the alignments depend on, as JSON."""
    features = hashlib.sha256()
    for key in sorted(corpus.recorded):
        features.update(corpus.recorded[key].contiguous().numpy().tobytes())
    return {
        "format": _FORMAT,
        "senones": asdict(corpus.senones),
        "lexicon": {word: corpus.lexicon.pronunciations(word) for word in corpus.lexicon.words},
        "splits": {
            name: [[utterance.key, utterance.words] for utterance in split]
            for name, split in corpus.splits.items()
        },
        "features": features.hexdigest(),
    }


def _to_arrays(alignments: Mapping[str, Tensor]) -> Arrays:
    return {
        "keys": as_json_array(list(alignments)),
        "frames": np.array([len(senones) for senones in alignments.values()]),
        "senones": torch.cat(list(alignments.values())).numpy().astype(np.int32),
    }
