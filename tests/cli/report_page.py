"""Parser of the page that `lightning-hier report` writes."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

# HTML elements without an end tag.
_VOID = {"meta", "br", "hr", "img", "input", "link"}


class ReportPage(HTMLParser):
    """Parser of a page and its plots, which checks that elements nest.

    `lines` has, for each line, the label of its plot and the number of its run.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.figures: list[str] = []
        self.values: list[dict[str, float]] = []
        self.lines: list[tuple[str, int]] = []
        self.traces: list[dict[str, Any]] = []
        self.layouts: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.addresses += [v or "" for name, v in attrs if name in ("href", "src")]
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "tr":
            self.values.append({})
        if "data-value" in attributes:
            self.values[-1][str(attributes["data-name"])] = float(str(attributes["data-value"]))
        if tag == "figure":
            self.figures.append(str(attributes["aria-label"]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self._read_script(data)
            return
        self.texts.append(data)
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)

    def _read_script(self, source: str) -> None:
        """Read lines and axes from the script that draws a plot."""
        call = re.search(r'Plotly\.newPlot\(\s*"[^"]*",\s*', source)
        if call is None or not self.figures:
            return
        traces, end = json.JSONDecoder().raw_decode(source, call.end())
        layout, _ = json.JSONDecoder().raw_decode(source, source.index("{", end))
        self.traces += traces
        self.layouts.append(layout)
        self.lines += [(self.figures[-1], trace["meta"]) for trace in traces]
