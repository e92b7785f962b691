"""Tests that the files and commands of docs/tutorial.md run, and that their output is as described.

The files run with the arguments of the commands, on ranks that have already imported torch. This
takes a tenth of the time of torchrun. tests/trainer/test_launchers.py tests torchrun.
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


def _check(outputs: list[str], folder: Path) -> None:
    """Check the output of each command against the statements of the page."""
    alone, first, sent_bmuf, second, used, tiers, sent_tiers = outputs
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
    output = io.StringIO()
    with (
        mock.patch.object(sys, "argv", arguments),
        mock.patch.object(sys, "path", [folder, *sys.path]),
        redirect_stdout(output),
    ):
        runpy.run_path(arguments[0], run_name="__main__")
    return output.getvalue()


def _outputs(folder: Path) -> Iterator[str]:
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
    _check([line for line in _outputs(tmp_path)], tmp_path)
