"""Tests of the text line data module, on one rank and on two, and with recorded lines."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from lightning import LightningModule
from torch import nn

from examples.ocr.data_module import TextLines
from examples.ocr.line import Batch
from examples.quiet import quiet_trainer
from tests.examples.line_images import save
from tests.examples.manifests import SPLITS, write_manifest
from tests.ranks import run_ranks

SMALL = {"train_lines": 37, "valid_lines": 5, "test_lines": 4}


def _small(cache_dir: Path | str, **settings) -> TextLines:
    return TextLines(
        "synthetic", dict(SMALL), height=20, batch_lines=4, cache_dir=str(cache_dir), **settings
    )


class Collector(LightningModule):
    """A model of the mean ink that records the lines of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        if len(self.seen) <= self.current_epoch:
            self.seen.append([])
        self.seen[self.current_epoch] += batch.index.tolist()
        return self.output(batch.images.mean().view(1)).sum()

    def validation_step(self, batch: Batch, _: int) -> None:
        self.log("lines", float(len(batch.index)), batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit_on_two_ranks(cache_dir: str) -> list[list[int]]:
    model = Collector()
    trainer = quiet_trainer("ddp", devices=2, max_epochs=2, use_distributed_sampler=True)
    trainer.fit(model, datamodule=_small(cache_dir, seed=2))
    return model.seen


def test_two_ranks_share_the_lines(tmp_path: Path) -> None:
    outcomes = run_ranks(fit_on_two_ranks, 2, str(tmp_path))
    for epoch in range(2):
        seen = [outcome[epoch] for outcome in outcomes]
        assert sorted(seen[0] + seen[1]) == list(range(37))
        assert abs(len(seen[0]) - len(seen[1])) <= 5
    assert outcomes[0][0] != outcomes[0][1]


def test_index_names_lines_and_augmentation_is_for_training_alone(tmp_path: Path) -> None:
    data = _small(tmp_path)
    plain = _small(tmp_path, augment=False)
    for module, split in ((plain, "train"), (data, "val"), (data, "test")):
        lines = {"train": module.train, "val": module.valid, "test": module.test}[split]
        for batch in getattr(module, f"{split}_dataloader")():
            for row, position in enumerate(batch.index.tolist()):
                line = lines[position]
                assert data.alphabet.decode(batch.targets[row].tolist()) == line.text
                ink = (255 - torch.from_numpy(line.image).float()) / 255
                assert torch.allclose(batch.images[row, 0, :, : line.width], ink)
    changed = next(iter(data.train_dataloader()))
    line = data.train[int(changed.index[0])]
    assert int(changed.widths[0]) != line.width or not torch.equal(
        changed.images[0, 0, :, : line.width], torch.from_numpy(255 - line.image) / 255
    )


def _manifest(folder: Path, texts: list[str]) -> str:
    entries = [
        {"path": f"{split}{i}.png", "text": text, "split": split}
        for split in SPLITS
        for i, text in enumerate(texts)
    ]
    for entry in entries:
        save(folder / entry["path"], width=40, height=20)
    write_manifest(folder, entries)
    return str(folder)


def test_lines_that_are_too_short_for_ctc_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # 40 pixels give 10 outputs: enough for ten letters, not for six equal ones.
    path = _manifest(tmp_path, ["abcdefghij", "aaaaaa", "abcdefghijk", "ok"])
    with caplog.at_level(logging.WARNING):
        data = TextLines("manifest", {"path": path}, height=20, cache_dir=str(tmp_path / "c"))
        data.setup("fit")
    assert [line.text for line in data.valid] == ["abcdefghij", "ok"]
    assert len(data.too_long) == 6
    assert data.too_long[0] == (
        "train: train1.png",
        "CTC needs 11 outputs, 40 pixels give 10",
    )
    assert "6 of 12 lines left out of corpus" in caplog.text
    assert "test: test2.png: CTC needs 11 outputs" in caplog.text
    # The remaining lines have a finite loss, even for uniform outputs.
    batch = next(iter(data.val_dataloader()))
    log_probs = torch.full((10, len(batch.index), len(data.alphabet)), 1 / 96).log()
    loss = nn.functional.ctc_loss(
        log_probs, batch.targets, -(-batch.widths // 4), batch.target_lengths, reduction="none"
    )
    assert torch.isfinite(loss).all()


def test_texts_outside_the_alphabet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = _manifest(tmp_path, ["été’", "漢"])

    def module(**settings) -> TextLines:
        return TextLines(
            "manifest", {"path": path}, height=20, cache_dir=str(tmp_path / "c"), **settings
        )

    with pytest.raises(ValueError, match=r"test: test1\.png: characters \['漢'\]"):
        module().setup("fit")
    with caplog.at_level(logging.WARNING):
        skipped = module(on_unreadable="skip")
        assert [line.text for line in skipped.train] == ["ete'"]
    assert "3 lines left out" in caplog.text
    whole = module(alphabet="corpus")
    assert whole.alphabet.characters == "té’漢"
    assert [line.text for line in whole.train] == ["été’", "漢"]
    assert len(module(alphabet="abc").alphabet) == 4
