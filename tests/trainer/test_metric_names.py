"""Tests that docs/metrics.md lists the logged names, and the layout of charts in TensorBoard."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import DummyExperiment, Logger

import lightning_hier as lh
from lightning_hier.callbacks.tensorboard_layout import layout
from tests.ranks import run_ranks
from tests.trainer.fitting import BMUF_GTC, Net, TwoOptimizers, loader, make_trainer
from tests.trainer.metric_names import read_document


class Keeps(Logger):
    """A logger with only the abstract methods, which keeps the metrics of the strategy."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.values: list[Any] = []

    @property
    def name(self) -> str:
        return "keeps"

    @property
    def version(self) -> int:
        return 0

    @property
    def experiment(self) -> Any:
        return DummyExperiment()

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        ours = {name: value for name, value in metrics.items() if name.startswith("hier")}
        self.names |= set(ours)
        self.values += ours.values()

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None: ...


def _runs() -> list[tuple[Any, Net, dict[str, Any]]]:
    """Runs that send every kind of message."""
    limit = timedelta(seconds=120)
    bmuf = lh.BMUF(
        block_momentum=0.5, block_size=2, block_rule=lh.QSR(coefficient=0.1, max_block_size=2)
    )
    adam: dict[str, Any] = {"block_sync": lh.BMUFAdam(block_size=2, local_beta1="keep")}
    gtc: dict[str, Any] = {"dense_below": 9, "density": 0.2, "block_momentum": 0.5}
    unused: dict[str, Any] = {"find_unused_parameters": True}
    averages: dict[str, Any] = {"callbacks": [EMAWeightAveraging()]}
    tiers = partial(lh.HierarchicalStrategy, warmup_steps=0)
    return [
        (tiers(group_size=1, block_sync=bmuf, **unused), TwoOptimizers(batchnorm=True), averages),
        (
            lh.BMUFGTCStrategy(group_size=2, block_size=2, warmup_steps=0, **gtc),
            Net(batchnorm=True),
            averages,
        ),
        (tiers(group_size=2, **adam), Net(optimizer="Adam", lr=0.01), {}),
        (
            tiers(group_size="world", **unused | {"warmup_steps": 1}),
            TwoOptimizers(batchnorm=True),
            {},
        ),
        (lh.PSPStrategy(timeout=limit), Net(batchnorm=True), {"enable_checkpointing": True}),
        (lh.TwoStageASGDStrategy(group_size=2, timeout=limit), Net(batchnorm=True), {}),
    ]


def _logged(folder: str) -> set[str]:
    """Return the names of all runs, and check that each value is a plain number."""
    names: set[str] = set()
    for strategy, model, settings in _runs():
        logger = Keeps()
        trainer = make_trainer(
            strategy, logger=logger, log_every_n_steps=2, default_root_dir=folder, **settings
        )
        trainer.fit(model, loader(4))
        assert all(type(value) in (int, float) for value in logger.values)
        names |= logger.names
    return names


def test_every_name_is_documented_and_drawn_and_every_documented_name_is_logged(
    tmp_path: Path,
) -> None:
    """Each host has two ranks."""
    names = run_ranks(_logged, 4, str(tmp_path), ranks_per_node=2)
    document = read_document()
    matches = {name: document.match(name) for name in names[0]}
    assert {name for name, documented in matches.items() if len(documented) != 1} == set()
    logged = {name for documented in matches.values() for name in documented}
    # No message was refused in these runs.
    assert set(document.names) - logged == {"hier/refused/<reason>"}
    assert names[1:] == [set()] * 3  # only rank 0 logs
    # The charts of TensorBoard draw every name, and each of them has data in some run.
    tags = [
        tag
        for charts in layout(["threshold", "block_size", "min_pushes", "push_period"]).values()
        for _, expressions in charts.values()
        for tag in expressions
    ]
    undrawn = {name for name in names[0] if not any(re.match(tag, name) for tag in tags)}
    assert undrawn == set()
    empty = {tag for tag in tags if not any(re.match(tag, name) for name in names[0])}
    assert empty == {"^hier/refused/.+$"}


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
    pytest.importorskip("tensorboard")
    from tensorboard.plugins.custom_scalar import layout_pb2

    run_ranks(_fit_twice, 2, str(tmp_path))
    for name in ("a", "b"):
        events = _read(tmp_path / name / "version_0")
        (written,) = events.Tensors("custom_scalars__config__")
        written_layout = layout_pb2.Layout()
        written_layout.ParseFromString(written.tensor_proto.string_val[0])
        titles = [category.title for category in written_layout.category]
        assert titles[1:] == ["Both tiers", "Within a group", "Across groups", "GTC", "Block"]
        assert all(
            chart.multiline.tag for category in written_layout.category for chart in category.chart
        )
        # The values are there, one for each logged step.
        steps = [event.step for event in events.Scalars("hier/across/payload_bytes")]
        assert steps == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8]
        assert [event.step for event in events.Scalars("hier/step/seconds")] == [1, 2, 3, 5, 6, 7]
        sent = [event.value for event in events.Scalars("hier/across/payload_bytes")][:5]
        by_step = [event.value for event in events.Scalars("hier/step/across/payload_bytes")][:3]
        assert by_step == [b - a for a, b in zip(sent[:3], sent[1:4], strict=True)]
        elapsed = [event.value for event in events.Scalars("hier/elapsed_seconds")][:5]
        assert elapsed == sorted(elapsed) and elapsed[0] > 0
