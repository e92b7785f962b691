"""The pages of benchmarks: their tables are those of the results beside them, remarks stay."""

from __future__ import annotations

import pytest

from benchmarks.model_parallel import page as model_parallel
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


def test_committed_page_has_the_tables_of_the_committed_results() -> None:
    committed = PAGE.read_text()
    assert renewed(committed, measured(REPORTED)) == committed


def test_committed_page_of_divided_modules_has_the_tables_of_its_results() -> None:
    committed = model_parallel.PAGE.read_text()
    assert renewed(committed, model_parallel.measured()) == committed
