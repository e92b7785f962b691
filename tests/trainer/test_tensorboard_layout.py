"""TensorBoard finds our values arranged by tier, as read back from its event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from tests.ranks import run_ranks
from tests.trainer.fitting import BMUF_GTC, Net, loader, make_trainer

pytest.importorskip("tensorboard")


def _fit_twice(folder: str) -> None:
    loggers: list[Any] = [TensorBoardLogger(folder, name=name, version=0) for name in ("a", "b")]
    strategy = BMUF_GTC(group_size=1, block_size=2)
    trainer = make_trainer(strategy, logger=[*loggers, CSVLogger(folder)], log_every_n_steps=1)
    for epochs in (1, 2):
        trainer.fit_loop.max_epochs = epochs
        trainer.fit(Net(), loader(4))


def _read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def test_layout_is_written_once_to_every_logger_of_tensorboard(tmp_path: Path) -> None:
    from tensorboard.plugins.custom_scalar import layout_pb2

    run_ranks(_fit_twice, 2, str(tmp_path))
    for name in ("a", "b"):
        events = _read(tmp_path / name / "version_0")
        (written,) = events.Tensors("custom_scalars__config__")
        layout = layout_pb2.Layout()
        layout.ParseFromString(written.tensor_proto.string_val[0])
        titles = [category.title for category in layout.category]
        assert titles == ["Both tiers", "Within a group", "Across groups", "GTC", "Block"]
        assert all(chart.multiline.tag for category in layout.category for chart in category.chart)
        # The values themselves are there, one for each step that was logged, and are those of CSV.
        steps = [event.step for event in events.Scalars("hier/across/payload_bytes")]
        assert steps == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8]
        elapsed = [event.value for event in events.Scalars("hier/elapsed_seconds")][:5]
        assert elapsed == sorted(elapsed) and elapsed[0] > 0
