"""A corpus as the model sees it, and the DataModule that feeds it to the Trainer."""

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
    """Utterances in up to three splits, and what training and decoding must know about them.

    Attributes:
        name: of the corpus.
        train, valid, test: utterances, normalised and at the model's frame rate; a split may be
            empty.
        senones: numbering of the targets.
        lexicon: pronunciation of every word.
        feature_dim: D of the utterances' features.
        frame_shift_s: seconds from one of the model's frames to the next.
        stacking: how the model's frames were made from those of the recording.
        recorded: normalised features of each utterance by key, (T, D / stack), at the frame rate of
            the recording (100 per second).
        normalisation: that all features have in common, or None.
        transcripts: words of the utterances that the model is or was trained on.
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
        """Take the transcripts of the train split, where none are given."""
        if not self.transcripts:
            self.transcripts = tuple(utterance.words for utterance in self.train)

    @property
    def fitted(self) -> Fitted:
        """What a corpus to test on needs of this one."""
        return Fitted(
            senones=self.senones,
            lexicon=self.lexicon,
            normalisation=self.normalisation,
            transcripts=self.transcripts,
        )

    @property
    def splits(self) -> dict[str, list[Utterance]]:
        """The three splits by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def at_phase(self, key: str, phase: int) -> Tensor:
        """Features (T', D) of an utterance at another phase of the subsampling.

        See :class:`~examples.acoustic.stacking.Stacking`: model outputs at phases 0 to
        ``subsample - 1``, merged by ``stacking.interleave``, are at the rate of the recording.

        Raises:
            KeyError: if there is no such utterance.
        """
        return self.stacking.features(self.recorded[key], phase)

    def with_alignments(self, alignments: Mapping[str, Tensor]) -> Corpus:
        """Return the same corpus with new targets.

        Args:
            alignments: by key, int64 senones at the rate of the recording; those of the centre
                frames are kept. Utterances that are not named keep their targets.

        Raises:
            ValueError: if a length is not that of the recording, or a senone does not exist.
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
    """Utterances of a split, indexed by the positions of all utterances of a batch.

    Args:
        utterances: of the split.
        chosen: positions of those that belong to the data set; None is all of them. Batches name
            utterances by their position in the split.
    """

    def __init__(
        self, utterances: Sequence[Utterance], chosen: Sequence[int] | None = None
    ) -> None:
        self.utterances = utterances
        self.chosen = range(len(utterances)) if chosen is None else chosen

    def __len__(self) -> int:
        """Utterances of the data set."""
        return len(self.chosen)

    @property
    def lengths(self) -> list[int]:
        """Frames of each utterance of the data set."""
        return [len(self.utterances[position]) for position in self.chosen]

    def __getitem__(self, index: int | Sequence[int]) -> Batch:
        """Batch of the utterances at ``index``; one position gives a batch of one."""
        positions = [self.chosen[i] for i in ([index] if isinstance(index, int) else index)]
        return collate([self.utterances[position] for position in positions], positions)


class CorpusDataModule(CorpusData[Corpus]):
    """Mini-batches counted in frames, the same number of them on every rank.

    The batch sampler does the work of a distributed sampler: pass ``use_distributed_sampler=False``
    to the Trainer to say so (with ``True``, Lightning sees a distributed sampler and leaves it).

    Args:
        build: makes the corpus; called on every rank in ``setup``.
        prepare: fills a cache; called on one rank of each host before that, or None.
        batch_frames: most frames in a batch, padding included.
        seed: of the order of the batches.
        num_workers: processes that load batches.
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
        return "what builds the corpus must give it"

    def prepare_data(self) -> None:
        """Fill the cache before training; to evaluate, it is filled at the first use."""
        if self.prepare is not None and self.is_fitting:
            self.prepare()

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches of this rank, in another order each epoch; utterances without targets are out."""
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
        """Batches of this rank, in a fixed order."""
        return self._loader(UtteranceDataset(self.split("valid")), shuffle=False)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Batches of this rank, in a fixed order."""
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
