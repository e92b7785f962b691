"""Tests of the panel of recognised lines: its picture, its logging, and ranks without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader

from examples.ocr.line import Batch
from examples.ocr.panel import RIGHT, WRONG, LinePanel, PanelLine, draw_panel
from examples.quiet import quiet_trainer

INK = np.zeros((10, 30), dtype=np.uint8)


def colours(picture: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(pixel) for pixel in picture.reshape(-1, 3).tolist()}


def test_right_and_wrong_hypotheses_have_colours_of_their_own() -> None:
    right = colours(draw_panel([PanelLine(INK, "abc", "abc")]))
    wrong = colours(draw_panel([PanelLine(INK, "abc", "abd")]))
    assert RIGHT in right and WRONG not in right
    assert WRONG in wrong and RIGHT not in wrong


class Reader(LightningModule):
    """Recognises every line as its index, except the third one."""

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        numbers = batch.index.tolist()
        return {
            "references": [str(number) for number in numbers],
            "hypotheses": ["?" if number == 2 else str(number) for number in numbers],
        }

    test_step = validation_step


def loader() -> DataLoader[Batch]:
    batches = [
        Batch(
            torch.rand(2, 1, 8, 20),
            torch.tensor([20, 13]),
            torch.ones(2, 1, dtype=torch.int64),
            torch.ones(2, dtype=torch.int64),
            torch.tensor([2 * number, 2 * number + 1]),
        )
        for number in range(3)
    ]
    return DataLoader(batches, batch_size=None)


def logged(directory: Path) -> dict[str, list[Any]]:
    events = EventAccumulator(str(directory), size_guidance={"images": 0})
    events.Reload()
    return {name: events.Images(name) for name in events.Tags()["images"]}


def test_panels_of_validation_and_test_are_logged(tmp_path: Path) -> None:
    logger = TensorBoardLogger(str(tmp_path))
    panel = LinePanel(lines=3)
    run = quiet_trainer(logger=[CSVLogger(str(tmp_path)), logger], callbacks=[panel])
    run.validate(Reader(), loader(), verbose=False)
    assert [(line.reference, line.hypothesis) for line in panel._collected] == [
        ("0", "0"),
        ("1", "1"),
        ("2", "?"),
    ]
    assert [line.image.shape for line in panel._collected] == [(8, 20), (8, 13), (8, 20)]
    expected = draw_panel(panel._collected).shape
    run.test(Reader(), loader(), verbose=False)
    logger.experiment.flush()
    images = logged(Path(logger.log_dir))
    assert set(images) == {"valid/lines", "test/lines"}
    for events in images.values():
        assert [(event.height, event.width) for event in events] == [expected[:2]]


def test_only_the_first_rank_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = LinePanel()
    run = quiet_trainer(logger=TensorBoardLogger(str(tmp_path)), callbacks=[panel])
    monkeypatch.setattr(Trainer, "is_global_zero", False)
    run.validate(Reader(), loader(), verbose=False)
    assert panel._collected == []
