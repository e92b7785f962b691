"""Tests of the image example's model: shapes, optimizer, training, scores, command line."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from torch.nn import functional

from examples.image.data_module import Images
from examples.image.model import ResNetClassifier
from examples.quiet import quiet_trainer
from lightning_hier import HierarchicalStrategy
from tests.examples import command_lines
from tests.examples.command_lines import EXAMPLES, run
from tests.ranks import run_ranks

CONFIGS = EXAMPLES / "image" / "configs"
SIZES = {"num_classes": 10, "image_channels": 1}


def small_run(directory: Path, *more: str, command: str = "fit") -> list[str]:
    """Arguments of a run of the digits config that takes a second or two."""
    config, small = CONFIGS / "digits.yaml", ["--model.channels=[4]", "--data.batch_images=64"]
    return command_lines.small_run(config, directory, *small, *more, command=command)


def scores_on_this_rank() -> tuple[float, float, float, float]:
    """Scores by the Trainer, and scores of all images of the split at once."""
    torch.set_num_threads(1)
    pl.seed_everything(0, verbose=False)
    strategy = HierarchicalStrategy(group_size="world", warmup_steps=0)
    trainer = quiet_trainer(strategy, devices=3)
    model, data = ResNetClassifier(**SIZES, channels=(4,)), Images(batch_images=7)
    logged = trainer.validate(model, data, verbose=False)[0]
    images, labels = [], []
    for rank in range(3):
        sampler = data.val_dataloader().sampler
        sampler.rank = rank
        for draw in sampler:
            batch = data.val_dataloader().dataset[draw]
            images.append(batch.images)
            labels.append(batch.labels)
    with torch.no_grad():
        logits, wanted = model.eval()(torch.cat(images)), torch.cat(labels)
    accuracy = (logits.argmax(1) == wanted).float().mean().item()
    loss = functional.cross_entropy(logits, wanted).item()
    return logged["valid/accuracy"], logged["valid/loss"], accuracy, loss


def test_scores_weigh_all_images_of_all_ranks_alike() -> None:
    """300 images on 3 ranks make 45 batches of 6 or 7."""
    for accuracy, loss, wanted_accuracy, wanted_loss in run_ranks(scores_on_this_rank, 3):
        assert accuracy == pytest.approx(wanted_accuracy, abs=1e-6)
        assert loss == pytest.approx(wanted_loss, rel=1e-5)


def fit_on_this_rank(directory: str, strategy: str) -> list[float]:
    torch.set_num_threads(1)
    arguments = [f"--trainer.strategy={strategy}", "--trainer.devices=2"]
    cli = run(small_run(Path(directory), *arguments))
    return [float(each.detach().double().sum()) for each in cli.model.parameters()]


def test_servers_hold_a_model_that_was_sized_by_the_data(tmp_path: Path) -> None:
    """Synchronous strategies are tested with the other examples."""
    first, second = run_ranks(fit_on_this_rank, 2, str(tmp_path), "psp")
    assert first == second and len(first) > 4


def test_digits_are_divided_without_loss_and_the_same_each_time() -> None:
    data, again = Images(), Images(seed=1)
    for module in (data, again):
        module.setup("fit")
    splits = {name: split[list(range(len(split)))] for name, split in data.splits.items()}
    assert {name: len(batch.labels) for name, batch in splits.items()} == {
        "train": 1197,
        "valid": 300,
        "test": 300,
    }
    images = torch.cat([batch.images for batch in splits.values()])
    assert images.shape == (1797, 1, 8, 8)
    # 1797 digits of which no two are the same.
    assert len(images.flatten(1).unique(dim=0)) == 1797
    train = splits["train"].images
    assert train.mean().abs() < 1e-4 and abs(train.std() - 1) < 1e-3
    assert torch.equal(again.splits["test"][[0]].images, splits["test"].images[:1])
