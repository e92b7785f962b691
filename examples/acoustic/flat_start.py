"""Alignments of a corpus that has transcripts only, by a small network trained from a flat start.

Each round trains the network on the alignments so far and then aligns the train split with it. The
network looks at single frames of the recording among their neighbours and is thrown away in the
end; only its alignments are kept.
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
    """How the alignments are found.

    Attributes:
        seed: of the network and of the order of the frames.
        realignments: rounds of training and aligning.
        epochs: passes over the train split in each round.
        context: neighbours that the network sees on each side, in frames of the recording.
        hidden: width of its two hidden layers.
        batch_frames: frames of a mini-batch.
        learning_rate: of Adam.
        dropout: of the hidden layers.
        silence_frames: silence assumed at both ends of an utterance at first.
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
        """Check the counts."""
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
    """Align all splits of a corpus; the network learns from the train split alone.

    Utterances that are too short for their words are left out; the log says how many and which.

    Args:
        corpus: with ``recorded`` features and words; senones that it has are not looked at.
        options: see ``FlatStartOptions``.
        on_round: called after each realignment with its number, from 1, and the alignments of the
            train split.

    Returns:
        By key, int64 senones at the rate of the recording, for ``Corpus.with_alignments``.

    Raises:
        KeyError: words without pronunciation (all of them are listed).
        ValueError: a train split of which no utterance could be aligned.
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
    """A classifier of single frames with context, and the scaled likelihoods that it gives."""

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
        """Go over the frames of these utterances, in random order, and note the priors."""
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
        """Scaled log likelihoods (T, S) of an utterance."""
        self.network.eval()
        padded, centres = _padded([self.recorded[key]], self.options.context)
        logits = self.network(_windows(padded, centres, self.options.context))
        return scaled_likelihoods(logits, self.log_prior)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from a seed inside (dropout knows only the global generator); undisturbed outside."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _perceptron(width: int, options: FlatStartOptions, senones: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (width, options.hidden):
        layers += [nn.Linear(inputs, options.hidden), nn.ReLU(), nn.Dropout(options.dropout)]
    return nn.Sequential(*layers, nn.Linear(options.hidden, senones))


def _padded(features: Iterable[Tensor], context: int) -> tuple[Tensor, Tensor]:
    """Put utterances in one tensor, their ends repeated, with the position of each real frame."""
    parts, centres, start = [], [], 0
    for part in features:
        parts += [part[:1].expand(context, -1), part, part[-1:].expand(context, -1)]
        centres.append(torch.arange(start + context, start + context + len(part)))
        start += len(part) + 2 * context
    return torch.cat(parts), torch.cat(centres)


def _windows(padded: Tensor, centres: Tensor, context: int) -> Tensor:
    """Return the frames around each centre, flattened: (N, (2 * context + 1) * D)."""
    offsets = torch.arange(-context, context + 1)
    return padded[centres[:, None] + offsets].flatten(1)


def _transcripts(corpus: Corpus, utterances: Iterable[Utterance]) -> list[Transcript]:
    return [Transcript(u.key, u.words, len(corpus.recorded[u.key])) for u in utterances]
