"""docs/tutorial.md, from its first file to its last command.

Files run with the arguments of the commands, on ranks that have imported torch already, which takes
a tenth of the time. That torchrun starts ranks: tests/trainer/test_launchers.py.
"""

from __future__ import annotations

import io
import os
import runpy
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

from tests.docs.pages import Block, Page
from tests.ranks import run_ranks

TUTORIAL = Page.read("docs/tutorial.md")


def _files(folder: Path) -> None:
    for block in TUTORIAL.blocks():
        if block.language == "python":
            assert block.title, f"{block}: a file of the tutorial needs a title"
            (folder / block.title).write_text(block.text + "\n")


def _commands() -> list[str]:
    code = [block.text for block in TUTORIAL.blocks() if block.language == "bash"]
    return [line for text in code for line in text.splitlines()]


def _check(said: list[str], folder: Path) -> None:
    """What the page promises of what the commands print."""
    alone, first, sent_bmuf, second, used, tiers, sent_tiers = said
    for line, steps in ((alone, 512), (first, 128), (second, 256), (tiers, 128)):
        assert f"after {steps} steps of each rank" in line, line
    for line in (alone, second, tiers):
        assert float(line.split("accuracy ")[1].split()[0]) > 0.7, line
    assert "group: 0.00 MB" in sent_bmuf and "across: 0.00 MB" not in sent_bmuf
    assert "0.00 MB" not in sent_tiers
    assert float(used.split()[0]) > 0.7
    assert (folder / "runs/bmuf_gtc/saved/last.ckpt").is_file()


def test_every_block_is_run_here() -> None:
    blocks: list[Block] = TUTORIAL.blocks()
    assert {block.reason for block in blocks} == {"tests/docs/test_tutorial.py"}
    assert {block.language for block in blocks} == {"python", "bash"}


def _as_script(folder: str, arguments: list[str]) -> str:
    os.chdir(folder)
    said = io.StringIO()
    with (
        mock.patch.object(sys, "argv", arguments),
        mock.patch.object(sys, "path", [folder, *sys.path]),
        redirect_stdout(said),
    ):
        runpy.run_path(arguments[0], run_name="__main__")
    return said.getvalue()


def _said(folder: Path) -> Iterator[str]:
    for command in _commands():
        words = shlex.split(command)
        if words[0] == "torchrun":
            assert words[1] == "--nproc-per-node"
            ranks, arguments = int(words[2]), words[3:]
        else:
            assert words[0] == "python"
            ranks, arguments = 1, words[1:]
        yield run_ranks(_as_script, ranks, str(folder), arguments)[0]


def test_scripts(tmp_path: Path) -> None:
    _files(tmp_path)
    _check([line for line in _said(tmp_path)], tmp_path)
