"""Tests that code and commands of docs/watching.md write logs and traces."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.docs.pages import Page
from tests.docs.running import run_code
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader

PAGE = "docs/watching.md"
THIS = "tests/docs/test_watching.py::test_page_is_true"


def _trained(folder: str, code: list[str]) -> None:
    os.chdir(folder)
    run_code(code, {"model": Net(), "data": loader(60)})


def test_page_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    page = Page.read(PAGE)
    code = [block.text for block in page.code(THIS)]
    run_ranks(_trained, 2, str(tmp_path), code, ranks_per_node=1)
    monkeypatch.chdir(tmp_path)
    traces = [json.loads(file.read_text()) for file in Path("traces").iterdir()]
    assert {trace["distributedInfo"]["rank"] for trace in traces} == {0, 1}
    for trace in traces:
        assert "hier/block/models" in {event["name"] for event in trace["traceEvents"]}
