"""Tests of `lightning-hier measure`: its output file, and errors that end it on every rank."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from benchmarks.hosts import hosts
from benchmarks.launch import run_module
from lightning_hier.cli.measure import run
from lightning_hier.planning import Measurement
from tests.ranks import run_ranks


def _measure(folder: str) -> str:
    output = io.StringIO()
    with redirect_stdout(output):
        run(["--out", f"{folder}/network.json", "--accelerator", "cpu"])
    return output.getvalue()


def test_two_hosts_of_two(tmp_path: Path) -> None:
    outputs = run_ranks(_measure, 4, str(tmp_path), ranks_per_node=2)
    measurement = Measurement.from_json((tmp_path / "network.json").read_text())
    assert (measurement.hosts, measurement.devices) == (2, 2)
    assert measurement.within is not None and measurement.between is not None
    assert "hosts: 2, ranks of a host: 2" in outputs[0]
    assert not any(outputs[1:])


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


def test_nothing_to_measure_is_refused(tmp_path: Path) -> None:
    error = run_ranks(_measure, 1, str(tmp_path), expect_failure=True)[0]
    assert "there are no links to measure: start several ranks by torchrun" in error


def _unequal(folder: str) -> None:
    if os.environ["RANK"] == "2":
        os.environ.update(LOCAL_WORLD_SIZE="1", LOCAL_RANK="0")
    _measure(folder)


def test_unequal_hosts_are_refused_on_every_rank(tmp_path: Path) -> None:
    errors = run_ranks(_unequal, 3, str(tmp_path), expect_failure=True)
    assert all("the same number of ranks, got hosts of 1 and 3 ranks" in error for error in errors)
