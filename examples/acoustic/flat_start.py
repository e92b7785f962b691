"""Alignment of a corpus without alignments, by a small network that is trained from a flat start.

Each round trains the network on the current alignments, and then aligns the train split with it.
The network classifies frames of the recording with some context. Only its alignments are used
afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.acoustic.alignment import Alignments, flat_start, realign
from examples.acoustic.corpus import Corpus
from examples.acoustic.decoding.priors import log_priors, scaled_likelihoods
from examples.acoustic.reading import Transcript
from examples.acoustic.utterance import Utterance

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FlatStartOptions:
    """Options of the alignment.

    Attributes:
        seed: seed of the network and of the order of the frames.
        realignments: number of rounds of training and alignment.
        epochs: number of epochs of each round.
        context: number of frames of context on each side.
        hidden: number of units of each of the two hidden layers.
        batch_frames: number of frames of a mini-batch.
        learning_rate: learning rate of Adam.
        dropout: dropout probability of the hidden layers.
        silence_frames: number of frames of silence at both ends of an utterance in the flat start.

    Raises:
        ValueError: an option is out of range.
    """

    seed: int = 0
    realignments: int = 5
    epochs: int = 2
    context: int = 7
    hidden: int = 256
    batch_frames: int = 512
    learning_rate: float = 1e-3
    dropout: float = 0.2
    silence_frames: int = 20

    def __post_init__(self) -> None:
        """Check the options."""
        for name in ("realignments", "epochs", "hidden", "batch_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.context < 0:
            raise ValueError(f"context must be at least 0, got {self.context}")


def align_corpus(
    corpus: Corpus,
    options: FlatStartOptions | None = None,
    *,
    on_round: Callable[[int, Alignments], None] | None = None,
) -> dict[str, Tensor]:
    """Align all splits of a corpus, with a network that is trained on the train split.

    Utterances that are too short for their words are left out, with a warning that names them.

    Args:
        corpus: corpus with ``recorded`` features and words. Its senones are ignored.
        options: options of the alignment.
        on_round: function that is called after each realignment, with its number, from 1, and the
            alignments of the train split.

    Returns:
        int64 senones of each utterance by key, at the frame rate of the recording, as for
        ``Corpus.with_alignments``.

    Raises:
        KeyError: words have no pronunciation. The error lists all of them.
        ValueError: no utterance of the train split can be aligned.
    """
    options = options or FlatStartOptions()
    train = _transcripts(corpus, corpus.train)
    lexicon, senones = corpus.lexicon, corpus.senones
    current = flat_start(train, lexicon, senones, silence_frames=options.silence_frames)
    if not current.by_key:
        raise ValueError(f"no utterance of the train split can be aligned: {current.summary()}")
    network = _FrameNetwork(corpus, options)
    for number in range(1, options.realignments + 1):
        network.train_on(current.senones())
        current = realign(train, network.score, lexicon, senones, previous=current)
        _LOG.info("realignment %d: %s", number, current.summary())
        if on_round is not None:
            on_round(number, current)
    others = _transcripts(corpus, [*corpus.valid, *corpus.test])
    held_out = realign(others, network.score, lexicon, senones)
    for name, alignments in (("train", current), ("valid and test", held_out)):
        log = _LOG.warning if alignments.left_out else _LOG.info
        log("%s: %s", name, alignments.summary())
    return {**current.senones(), **held_out.senones()}


class _FrameNetwork:
    """Classifier of frames with context, and its scaled likelihoods."""

    def __init__(self, corpus: Corpus, options: FlatStartOptions) -> None:
        self.options = options
        self.recorded = corpus.recorded
        self.senones = len(corpus.senones)
        self.rounds = 0
        width = next(iter(corpus.recorded.values())).shape[1] * (2 * options.context + 1)
        with _seeded(options.seed):
            self.network = _perceptron(width, options, self.senones)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=options.learning_rate)
        self.log_prior = torch.zeros(self.senones)

    def train_on(self, targets: Mapping[str, Tensor]) -> None:
        """Train on the frames of these utterances in random order, and set the priors."""
        self.log_prior = log_priors(targets.values(), self.senones)
        padded, centres = _padded((self.recorded[k] for k in targets), self.options.context)
        labels = torch.cat(list(targets.values()))
        self.network.train()
        self.rounds += 1
        with _seeded(self.options.seed + self.rounds):
            for _ in range(self.options.epochs):
                for batch in torch.randperm(len(labels)).split(self.options.batch_frames):
                    windows = _windows(padded, centres[batch], self.options.context)
                    loss = functional.cross_entropy(self.network(windows), labels[batch])
                    self.optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    self.optimizer.step()

    @torch.no_grad()
    def score(self, key: str) -> Tensor:
        """Return the scaled log likelihoods (T, S) of an utterance."""
        self.network.eval()
        padded, centres = _padded([self.recorded[key]], self.options.context)
        logits = self.network(_windows(padded, centres, self.options.context))
        return scaled_likelihoods(logits, self.log_prior)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Context with a seeded global generator, which dropout uses. Its state is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _perceptron(width: int, options: FlatStartOptions, senones: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (width, options.hidden):
        layers += [nn.Linear(inputs, options.hidden), nn.ReLU(), nn.Dropout(options.dropout)]
    return nn.Sequential(*layers, nn.Linear(options.hidden, senones))


def _padded(features: Iterable[Tensor], context: int) -> tuple[Tensor, Tensor]:
    """Concatenate utterances, with their end frames repeated, and the positions of real frames."""
    frames, centres, start = [], [], 0
    for utterance in features:
        first, last = utterance[:1], utterance[-1:]
        frames += [first.expand(context, -1), utterance, last.expand(context, -1)]
        centres.append(torch.arange(start + context, start + context + len(utterance)))
        start += len(utterance) + 2 * context
    return torch.cat(frames), torch.cat(centres)


def _windows(padded: Tensor, centres: Tensor, context: int) -> Tensor:
    """Return the frames around each centre, (N, (2 * context + 1) * D)."""
    offsets = torch.arange(-context, context + 1)
    return padded[centres[:, None] + offsets].flatten(1)


def _transcripts(corpus: Corpus, utterances: Iterable[Utterance]) -> list[Transcript]:
    return [Transcript(u.key, u.words, len(corpus.recorded[u.key])) for u in utterances]
