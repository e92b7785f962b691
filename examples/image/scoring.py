"""Test accuracy of a model, computed by one rank."""

from __future__ import annotations

import torch

from examples.image.batching import ImageDataset, ImageSampler, mean_and_deviation
from examples.image.corpus import Corpus
from examples.image.model import ResNetClassifier


@torch.no_grad()
def test_accuracy(model: ResNetClassifier, corpus: Corpus) -> float:
    """Return the accuracy on the test split, from 0 to 1, without communication.

    ``Trainer.test`` would wait for all ranks, including those that have failed.

    Raises:
        ValueError: if there is no train split or no test split.
    """
    if corpus.train is None or corpus.test is None:
        raise ValueError(f"corpus {corpus.name} must have a train and a test split")
    mean, deviation = mean_and_deviation(corpus.train)
    dataset = ImageDataset(corpus.test, mean=mean, deviation=deviation)
    model.eval()
    correct = 0
    for index in ImageSampler(len(dataset), batch_images=100, shuffle=False):
        batch = dataset[index]
        correct += int((model(batch.images).argmax(1) == batch.labels).sum())
    return correct / len(dataset)
