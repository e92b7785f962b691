"""The page of the benchmark: its tables are those of the results beside it, its remarks stay."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from benchmarks.performance import page
from benchmarks.performance.page import PAGE, measured, renewed
from benchmarks.performance.results import REPORTED

_PAGE = """# Title

<!-- table: fast -->
| old |
<!-- end of table -->

What it says.

<!-- table: slow -->
<!-- end of table -->
"""


def test_tables_are_renewed_and_remarks_stay() -> None:
    made = renewed(_PAGE, {"slow": "| b |", "fast": r"| \1 |"})
    assert made == (
        "# Title\n\n<!-- table: fast -->\n\n| \\1 |\n\n<!-- end of table -->\n\nWhat it says.\n\n"
        "<!-- table: slow -->\n\n| b |\n\n<!-- end of table -->\n"
    )
    assert renewed(made, {"slow": "| b |", "fast": r"| \1 |"}) == made


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"fast": ""}, r"lacking \[\], not measured \['slow'\]"),
        ({"fast": "", "slow": "", "new": ""}, r"lacking \['new'\], not measured \[\]"),
    ],
)
def test_what_was_measured_has_a_place_and_no_place_is_left_empty(
    found: dict[str, str], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        renewed(_PAGE, found)


def test_nothing_is_brought_where_a_table_has_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported, out = tmp_path / "reported", tmp_path / "out"
    shutil.copytree(REPORTED, reported)
    out.mkdir()
    more = '{"key": "a", "section": "encoding", "run": 1, "found": []}\n'
    (out / "results.jsonl").write_text(more)
    (tmp_path / "page.md").write_text(PAGE.read_text())
    monkeypatch.setattr(page, "REPORTED", reported)
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    with pytest.raises(ValueError, match=r"not measured \['2 x 2, 100mbit, emulated'"):
        page.publish(out)
    assert (tmp_path / "page.md").read_text() == PAGE.read_text()
    results = Path("results.jsonl")
    assert (reported / results).read_text() == (REPORTED / results).read_text()


def test_what_is_beside_the_page_already_may_be_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = tmp_path / "reported"
    shutil.copytree(REPORTED, reported)
    tables = re.compile(r"(<!-- table: [^\n]+ -->\n).*?(<!-- end)", re.DOTALL)
    places = tables.sub(r"\1\2", PAGE.read_text())
    (tmp_path / "page.md").write_text(places)
    monkeypatch.setattr(page, "REPORTED", reported)
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    page.publish(reported)
    assert (tmp_path / "page.md").read_text() == PAGE.read_text()


def test_committed_page_has_the_tables_of_the_committed_results() -> None:
    committed = PAGE.read_text()
    assert renewed(committed, measured(REPORTED)) == committed
