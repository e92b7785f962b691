"""Page of the documentation with generated tables between paragraphs written by hand.

A table is between the lines ``<!-- table: NAME -->`` and ``<!-- end of table -->``. Results and
pictures are in a folder beside the page, so that the tables can be generated again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.performance.results import REPORTED, Results
from benchmarks.performance.table import tables

PAGE = REPORTED.with_suffix(".md")

_TABLE = re.compile(
    r"(?P<begin><!-- table: (?P<name>[^\n]+) -->\n).*?(?P<end><!-- end of table -->)", re.DOTALL
)


def publish(out: Path) -> None:
    """Copy results and pictures of an output folder beside the page, and replace its tables.

    An error leaves all files unchanged.

    Args:
        out: output folder. Its files replace those beside the page.

    Raises:
        ValueError: the tables of the page are not exactly those that were measured.

    """
    page = PAGE.read_text()
    with TemporaryDirectory() as folder:
        staged = Path(folder)
        for file in (*REPORTED.iterdir(), *out.glob("*.jsonl"), *out.glob("*.png")):
            if file.name in page:
                shutil.copyfile(file, staged / file.name)
        PAGE.write_text(replace_tables(page, measured_tables(staged)))
        shutil.copytree(staged, REPORTED, dirs_exist_ok=True)
    print(f"wrote {PAGE}")


def measured_tables(folder: Path) -> dict[str, str]:
    """Return the tables of the results in ``folder``, by their names on the page."""
    return tables(Results.of(folder))


def replace_tables(page: str, new_tables: Mapping[str, str]) -> str:
    """Return the page with its tables replaced.

    Args:
        page: Markdown.
        new_tables: tables by name.

    Raises:
        ValueError: the names of the tables on the page are not those of ``new_tables``.

    """
    names = [match["name"] for match in _TABLE.finditer(page)]
    if sorted(names) != sorted(new_tables):
        lacking = sorted(set(new_tables) - set(names))
        unknown = sorted(set(names) - set(new_tables))
        raise ValueError(
            f"the page must contain every measured table exactly once, and no other: missing on "
            f"the page {lacking}, not measured {unknown}, tables of the page {names}"
        )
    return _TABLE.sub(
        lambda match: f"{match['begin']}\n{new_tables[match['name']]}\n\n{match['end']}", page
    )
