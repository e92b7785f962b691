"""The DataModule of the text line example, configured from a YAML file."""

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
from examples.ocr.targets import exclude_too_long, normalise_texts
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
    """Lines of text from one of four sources, in batches of lines of similar width.

    Every rank has the same number of batches, which a ``LineBatchSampler`` creates. Set
    ``use_distributed_sampler=False`` in the Trainer, because the data module already distributes
    the batches. Images are read or rendered by one rank of each host, and cached for the others.

    A line whose text needs more frames than the line has would have an infinite CTC loss. Such
    lines are excluded from every split, with a warning, and listed in ``too_long``.

    Every checkpoint contains the alphabet and the texts of the train split. Evaluation of a
    checkpoint therefore requires only the evaluated split.

    Args:
        corpus: ``"synthetic"``, ``"manifest"``, ``"iam"`` or ``"folder"``.
        corpus_args: arguments of ``build_synthetic_corpus``, ``build_manifest_corpus``,
            ``build_iam_corpus`` or ``build_folder_corpus``, except those that are arguments here.
        height: height of all images in pixels (60 in bmuf_adam 3.1).
        batch_lines: maximum number of lines in a batch of one rank.
        augment: distort the images of the train split slightly, differently in each epoch.
        alphabet: ``"keyboard"``: the 95 characters of bmuf_adam 3.1. ``"corpus"``: all characters
            of all splits that the corpus has in training; evaluation takes them from the
            checkpoint. Any other string: its characters.
        pixels_per_frame: width of an output frame of the model in pixels (its ``subsample``).
        on_unreadable: treatment of lines that cannot be read, or whose texts contain characters
            outside the alphabet. ``"error"``: raise an error. ``"skip"``: exclude the lines, with a
            warning. Both messages name the lines.
        seed: seed of the order of the batches and of the augmentation.
        num_workers: number of processes that load batches.
        cache_dir: directory of the cache. None: the user's cache (``default_cache_dir``).

    Attributes:
        too_long: names of the lines that are excluded because their texts need too many frames,
            with the reasons. Empty until the corpus is built.

    Raises:
        ValueError: if the corpus is unknown, its arguments are wrong, or a number is out of range.
            The message lists the valid arguments.
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
        """Build the corpus, with texts that contain only characters of the alphabet."""
        corpus = self._builder(**self._arguments)
        if self.fitted:
            self._alphabet = Alphabet(self.fitted["alphabet"])
        elif self._alphabet is None:
            if not corpus.train:
                raise self._missing("train")
            texts = (line.text for lines in corpus.splits.values() for line in lines)
            self._alphabet = Alphabet.of_texts(texts)
        corpus = normalise_texts(self._alphabet, corpus, self.on_unreadable)
        corpus, self.too_long = exclude_too_long(self._alphabet, corpus, self.pixels_per_frame)
        return corpus

    def _fitted(self, corpus: Corpus) -> dict[str, Any]:
        texts = [line.text for line in corpus.train]
        return {"alphabet": self.alphabet.characters, "texts": packed(texts)}

    def _split_hint(self, split: str) -> str:
        return {
            "synthetic": f"set corpus_args.{split}_lines",
            "manifest": f'its lines in the manifest have "split": "{split}"',
            "iam": f"its lists are {lists_of(split)}",
            "folder": f"its lines are in the subdirectory {split}, or in any directory with "
            f"corpus_args.split={split}",
        }[self._name]

    @property
    def texts(self) -> list[str]:
        """Texts of the train split, for language models.

        Raises:
            ValueError: if there is neither a train split nor a checkpoint.
        """
        if self.fitted:
            return [str(text) for text in unpacked(self.fitted["texts"])]
        return [line.text for line in self.train]

    @property
    def alphabet(self) -> Alphabet:
        """Characters of the targets. Builds the corpus if the alphabet depends on it."""
        if self._alphabet is None:
            _ = self.corpus
        assert self._alphabet is not None
        return self._alphabet

    @property
    def train(self) -> list[Line]:
        """Lines of the train split, in the order of ``Batch.index``."""
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
        """Fill the cache before training. In evaluation, the first use of the corpus fills it."""
        if self.is_fitting:
            _ = self.corpus

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a different order in each epoch."""
        return self._loader(self.train, self.augmentation, shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a fixed order."""
        return self._loader(self.valid)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a fixed order."""
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
    corpus_args: Mapping[str, Any],
    module_args: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the arguments of the builder: ``corpus_args``, and its part of ``module_args``."""
    duplicates = sorted(corpus_args.keys() & module_args.keys())
    if duplicates:
        raise ValueError(f"{', '.join(duplicates)} must be given to TextLines, not in corpus_args")
    parameters = inspect.signature(builder).parameters
    shared = {name: value for name, value in module_args.items() if name in parameters}
    arguments = {**corpus_args, **shared}
    check_arguments(corpus, builder, arguments, module_args.keys())
    return arguments
