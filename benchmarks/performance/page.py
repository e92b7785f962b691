"""The page of the documentation: remarks by hand, between them tables that the command writes.

A table stands between the lines ``<!-- table: NAME -->`` and ``<!-- end of table -->``. Results and
pictures lie in a folder beside the page, so that anyone can make its tables again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.performance.growth import curves, growth_table
from benchmarks.performance.results import REPORTED, Results
from benchmarks.performance.store import Store
from benchmarks.performance.table import tables

PAGE = REPORTED.with_suffix(".md")

_PLACE = re.compile(
    r"(?P<begin><!-- table: (?P<name>[^\n]+) -->\n).*?(?P<end><!-- end of table -->)", re.DOTALL
)


def publish(out: Path) -> None:
    """Bring results of an output folder, and the pictures shown, beside the page; renew its tables.

    Nothing is changed where a table has no place.

    Args:
        out: what it has replaces what is beside the page.

    Raises:
        ValueError: the page lacks a table that was measured, or has the place of one that was not.

    """
    page = PAGE.read_text()
    with TemporaryDirectory() as folder:
        staged = Path(folder)
        for file in (*REPORTED.iterdir(), *out.glob("*.jsonl"), *out.glob("*.png")):
            if file.name in page:
                shutil.copyfile(file, staged / file.name)
        PAGE.write_text(renewed(page, measured(staged)))
        shutil.copytree(staged, REPORTED, dirs_exist_ok=True)
    print(f"wrote {PAGE}")


def measured(folder: Path) -> dict[str, str]:
    """All tables of what was measured, by the names under which the page has them."""
    found = tables(Results.of(folder))
    growth, _ = growth_table(curves(Store(folder / "growth.jsonl").lines()))
    return found | {"growth": growth}


def renewed(page: str, found: Mapping[str, str]) -> str:
    """The page with these tables in the place of those that it has.

    Args:
        page: Markdown.
        found: tables by name.

    Raises:
        ValueError: the page lacks one of them, or has the place of another.

    """
    places = [place["name"] for place in _PLACE.finditer(page)]
    if sorted(places) != sorted(found):
        lacking = sorted(set(found) - set(places))
        unknown = sorted(set(places) - set(found))
        raise ValueError(
            f"a page has one place for every table that was measured and for no other: lacking "
            f"{lacking}, not measured {unknown}, all places {places}"
        )
    return _PLACE.sub(
        lambda place: f"{place['begin']}\n{found[place['name']]}\n\n{place['end']}", page
    )
