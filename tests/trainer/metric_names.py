"""Reads the names of metrics from the tables of docs/metrics.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lightning_hier.comm.traffic import TIERS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


@dataclass(frozen=True)
class Documented:
    """Names in the document.

    Attributes:
        names: names of metrics, with placeholders.
        kinds: kinds of messages, by the heading of their table.
        reasons: reasons of refusals.

    """

    names: list[str]
    kinds: dict[str, list[str]]
    reasons: list[str]

    def match(self, logged: str) -> list[str]:
        """Documented names that match a logged name. There should be exactly one."""
        return [name for name in self.names if self._pattern(name).fullmatch(logged)]

    def _pattern(self, name: str) -> re.Pattern[str]:
        kinds = [kind for table in self.kinds.values() for kind in table]
        pattern = name.replace("<tier>", f"({'|'.join(TIERS)})").replace("/<optimizer>", r"(/\d+)?")
        pattern = pattern.replace("<kind>", f"({'|'.join(kinds)})")
        return re.compile(pattern.replace("<reason>", f"({'|'.join(self.reasons)})"))


def read_document() -> Documented:
    """Read the first column of each table, by its heading or the title of the column."""
    names: list[str] = []
    kinds: dict[str, list[str]] = {}
    reasons: list[str] = []
    heading = title = ""
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|") and not line.startswith("| ---"):
            cell = line.split("|")[1].strip()
            if not cell.startswith("`"):
                title = cell
            elif title == "name":
                names.append(cell.strip("`"))
            elif title == "kind":
                kinds.setdefault(heading, []).append(cell.strip("`"))
            else:
                reasons.append(cell.strip("`"))
    return Documented(names, kinds, reasons)
