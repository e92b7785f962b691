"""Benchmark pages and the picture in the README show the committed results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.headline import LOSS_SYSTEMS, RATES, STEP_SYSTEMS, loss_ratios, step_ratios
from benchmarks.model_parallel import page as model_parallel
from benchmarks.performance.page import PAGE, measured_tables, replace_tables
from benchmarks.performance.results import REPORTED, Results
from tests.conftest import REPOSITORY

_PAGE = """# Title

<!-- table: fast -->
| old |
<!-- end of table -->

What it says.

<!-- table: slow -->
<!-- end of table -->
"""


def test_tables_are_replaced_and_other_text_stays() -> None:
    page = replace_tables(_PAGE, {"slow": "| b |", "fast": r"| \1 |"})
    assert page == (
        "# Title\n\n<!-- table: fast -->\n\n| \\1 |\n\n<!-- end of table -->\n\nWhat it says.\n\n"
        "<!-- table: slow -->\n\n| b |\n\n<!-- end of table -->\n"
    )
    assert replace_tables(page, {"slow": "| b |", "fast": r"| \1 |"}) == page


@pytest.mark.parametrize(
    ("tables", "error"),
    [
        ({"fast": ""}, r"missing on the page \[\], not measured \['slow'\]"),
        ({"fast": "", "slow": "", "new": ""}, r"missing on the page \['new'\], not measured \[\]"),
    ],
)
def test_page_must_have_a_place_for_each_measured_table_and_no_others(
    tables: dict[str, str], error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        replace_tables(_PAGE, tables)


def test_committed_page_has_the_tables_of_the_committed_results() -> None:
    committed = PAGE.read_text()
    assert replace_tables(committed, measured_tables(REPORTED)) == committed


def test_committed_page_of_sharded_modules_has_the_tables_of_its_results() -> None:
    committed = model_parallel.PAGE.read_text()
    assert replace_tables(committed, model_parallel.measured_tables()) == committed


def test_losses_are_compared_with_ddp_of_the_same_seed() -> None:
    common = {"task": "language", "workers": 4, "steps": 300}
    runs = [
        {**common, "system": system, "seed": seed, "result": loss * (1.0 + seed)}
        for loss, system in enumerate(LOSS_SYSTEMS, start=1)
        for seed in (0, 1)
    ]
    longer = {**common, "steps": 1000, "system": "ddp", "seed": 0, "result": 9.0}
    other = {**common, "task": "ocr", "system": "ddp", "seed": 0, "result": 9.0}
    ratios = loss_ratios([*runs, longer, other])
    assert ratios["ddp"] == [1.0, 1.0]
    assert ratios["one worker"] == pytest.approx([0.5, 0.5])


def test_every_bar_has_been_measured() -> None:
    steps = step_ratios(Results.of(REPORTED))
    assert set(steps) == set(RATES)
    for ratios in steps.values():
        assert len(ratios) == len(STEP_SYSTEMS)
        assert min(ratios) >= 1.0
        assert ratios[0] == max(ratios)  # DDP, with which the picture compares the others


def test_readme_shows_the_picture() -> None:
    picture = "docs/assets/headline.png"
    assert f"]({picture})" in Path(REPOSITORY / "README.md").read_text()
    assert (REPOSITORY / picture).stat().st_size > 10_000
