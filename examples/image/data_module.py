"""The DataModule of the image example, configured from a YAML file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch.utils.data import DataLoader

from examples.corpus_data import CorpusData, builder_of, check_arguments
from examples.image.augmentation import Augmentation
from examples.image.batching import Batch, ImageDataset, ImageSampler, mean_and_deviation
from examples.image.corpora.cifar10 import build_cifar10_corpus
from examples.image.corpora.digits import build_digits_corpus
from examples.image.corpora.mnist import build_mnist_corpus
from examples.image.corpus import Corpus, Split
from examples.rank_batches import rank_and_world_size, rank_loader

CorpusName = Literal["digits", "mnist", "cifar10"]

BUILDERS: dict[str, Callable[..., Corpus]] = {
    "digits": build_digits_corpus,
    "mnist": build_mnist_corpus,
    "cifar10": build_cifar10_corpus,
}

# Files of the train and valid splits, and of the test split, for messages.
_FILES = {
    "mnist": ("train-images-idx3-ubyte and train-labels-idx1-ubyte", "t10k-images-idx3-ubyte and "
              "t10k-labels-idx1-ubyte"),
    "cifar10": ("data_batch_1 to data_batch_5", "test_batch"),
}  # fmt: skip


class Images(CorpusData[Corpus]):
    """Normalised labelled images from one of three sources.

    Images are normalised by the mean and standard deviation of the train split. Every checkpoint
    contains them. Evaluation of a checkpoint therefore requires only the evaluated split.

    Every rank has the same number of batches, which an ``ImageSampler`` creates. Set
    ``use_distributed_sampler=False`` in the Trainer, because the data module already distributes
    the batches.

    Args:
        corpus: ``"digits"``, ``"mnist"`` or ``"cifar10"``.
        corpus_args: arguments of ``build_digits_corpus``, ``build_mnist_corpus`` or
            ``build_cifar10_corpus``.
        batch_images: maximum number of images in a batch of one rank.
        shift: maximum random shift of training images in each direction, in pixels.
        mirror: flip training images horizontally with probability 1/2.
        seed: seed of the order of the batches and of the augmentation. The seed of the splits is
            an argument of the corpus.
        num_workers: number of processes that load batches.

    Raises:
        ValueError: if the corpus is unknown, its arguments are wrong, or a number is out of range.
            The message lists the valid arguments.
    """

    def __init__(
        self,
        corpus: CorpusName = "digits",
        corpus_args: dict[str, Any] | None = None,
        batch_images: int = 16,
        shift: int = 0,
        mirror: bool = False,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self._builder = builder_of(BUILDERS, corpus)
        if batch_images < 1:
            raise ValueError(f"batch_images must be at least 1, got {batch_images}")
        self._name = corpus
        self._arguments = corpus_args or {}
        check_arguments(corpus, self._builder, self._arguments)
        self.batch_images = batch_images
        self.augmentation = Augmentation(shift=shift, mirror=mirror) if shift or mirror else None
        self.seed = seed
        self.num_workers = num_workers

    def _build(self) -> Corpus:
        corpus = self._builder(**self._arguments)
        if self.fitted:
            self._mean, self._deviation = self.fitted["mean"], self.fitted["deviation"]
        elif corpus.train is None:
            raise self._missing("train")
        else:
            self._mean, self._deviation = mean_and_deviation(corpus.train)
        return corpus

    def _fitted(self, corpus: Corpus) -> dict[str, Any]:
        return {"mean": self._mean, "deviation": self._deviation}

    def _split_hint(self, split: str) -> str:
        train, test = _FILES.get(self._name, ("", ""))
        return f"its files are {test if split == 'test' else train}"

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a different order in each epoch."""
        return self._loader(self.split("train"), self.augmentation, shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a fixed order."""
        return self._loader(self.split("valid"))

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a fixed order."""
        return self._loader(self.split("test"))

    def _loader(
        self, split: Split, augmentation: Augmentation | None = None, *, shuffle: bool = False
    ) -> DataLoader[Batch]:
        rank, world_size = rank_and_world_size(self.trainer)
        sampler = ImageSampler(
            len(split),
            batch_images=self.batch_images,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            seed=self.seed,
        )
        dataset = ImageDataset(
            split,
            mean=self._mean,
            deviation=self._deviation,
            augmentation=augmentation,
            seed=self.seed,
        )
        return rank_loader(dataset, sampler, num_workers=self.num_workers)
