"""Tests of `lightning-hier measure`: its output file, and errors that end it on every rank."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

import lightning_hier.cli
from benchmarks.hosts import hosts
from benchmarks.launch import run_module
from lightning_hier.cli.measure.command import run
from lightning_hier.planning import Measurement, Workload
from tests.ranks import run_ranks


class Momentum(BoringModel):
    """66 parameters of float32, a buffer, SGD with momentum."""

    def __init__(self, *, fails_on: int | None = None) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(5))
        self.fails_on = fails_on

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.fails_on is not None and os.environ["RANK"] == str(self.fails_on):
            raise RuntimeError("on purpose")
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:  # type: ignore[override]
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def config(folder: Path, *, fails_on: int | None = None) -> str:
    """Write the YAML of a training on many ranks with checkpoints, which `measure` overrides."""
    path = folder / "train.yaml"
    text = {
        "model": {
            "class_path": "tests.cli.test_measure.Momentum",
            "init_args": {"fails_on": fails_on},
        },
        "data": {"class_path": "lightning.pytorch.demos.boring_classes.BoringDataModule"},
        "trainer": {
            "strategy": "bmuf_gtc",
            "devices": 8,
            "num_nodes": 16,
            "default_root_dir": str(folder),
            "callbacks": [{"class_path": "lightning.pytorch.callbacks.ModelCheckpoint"}],
        },
    }
    path.write_text(json.dumps(text))
    return str(path)


def _measure(folder: str, *args: str) -> str:
    output = io.StringIO()
    with redirect_stdout(output):
        run(["--out", f"{folder}/network.json", "--accelerator", "cpu", *args])
    return output.getvalue()


def test_two_hosts_of_two(tmp_path: Path) -> None:
    training = config(tmp_path)
    outputs = run_ranks(
        _measure, 4, str(tmp_path), "--config", training, "--steps", "8", ranks_per_node=2
    )
    measurement = Measurement.from_json((tmp_path / "network.json").read_text())
    assert (measurement.hosts, measurement.devices) == (2, 2)
    assert measurement.within is not None and measurement.between is not None
    assert measurement.workload is not None and measurement.workload.step_s > 0
    assert measurement.workload == Workload(
        name="Momentum",
        parameters=66,
        buffers=5,
        step_s=measurement.workload.step_s,
        optimizer="sgd_momentum",
        on_cores=True,
    )
    assert "2 hosts of 2 ranks, gloo" in outputs[0] and "66 parameters" in outputs[0]
    assert not any(outputs[1:])
    # The training leaves no files.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["network.json", "train.yaml"]


@pytest.mark.slow
@pytest.mark.needs_netns
def test_measured_link_is_that_of_the_emulated_hosts(tmp_path: Path) -> None:
    """Headers take a few percent. A token bucket passes the first part of a message at once."""
    out = str(tmp_path / "network.json")
    with hosts(2, "40mbit") as two:
        run_module(
            *(two, 2, "lightning_hier", "measure", "--out", out, "--accelerator", "cpu"),
            folder=tmp_path,
        )
    measurement = Measurement.from_json(Path(out).read_text())
    assert measurement.within is not None and measurement.between is not None
    assert 0.8 < measurement.between.bytes_per_second / 5e6 < 1.1
    assert measurement.within.bytes_per_second > 10 * measurement.between.bytes_per_second


def test_without_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither torchrun nor SLURM has set variables of a job in this process."""
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    output = _measure(str(tmp_path), "--config", config(tmp_path), "--steps", "4")
    assert output.startswith("1 hosts of 1 ranks") and "66 parameters" in output
    measurement = Measurement.from_json((tmp_path / "network.json").read_text())
    assert measurement.workload is not None and measurement.workload.step_s > 0


def test_links_need_no_parser_of_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks can measure their links without the extra `cli`."""
    monkeypatch.setitem(sys.modules, "jsonargparse", None)
    # The modules are imported again. Afterwards the previous ones are restored.
    monkeypatch.setattr(lightning_hier, "cli", lightning_hier.cli)
    for name in [name for name in sys.modules if name.startswith("lightning_hier.cli")]:
        monkeypatch.delitem(sys.modules, name)
    importlib.import_module("lightning_hier.cli.measure.command")
    with pytest.raises(ImportError):
        importlib.import_module("lightning_hier.cli.lightning_cli")


def test_nothing_to_measure_is_refused(tmp_path: Path) -> None:
    error = run_ranks(_measure, 1, str(tmp_path), expect_failure=True)[0]
    assert "one rank has no links to measure: start several" in error


def test_training_that_fails_on_one_rank_ends_all(tmp_path: Path) -> None:
    training = config(tmp_path, fails_on=1)
    errors = run_ranks(_measure, 2, str(tmp_path), "--config", training, expect_failure=True)
    assert all("the step cannot be measured: RuntimeError: on purpose" in error for error in errors)


def test_too_few_steps_are_refused(tmp_path: Path) -> None:
    arguments = ("--config", config(tmp_path), "--steps", "3")
    error = run_ranks(_measure, 1, str(tmp_path), *arguments, expect_failure=True)[0]
    assert "training ended after 3 steps, but at least 4 are needed" in error


def _unequal(folder: str) -> None:
    if os.environ["RANK"] == "2":
        os.environ.update(GROUP_RANK="1", LOCAL_RANK="0")
    _measure(folder)


def test_unequal_hosts_are_refused_on_every_rank(tmp_path: Path) -> None:
    errors = run_ranks(_unequal, 3, str(tmp_path), expect_failure=True)
    assert all("got 2 on host 0, 1 on host 1" in error for error in errors)
