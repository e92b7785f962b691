"""Corpus of normalised utterances at the frame rate of the model, and its DataModule."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from examples.acoustic.batching import FrameBatchSampler
from examples.acoustic.fitted import Fitted
from examples.acoustic.lexicon import Lexicon
from examples.acoustic.normalisation import Normalisation
from examples.acoustic.senones import SenoneMap
from examples.acoustic.stacking import Stacking
from examples.acoustic.utterance import Batch, Utterance, collate
from examples.corpus_data import CorpusData
from examples.rank_batches import rank_and_world_size, rank_loader

log = logging.getLogger(__name__)


@dataclass
class Corpus:
    """Utterances in up to three splits, with senones, lexicon and normalisation.

    Attributes:
        name: name of the corpus.
        train, valid, test: utterances, normalised and at the frame rate of the model. A split may
            be empty.
        senones: numbering of the targets.
        lexicon: pronunciations of every word.
        feature_dim: number of features of a frame, D.
        frame_shift_s: seconds between two frames of the model.
        stacking: stacking and subsampling of the frames of recordings.
        recorded: normalised features of each utterance by key, (T, D / stack), at the frame rate of
            the recording (100 frames per second).
        normalisation: normalisation of all features, or None.
        transcripts: words of the training utterances of the model.
    """

    name: str
    train: list[Utterance]
    valid: list[Utterance]
    test: list[Utterance]
    senones: SenoneMap
    lexicon: Lexicon
    feature_dim: int
    frame_shift_s: float
    stacking: Stacking = field(default_factory=lambda: Stacking(1, 1))
    recorded: dict[str, Tensor] = field(default_factory=dict)
    normalisation: Normalisation | None = None
    transcripts: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        """Use the transcripts of the train split if none are given."""
        if not self.transcripts:
            self.transcripts = tuple(utterance.words for utterance in self.train)

    @property
    def fitted(self) -> Fitted:
        """Values for the evaluation of a model that was trained on this corpus."""
        return Fitted(
            senones=self.senones,
            lexicon=self.lexicon,
            normalisation=self.normalisation,
            transcripts=self.transcripts,
        )

    @property
    def splits(self) -> dict[str, list[Utterance]]:
        """Utterances of each split, by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def at_phase(self, key: str, phase: int) -> Tensor:
        """Return the features (T', D) of an utterance at a phase of the subsampling.

        Outputs of the model at all phases, merged by ``stacking.interleave``, are at the frame rate
        of the recording. See :class:`~examples.acoustic.stacking.Stacking`.

        Raises:
            KeyError: there is no such utterance.
        """
        return self.stacking.features(self.recorded[key], phase)

    def with_alignments(self, alignments: Mapping[str, Tensor]) -> Corpus:
        """Return this corpus with new targets.

        Args:
            alignments: int64 senones of each utterance by key, at the frame rate of the recording.
                Targets are the senones of the centre frames. Other utterances keep their targets.

        Raises:
            ValueError: an alignment has a wrong length, or a senone is out of range.
        """
        train, valid, test = (
            [self._realigned(utterance, alignments.get(utterance.key)) for utterance in split]
            for split in self.splits.values()
        )
        return replace(self, train=train, valid=valid, test=test)

    def _realigned(self, utterance: Utterance, alignment: Tensor | None) -> Utterance:
        if alignment is None:
            return utterance
        frames = self.recorded[utterance.key].shape[0]
        if alignment.shape != (frames,):
            raise ValueError(
                f"the alignment of {utterance.key} must have shape ({frames},), one senone for "
                f"each frame of the recording, got {tuple(alignment.shape)}"
            )
        if frames and not 0 <= int(alignment.min()) <= int(alignment.max()) < len(self.senones):
            raise ValueError(
                f"senones of {utterance.key} must be from 0 to {len(self.senones) - 1}, got "
                f"{int(alignment.min())} to {int(alignment.max())}"
            )
        return replace(utterance, senones=self.stacking.targets(alignment))


class UtteranceDataset(Dataset[Batch]):
    """Utterances of a split, whose items are batches.

    Args:
        utterances: utterances of the split.
        selected: positions of the utterances of this data set. None: all utterances. The ``index``
            of batches contains positions in the split.
    """

    def __init__(
        self, utterances: Sequence[Utterance], selected: Sequence[int] | None = None
    ) -> None:
        self.utterances = utterances
        self.selected = range(len(utterances)) if selected is None else selected

    def __len__(self) -> int:
        """Return the number of utterances."""
        return len(self.selected)

    @property
    def lengths(self) -> list[int]:
        """Number of frames of each utterance."""
        return [len(self.utterances[position]) for position in self.selected]

    def __getitem__(self, index: int | Sequence[int]) -> Batch:
        """Return a batch of the utterances at these indices, or at one index."""
        positions = [self.selected[i] for i in ([index] if isinstance(index, int) else index)]
        return collate([self.utterances[position] for position in positions], positions)


class CorpusDataModule(CorpusData[Corpus]):
    """Mini-batches of a limited number of frames, equally many on every rank.

    The batch sampler distributes batches among ranks. Pass ``use_distributed_sampler=False`` to the
    Trainer. With ``True``, Lightning does not replace the sampler, because it is a distributed one.

    Args:
        build: function that returns the corpus. Every rank calls it in ``setup``.
        prepare: function that fills a cache, or None. One rank of each host calls it before
            ``setup``.
        batch_frames: largest number of frames of a batch, including padding.
        seed: seed of the order of the batches.
        num_workers: number of processes that load batches.
    """

    def __init__(
        self,
        build: Callable[[], Corpus],
        *,
        prepare: Callable[[], object] | None = None,
        batch_frames: int = 2048,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        if batch_frames < 1:
            raise ValueError(f"batch_frames must be at least 1, got {batch_frames}")
        self.build = build
        self.prepare = prepare
        self.batch_frames = batch_frames
        self.seed = seed
        self.num_workers = num_workers

    def _build(self) -> Corpus:
        return self.build()

    def _fitted(self, corpus: Corpus) -> dict[str, Any]:
        return corpus.fitted.state_dict()

    def _split_hint(self, split: str) -> str:
        return f"the function that builds the corpus must return {split} utterances"

    def prepare_data(self) -> None:
        """Fill the cache before training. In evaluation, it is filled at the first use."""
        if self.prepare is not None and self.is_fitting:
            self.prepare()

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a different order in each epoch.

        Utterances without targets are left out, with a warning.
        """
        train = self.split("train")
        aligned = [i for i, utterance in enumerate(train) if utterance.senones is not None]
        if len(aligned) < len(train):
            log.warning(
                "%d of %d train utterances have no targets", len(train) - len(aligned), len(train)
            )
        if not aligned:
            raise ValueError(
                f"no train utterance of corpus {self.corpus.name} has targets; build it with "
                "flat_start=True, or align it (aligned_corpus)"
            )
        return self._loader(UtteranceDataset(train, aligned), shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a fixed order."""
        return self._loader(UtteranceDataset(self.split("valid")), shuffle=False)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a fixed order."""
        return self._loader(UtteranceDataset(self.split("test")), shuffle=False)

    def _loader(self, dataset: UtteranceDataset, *, shuffle: bool) -> DataLoader[Batch]:
        rank, world_size = rank_and_world_size(self.trainer)
        sampler = FrameBatchSampler(
            dataset.lengths,
            batch_frames=self.batch_frames,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            seed=self.seed,
        )
        return rank_loader(dataset, sampler, num_workers=self.num_workers)
