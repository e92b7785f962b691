"""What docs/watching.md shows writes logs, a timeline and a page of them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from lightning_hier.callbacks.timeline import merge_timelines
from lightning_hier.cli.report import run
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
    (command,) = (block.text for block in page.code(THIS, "bash"))
    run_ranks(_trained, 2, str(tmp_path), code, ranks_per_node=1)
    monkeypatch.chdir(tmp_path)
    (fit,) = Path("timeline").iterdir()
    assert len(list(fit.glob("rank_*.json"))) == 2
    assert merge_timelines(fit).stat().st_size > 1000
    program, name, *args = shlex.split(command)
    assert (program, name) == ("lightning-hier", "report")
    run(args)
    assert ">tensorboard</button>" in Path("report.html").read_text()
