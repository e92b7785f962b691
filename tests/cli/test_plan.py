"""Tests of `lightning-hier plan`: tables, files, errors, and numbers of pages that come from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import lightning_hier
from lightning_hier.cli.plan import run
from tests.docs.pages import Page

ARGS = (
    "--parameters 24.3e6 --step-s 0.15 --hosts 4 --devices 2 --between-mbit-s 1000 "
    "--within-gbit-s 100 --copy-gbyte-s 300"
).split()


def test_table_reasons_and_all_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    run([*ARGS, "--json", str(file)])
    printed, written = capsys.readouterr().out, json.loads(file.read_text())
    assert {each["strategy"] for each in written["predictions"]} == {
        *("ddp", "gtc", "model_averaging", "bmuf", "diloco", "bmuf_gtc", "diloco_fsdp"),
        *("two_stage_asgd", "psp"),
    }
    rows = [line.split(maxsplit=1)[0] for line in printed.splitlines() if line]
    assert {each["strategy"] for each in written["predictions"]} <= set(rows)
    assert "DDP would keep" in printed and "24.3 million parameters" in printed
    assert written["network"]["hosts"] == 4
    assert written["recommended"]["prediction"]["efficiency"] > 0.5


def test_yaml_gives_the_strategy(tmp_path: Path) -> None:
    file = tmp_path / "strategy.yaml"
    for more in (
        "",
        "--optimizer adam",
        "--optimizer adam --moments-every 3 --fragments 2",
        "--optimizer adam --overlap 5",
        "--optimizer adam --overlap 5 --group-size 1 --across-dtype int4",
        "--group-size 1",
        "--density 0.02",
        "--density 1 --group-size 2",
        "--between-mbit-s 5 --block-sync diloco --overlap 0 --across-dtype int4",
    ):
        run([*ARGS, *more.split(), "--yaml", str(file)])
        trainer = yaml.safe_load(file.read_text())["trainer"]
        assert (trainer["num_nodes"], trainer["devices"]) == (4, 2)
        _instance(trainer["strategy"])


def _instance(config: object) -> object:
    if not isinstance(config, dict) or "class_path" not in config:
        return config
    kind = getattr(lightning_hier, config["class_path"].removeprefix("lightning_hier."))
    return kind(**{name: _instance(value) for name, value in config.get("init_args", {}).items()})


def test_the_page_tells_what_works() -> None:
    blocks = Page.read("docs/planning.md").blocks()
    texts = {block.language: block.text for block in blocks}
    commands = [line.split() for line in texts["bash"].splitlines()]
    assert len(commands) == 1
    for program, command, *args in commands:
        assert (program, command) == ("lightning-hier", "plan")
        run(args)


def test_the_example_of_7b_is_what_it_predicts(tmp_path: Path) -> None:
    page = Page.read("docs/model_parallel.md")
    test = f"tests/cli/test_plan.py::{test_the_example_of_7b_is_what_it_predicts.__name__}"
    (block,) = page.code(test, "bash")
    exact, *others = (_predicted(line, tmp_path / "plan.json") for line in block.text.splitlines())
    predicted = [exact["bmuf_adam_fsdp"], *(each["diloco_fsdp"] for each in (exact, *others))]
    parts = zip(
        *(_cells(page, name) for name in ("training, GB", "outer state", "transfer buffers")),
        strict=True,
    )
    memory = _cells(page, "memory, GB")
    assert memory == [f"{sum(map(float, each)):.4g}" for each in parts]
    assert memory == [f"{each['memory_bytes'] / 1e9:.4g}" for each in predicted]
    sent = [f"{each['peak_bytes'] / 1e9:.3g}" for each in predicted]
    assert _cells(page, "GB that a host sends") == sent
    assert _cells(page, "pause") == [f"{each['pause_s']:.3g}" for each in predicted]
    assert _cells(page, "mean step") == [f"{each['step_s']:.3g}" for each in predicted]
    sentence = f"keep {exact['ddp']['efficiency']:.1%} of the speed"
    assert any(sentence in line for line in page.lines)


def _predicted(command: str, file: Path) -> dict[str, dict[str, float]]:
    """Predictions of a command of a page, by strategy."""
    run([*command.split()[2:], "--json", str(file)])
    return {each["strategy"]: each for each in json.loads(file.read_text())["predictions"]}


def _cells(page: Page, name: str) -> list[str]:
    """Numbers in the row of a table of a page, without the last column."""
    (row,) = [line for line in page.lines if line.startswith(f"| {name}")]
    return [cell.strip() for cell in row.split("|")[2:-2]]


def test_python_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [own for own in Page.read("docs/planning.md").blocks() if own.language == "python"]
    exec(compile(block.text, "docs/planning.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    step_s, host_bytes, efficiency = map(float, first.split())
    assert step_s > 0.15 and host_bytes > 0 and efficiency < 1
    assert "block_size" in second


@pytest.mark.parametrize(
    ("link", "mbit_s"),
    [("10 Gbit/s", 10_000), ("1 Gbit/s", 1000), ("100 Mbit/s", 100), ("10 Mbit/s", 10)],
)
def test_table_of_choosing_has_the_recommendations(link: str, mbit_s: int, tmp_path: Path) -> None:
    lines = Page.read("docs/choosing.md").lines
    (row,) = [line for line in lines if line.startswith(f"| {link} |")]
    _, _, sgd, adam, _ = map(str.strip, row.split("|"))
    file = tmp_path / "plan.json"
    for cell, optimizer in ((sgd, "sgd_momentum"), (adam, "adam")):
        run(
            f"--parameters 25e6 --step-s 0.15 --hosts 4 --devices 1 --between-mbit-s {mbit_s} "
            f"--copy-gbyte-s 300 --optimizer {optimizer} --json {file}".split()
        )
        settings = json.loads(file.read_text())["recommended"]["settings"]
        name = cell.split("`")[1].lower() if "`" in cell else "diloco"
        assert settings["block_sync"] == name
        shown = cell if "steps" in cell else sgd  # "the same"
        assert f"{settings['block_size']} steps" in shown
        assert (f"overlap={settings['overlap']}" in shown) == bool(settings["overlap"])
        dtype = settings["across_dtype"]
        assert dtype == ("int8" if "int8" in shown else "int4" if "int4" in shown else "same")
        assert ("2% of the elements" in shown) == (settings["across_density"] == 0.02)


@pytest.mark.parametrize(
    ("args", "expected_text"),
    [
        ("", "set --hosts and --devices"),
        ("--hosts 2 --devices 1", "2 hosts need --between-mbit-s"),
        ("--hosts 2 --devices 1 --between-mbit-s 100 --parameters 1e6", "set --step-s"),
        ("--hosts 0 --devices 1", "hosts must be a whole number of at least 1, got 0"),
        (" ".join([*ARGS, "--between-mbit-s", "0"]), "bytes_per_second must be a finite number"),
        (" ".join([*ARGS, "--overlap", "9", "--block-size", "8"]), "overlap must be at most"),
        (
            " ".join([*ARGS, *"--optimizer adam --block-sync diloco --moments-every 2".split()]),
            "moments_every=2 needs block_sync='bmuf_adam', got 'diloco'",
        ),
    ],
)
def test_error_of_wrong_arguments(args: str, expected_text: str) -> None:
    with pytest.raises(ValueError) as raised:
        run(args.split())
    assert expected_text in str(raised.value)
