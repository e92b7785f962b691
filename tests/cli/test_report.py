"""Tests of `lightning-hier report`: one page of several runs, with the values of their logs."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

from lightning_hier.cli.report import run
from tests.cli.logged_runs import Row, training, write_csv, write_events
from tests.cli.report_page import ReportPage

SETTINGS = {
    "strategy": "bmuf",
    "class": "BMUFStrategy",
    "ranks": 4,
    "groups": 4,
    "ranks_per_group": 1,
    "block_size": 10,
}


def _report(out: Path, *args: Any) -> ReportPage:
    run([*map(str, args), "--out", str(out)])
    return ReportPage(out.read_text())


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """A run with blocks between groups, and one in a single group."""
    two_tiers = training(bytes_a_step=500, seconds_a_step=0.5, blocks=True)
    one_tier = training(bytes_a_step=0, seconds_a_step=0.25)
    return (
        write_csv(tmp_path / "bmuf" / "version_0", two_tiers, SETTINGS),
        write_csv(tmp_path / "ddp" / "version_0", one_tier),
    )


def _last_in_csv(folder: Path, name: str) -> float:
    with (folder / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]][-1]


def test_page_has_all_runs_and_metrics_and_needs_nothing_else(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    page = _report(tmp_path / "page.html", *runs)
    assert page.headings == [
        "Comparison of 2 runs",
        "Results",
        "train/loss",
        "valid/loss",
        "Communication",
        "Blocks",
        "Settings",
    ]
    assert {"bmuf/version_0", "ddp/version_0"} <= set(page.texts)
    for metric in ("train/loss", "valid/loss"):
        for axis in ("steps", "time", "bytes"):
            assert {(f"{metric}: over {axis}", n) for n in (0, 1)} <= set(page.lines)
    shares = "Communication: time waited for other ranks, percent"
    assert {(shares, 0), (shares, 1)} <= set(page.lines)
    assert [n for figure, n in page.lines if figure == "Blocks: norm of the global update"] == [0]
    assert page.addresses == []
    assert (tmp_path / "page.html").read_text().count(get_plotlyjs()) == 1


def test_numbers_are_those_of_the_files(runs: tuple[Path, Path], tmp_path: Path) -> None:
    page = _report(tmp_path / "page.html", *runs)
    rows = [row for row in page.values if row]
    assert len(rows) == 2
    names = {
        "train/loss": "train/loss",
        "valid/loss": "valid/loss",
        "time": "hier/elapsed_seconds",
        "in groups": "hier/group/payload_bytes",
        "between groups": "hier/across/payload_bytes",
    }
    for row, folder in zip(rows, runs, strict=True):
        assert {title: row[title] for title in names} == {
            title: _last_in_csv(folder, name) for title, name in names.items()
        }
        assert row["steps"] == 39
        assert row["waited"] == pytest.approx(0.2)
    text = " ".join(page.texts)
    assert "0.4321" in text
    assert "20 kB" in text  # 500 bytes a step between groups
    assert {"bmuf", "4 x 1", "block_size", "10", "lr", "0.125"} <= set(page.texts)


def test_lines_are_those_of_the_files(runs: tuple[Path, Path], tmp_path: Path) -> None:
    page = _report(tmp_path / "page.html", runs[0], "--metric", "valid/loss")
    over_steps, over_time, over_bytes = page.traces[:3]
    assert over_steps["x"] == [19, 39] and over_steps["y"] == [0.9, 0.4321]
    assert over_time["x"] == pytest.approx([10, 20])  # half a second a step
    assert over_bytes["x"] == pytest.approx([10, 20])
    labels = [layout["xaxis"]["title"]["text"] for layout in page.layouts[:3]]
    assert labels == ["step", "time (s)", "sent between groups (kB)"]


def test_values_far_apart_get_a_logarithmic_axis(tmp_path: Path) -> None:
    rows = [(step, {"loss": 100.0 ** (1 - step)}) for step in range(3)]
    page = _report(tmp_path / "page.html", write_csv(tmp_path / "run", rows))
    assert page.layouts[0]["yaxis"]["type"] == "log"
    assert page.layouts[0]["xaxis"]["type"] == "linear"


def test_metric_that_was_logged_once_is_in_the_table(tmp_path: Path) -> None:
    rows: list[Row] = [(step, {"valid/wer": 1.0 / step}) for step in (1, 2, 3)]
    folder = write_csv(tmp_path / "run", [*rows, (3, {"test/wer": 0.25, "test/seconds": 3.0})])
    page = _report(tmp_path / "page.html", folder)
    (row,) = (row for row in page.values if row)
    assert row["test/wer"] == 0.25
    assert "test/seconds" not in row
    assert page.headings == ["run", "Results", "valid/wer", "Settings"]


def test_given_names_and_metrics(runs: tuple[Path, Path], tmp_path: Path) -> None:
    names = ["one & only", "<two>"]
    page = _report(
        tmp_path / "page.html", *runs, "--names", *names, "--metric", "valid/loss", "train/loss"
    )
    assert page.headings[2:4] == ["valid/loss", "train/loss"]
    assert set(names) <= set(page.texts)
    assert "<two>" not in (tmp_path / "page.html").read_text()
    assert "bmuf/version_0" not in page.texts


def test_parent_folder_means_all_runs_in_it(runs: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    assert _report(tmp_path / "page" / "a.html", tmp_path).lines == (
        _report(tmp_path / "page" / "b.html", *runs).lines
    )


def test_event_files_give_the_values_of_csv(runs: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    events = write_events(tmp_path / "tb", training(bytes_a_step=500, seconds_a_step=0.5))
    page = _report(tmp_path / "page.html", runs[0], events)
    from_csv, from_events = (row for row in page.values if row)
    assert from_events.keys() == from_csv.keys()
    for name, value in from_csv.items():
        assert from_events[name] == pytest.approx(value, rel=1e-6), name  # float32 in event files


def test_missing_tensorboard_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tb"
    folder.mkdir()
    (folder / "events.out.tfevents.1.host.1.0").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing", None)
    name = "tensorboard.backend.event_processing.event_accumulator"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match="pip install tensorboard to read it$"):
        run([str(folder)])


def test_totals_of_a_resumed_run_are_added(tmp_path: Path) -> None:
    """Totals start at zero in each process."""
    rows = [
        (step, {"loss": 1.0, "hier/elapsed_seconds": t, "hier/across/payload_bytes": b})
        for step, t, b in [(1, 10.0, 100), (2, 20.0, 200), (3, 5.0, 40), (4, 15.0, 140)]
    ]
    (row,) = (
        row
        for row in _report(tmp_path / "page.html", write_csv(tmp_path / "run", rows)).values
        if row
    )
    assert (row["time"], row["between groups"]) == (35.0, 340.0)


def test_runs_without_metrics_of_the_package_are_shown(tmp_path: Path) -> None:
    rows = [(step, {"loss": 1.0 / step}) for step in (1, 2, 3)]
    page = _report(tmp_path / "page.html", write_csv(tmp_path / "run", rows))
    assert page.lines == [("loss: over steps", 0)]
    assert page.texts.count("nothing logged") == 2


def test_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    values = [3.0, float("nan"), 2.0, float("inf"), 1.0]
    rows = [(step, {"loss": value}) for step, value in enumerate(values)]
    page = _report(tmp_path / "page.html", write_csv(tmp_path / "run", rows))
    assert page.lines == [("loss: over steps", 0)]
    assert page.traces[0]["x"] == [0, 2, 4] and page.traces[0]["y"] == [3, 2, 1]


def test_long_runs_make_small_pages(tmp_path: Path) -> None:
    """Without plotly.js. The ends and the extremes of a line remain."""
    rows = [(step, {"loss": 1.0 + (step * 37 % 11) / 10}) for step in range(5000)]
    rows[2345][1]["loss"] = 7.0
    page = _report(tmp_path / "page.html", write_csv(tmp_path / "run", rows))
    assert (tmp_path / "page.html").stat().st_size - len(get_plotlyjs()) < 60_000
    assert page.traces[0]["x"][0] == 0 and page.traces[0]["x"][-1] == 4999
    assert (2345, 7.0) in zip(page.traces[0]["x"], page.traces[0]["y"], strict=True)


def test_missing_plotly_is_one_line(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ValueError, match=r"needs plotly: pip install '\.\[cli\]' in the folder"):
        run([str(runs[0])])


def _wrong_arguments(tmp_path: Path) -> Iterator[tuple[list[str], type[Exception], str]]:
    good = write_csv(tmp_path / "good", [(1, {"a/loss": 1.0, "b": 2.0}), (2, {"a/loss": 1.0})])
    empty = tmp_path / "empty"
    empty.mkdir()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "metrics.csv").write_text("step,loss\n1,good\n")
    yield [], ValueError, "at least one run"
    yield [str(tmp_path / "none")], OSError, "none is not a directory"
    yield [str(empty)], OSError, "no metrics.csv of a CSVLogger and no events"
    yield [str(broken)], ValueError, "metrics.csv, line 2: not in the format of CSVLogger"
    yield [str(good), "--metric", "c"], ValueError, "no run has logged 'c'; there is a/loss, b"
    yield [str(good), "--names", "x", "y"], ValueError, "2 names for 1 runs"
    yield [str(good), "--out", str(tmp_path / "no" / "p.html")], OSError, "No such file"


def test_errors_of_wrong_arguments(tmp_path: Path) -> None:
    for args, error, text in _wrong_arguments(tmp_path):
        with pytest.raises(error, match=text):
            run(args)
