"""How good a model is, found by one rank alone."""

from __future__ import annotations

import torch

from examples.image.batching import ImageDataset, ImageSampler, mean_and_deviation
from examples.image.corpus import Corpus
from examples.image.model import ResNetClassifier


@torch.no_grad()
def test_accuracy(model: ResNetClassifier, corpus: Corpus) -> float:
    """Share of the test split that is classified rightly, without asking another rank.

    ``Trainer.test`` would wait for all ranks of the job, those that have died too.

    Raises:
        ValueError: there is no train or no test split.
    """
    if corpus.train is None or corpus.test is None:
        raise ValueError(f"corpus {corpus.name} must have a train and a test split")
    mean, deviation = mean_and_deviation(corpus.train)
    dataset = ImageDataset(corpus.test, mean=mean, deviation=deviation)
    model.eval()
    right = 0
    for draw in ImageSampler(len(dataset), batch_images=100, shuffle=False):
        batch = dataset[draw]
        right += int((model(batch.images).argmax(1) == batch.labels).sum())
    return right / len(dataset)
