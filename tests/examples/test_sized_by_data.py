"""Sizes of the examples' models: given, taken from the data, or missing."""

from __future__ import annotations

import pytest
import torch

from examples.acoustic.models import LSTMAcousticModel
from examples.image.model import ResNetClassifier
from examples.ocr.model import DarkNetDBLSTM


class FakeTrainer:
    """A Trainer whose data module is of two sizes."""

    def __init__(self) -> None:
        self.datamodule = type("Data", (), {"corpus": None})()
        self.datamodule.corpus = type("Corpus", (), {"num_classes": 3, "channels": 2})()


def test_given_sizes_make_the_layers_at_once() -> None:
    model = ResNetClassifier(num_classes=3, image_channels=2, channels=(4,))
    network = model.network
    model.configure_model()
    assert model.network is network


def test_missing_sizes_come_from_the_data_and_given_ones_stay() -> None:
    model = ResNetClassifier(num_classes=7, channels=(4,))
    assert not list(model.parameters())
    model._trainer = FakeTrainer()  # type: ignore[assignment]
    model.configure_model()
    assert model(torch.zeros(1, 2, 8, 8)).shape == (1, 7)
    assert (model.hparams["num_classes"], model.hparams["image_channels"]) == (7, 2)
    assert model.hparams_initial["image_channels"] == 2


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (ResNetClassifier(), "num_classes, image_channels of ResNetClassifier"),
        (LSTMAcousticModel(feature_dim=4), "num_senones of LSTMAcousticModel"),
        (DarkNetDBLSTM(num_classes=4), "height of DarkNetDBLSTM"),
    ],
)
def test_sizes_that_nobody_tells_are_named(model: ResNetClassifier, names: str) -> None:
    with pytest.raises(ValueError, match=f"{names} must be given"):
        model.configure_model()
