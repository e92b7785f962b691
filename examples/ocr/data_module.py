"""The DataModule of the text line example, set up by names and numbers as in a YAML file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch.utils.data import DataLoader

from examples.array_cache import default_cache_dir
from examples.corpus_data import CorpusData, builder_of, check_arguments
from examples.ocr.alphabet import KEYBOARD, Alphabet
from examples.ocr.augmentation import Augmentation
from examples.ocr.batching import LineBatchSampler
from examples.ocr.corpora.folder import build_folder_corpus
from examples.ocr.corpora.iam import build_iam_corpus, lists_of
from examples.ocr.corpora.manifest import build_manifest_corpus
from examples.ocr.corpora.synthetic import build_synthetic_corpus
from examples.ocr.corpus import Corpus
from examples.ocr.dataset import LineDataset
from examples.ocr.line import Batch, Line
from examples.ocr.targets import with_room, written_with
from examples.ocr.unreadable import OnUnreadable, Problem
from examples.packed_json import packed, unpacked
from examples.rank_batches import rank_and_world_size, rank_loader

CorpusName = Literal["synthetic", "manifest", "iam", "folder"]

BUILDERS: dict[str, Callable[..., Corpus]] = {
    "synthetic": build_synthetic_corpus,
    "manifest": build_manifest_corpus,
    "iam": build_iam_corpus,
    "folder": build_folder_corpus,
}


class TextLines(CorpusData[Corpus]):
    """Lines of text from one of four sources, in batches of similar width.

    Every rank has the same number of batches (``LineBatchSampler``; pass
    ``use_distributed_sampler=False`` to the Trainer to say so). Images that were read or rendered
    are cached: one rank of each host makes them, the others read them.

    A line whose text needs more outputs than the model has for its width would have an infinite
    CTC loss: such lines are left out of every split, with a warning, and listed in ``too_long``.

    Alphabet and texts of the train split are in every checkpoint. To evaluate one, the corpus needs
    no other split than the one that is evaluated.

    Args:
        corpus: ``"synthetic"``, ``"manifest"``, ``"iam"`` or ``"folder"``.
        corpus_args: arguments of ``build_synthetic_corpus``, ``build_manifest_corpus``,
            ``build_iam_corpus`` or ``build_folder_corpus``, other than those named here.
        height: pixels of all images (60 in bmuf_adam 3.1).
        batch_lines: most lines in a batch of one rank.
        augment: change the images of the train split a little in each epoch.
        alphabet: ``"keyboard"`` writes everything with the 95 characters of bmuf_adam 3.1,
            ``"corpus"`` with all characters that the corpus has (all splits that are there when
            the model is trained; they come from the checkpoint when it is evaluated); or the
            characters themselves.
        pixels_per_frame: width for each output of the model (its ``subsample``).
        on_unreadable: ``"error"`` raises where lines cannot be read or written with the alphabet,
            ``"skip"`` leaves them out with a warning; both name them.
        seed: of the order of the batches and of the augmentation.
        num_workers: processes that load batches.
        cache_dir: folder of the cache; None is the user's (``default_cache_dir``).

    Attributes:
        too_long: names of the lines without room for CTC, and why, once the corpus is built.

    Raises:
        ValueError: if the corpus is unknown, its arguments do not fit (it lists those that do), or
            a number is out of range.
    """

    def __init__(
        self,
        corpus: CorpusName = "synthetic",
        corpus_args: dict[str, Any] | None = None,
        height: int = 60,
        batch_lines: int = 16,
        augment: bool = True,
        alphabet: str = "keyboard",
        pixels_per_frame: int = 4,
        on_unreadable: OnUnreadable = "error",
        seed: int = 0,
        num_workers: int = 0,
        cache_dir: str | None = None,
    ) -> None:
        super().__init__()
        self._name = corpus
        self._builder = builder_of(BUILDERS, corpus)
        for name, value in (("batch_lines", batch_lines), ("pixels_per_frame", pixels_per_frame)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self._arguments = _arguments(
            corpus,
            self._builder,
            corpus_args or {},
            {
                "height": height,
                "on_unreadable": on_unreadable,
                "cache_dir": cache_dir or str(default_cache_dir()),
            },
        )
        self.height = height
        self.batch_lines = batch_lines
        self.augmentation = Augmentation(seed=seed) if augment else None
        self.pixels_per_frame = pixels_per_frame
        self.on_unreadable: OnUnreadable = on_unreadable
        self.seed = seed
        self.num_workers = num_workers
        self.too_long: list[Problem] = []
        self._characters = alphabet
        self._alphabet: Alphabet | None = None
        if alphabet != "corpus":
            self._alphabet = Alphabet(KEYBOARD if alphabet == "keyboard" else alphabet)

    def _build(self) -> Corpus:
        """Build the corpus, its texts written with the alphabet."""
        corpus = self._builder(**self._arguments)
        if self.fitted:
            self._alphabet = Alphabet(self.fitted["alphabet"])
        elif self._alphabet is None:
            if not corpus.train:
                raise self._missing("train")
            texts = (line.text for lines in corpus.splits.values() for line in lines)
            self._alphabet = Alphabet.of_texts(texts)
        corpus = written_with(self._alphabet, corpus, self.on_unreadable)
        corpus, self.too_long = with_room(self._alphabet, corpus, self.pixels_per_frame)
        return corpus

    def _fitted(self, corpus: Corpus) -> dict[str, Any]:
        texts = [line.text for line in corpus.train]
        return {"alphabet": self.alphabet.characters, "texts": packed(texts)}

    def _split_hint(self, split: str) -> str:
        return {
            "synthetic": f"give corpus_args.{split}_lines",
            "manifest": f'its lines in the manifest have "split": "{split}"',
            "iam": f"its lists are {lists_of(split)}",
            "folder": f"its lines are in the subfolder {split}, or all are with "
            f"corpus_args.split={split}",
        }[self._name]

    @property
    def texts(self) -> list[str]:
        """Texts of the lines that the model was trained on, for language models.

        Raises:
            ValueError: there is neither a train split nor a checkpoint.
        """
        if self.fitted:
            return [str(text) for text in unpacked(self.fitted["texts"])]
        return [line.text for line in self.train]

    @property
    def alphabet(self) -> Alphabet:
        """Characters of the targets; the alphabet of a corpus is known once that is built."""
        if self._alphabet is None:
            _ = self.corpus
        assert self._alphabet is not None
        return self._alphabet

    @property
    def train(self) -> list[Line]:
        """Lines of the train split; ``Batch.index`` counts in this list."""
        train: list[Line] = self.split("train")
        return train

    @property
    def valid(self) -> list[Line]:
        """Lines of the valid split."""
        valid: list[Line] = self.split("valid")
        return valid

    @property
    def test(self) -> list[Line]:
        """Lines of the test split."""
        test: list[Line] = self.split("test")
        return test

    def prepare_data(self) -> None:
        """Fill the cache before training; to evaluate, it is filled at the first use."""
        if self.is_fitting:
            _ = self.corpus

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches of this rank, in another order each epoch."""
        return self._loader(self.train, self.augmentation, shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Batches of this rank, in a fixed order."""
        return self._loader(self.valid)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Batches of this rank, in a fixed order."""
        return self._loader(self.test)

    def _loader(
        self,
        lines: list[Line],
        augmentation: Augmentation | None = None,
        *,
        shuffle: bool = False,
    ) -> DataLoader[Batch]:
        dataset = LineDataset(lines, self.alphabet, augmentation, self.pixels_per_frame)
        rank, world_size = rank_and_world_size(self.trainer)
        sampler = LineBatchSampler(
            dataset.widths,
            batch_lines=self.batch_lines,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            seed=self.seed,
        )
        return rank_loader(dataset, sampler, num_workers=self.num_workers)


def _arguments(
    corpus: str,
    builder: Callable[..., Corpus],
    given: Mapping[str, Any],
    own: Mapping[str, Any],
) -> dict[str, Any]:
    """Arguments of the builder: those given, and those that the data module itself has."""
    both = sorted(given.keys() & own.keys())
    if both:
        raise ValueError(f"{', '.join(both)} must be given to TextLines, not in corpus_args")
    known = inspect.signature(builder).parameters
    arguments = {**given, **{k: v for k, v in own.items() if k in known}}
    check_arguments(corpus, builder, arguments, own.keys())
    return arguments
