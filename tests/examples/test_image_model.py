"""Tests of the image example: scores, data, and its command on two ranks."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from runpy import run_module

import lightning.pytorch as pl
import pytest
import torch
from torch.nn import functional

from examples.image.digits import Images, ResNetClassifier
from examples.quiet import quiet_trainer
from lightning_hier import HierarchicalStrategy
from tests.ranks import run_ranks


def scores_on_this_rank() -> tuple[float, float, float, float]:
    """Scores by the Trainer, and scores of all images of the split at once."""
    torch.set_num_threads(1)
    pl.seed_everything(0, verbose=False)
    strategy = HierarchicalStrategy(group_size="world", warmup_steps=0)
    trainer = quiet_trainer(strategy, devices=3)
    model, data = ResNetClassifier(channels=(4,)), Images(batch_images=7)
    logged = trainer.validate(model, data, verbose=False)[0]
    images, labels = [], []
    for rank in range(3):
        sampler = data.val_dataloader().sampler
        sampler.rank = rank
        for draw in sampler:
            of_batch = data.val_dataloader().dataset[draw]
            images.append(of_batch[0])
            labels.append(of_batch[1])
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


def printed_on_this_rank(strategy: str) -> str:
    """Output of the command after two epochs."""
    torch.set_num_threads(1)
    sys.argv = ["digits", f"--strategy={strategy}", "--ranks=2", "--epochs=2"]
    with redirect_stdout(io.StringIO()) as printed:
        run_module("examples.image.digits", run_name="__main__")
    return printed.getvalue()


@pytest.mark.parametrize("strategy", ["bmuf", "psp"])
def test_command_prints_the_test_accuracy_of_a_model_that_has_learnt(strategy: str) -> None:
    printed, of_second = run_ranks(printed_on_this_rank, 2, strategy)
    (accuracy,) = re.findall(r"test/accuracy\W+([\d.]+)", printed)
    assert float(accuracy) > 0.5
    assert "test/accuracy" not in of_second


def test_digits_are_divided_without_loss_and_the_same_each_time() -> None:
    data, again = Images(), Images(seed=1)
    for module in (data, again):
        module.setup("fit")
    splits = {name: split[list(range(len(split)))] for name, split in data.splits.items()}
    assert {name: len(labels) for name, (_, labels) in splits.items()} == {
        "train": 1197,
        "valid": 300,
        "test": 300,
    }
    images = torch.cat([of_split for of_split, _ in splits.values()])
    assert images.shape == (1797, 1, 8, 8)
    # 1797 digits of which no two are the same.
    assert len(images.flatten(1).unique(dim=0)) == 1797
    train = splits["train"][0]
    assert train.mean().abs() < 1e-4 and abs(train.std() - 1) < 1e-3
    assert torch.equal(again.splits["test"][[0]][0], splits["test"][0][:1])
