"""Tests of the completion scripts, as bash runs them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lightning_hier.cli import completion
from lightning_hier.cli.main import main

COMPLETE = """
source "$0"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_lightning_hier
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "lightning-hier"
    path.write_text(completion.script("bash"))
    return path


def completed(script: Path, *words: str) -> set[str]:
    """Completions that a non-interactive bash offers for the last of the words."""
    done = subprocess.run(
        ["bash", "-euc", COMPLETE, str(script), "lightning-hier", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_script_is_accepted(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["f"], {"fit"}),
        (["--v"], {"--version"}),
        (["fit", "--trainer.max_e"], {"--trainer.max_epochs"}),
        (["fit", "--trainer.strategy.block_m"], {"--trainer.strategy.block_momentum"}),
        (["fit", "--trainer.strategy", "bmuf_"], {"bmuf_adam", "bmuf_adam_fsdp", "bmuf_gtc"}),
        (["fit", "--trainer.strategy", "=", "ps"], {"psp"}),  # as bash splits --trainer.strategy=ps
        (["fit", "--trainer.strategy=ps"], {"--trainer.strategy=psp"}),  # as zsh does not
        (["completion", ""], {"bash", "zsh"}),
        (["fit", "--config", "exam"], set()),  # files, which bash itself offers
    ],
)
def test_completes(script: Path, words: list[str], offered: set[str]) -> None:
    assert completed(script, *words) == offered


def test_after_the_equals_sign_all_strategies_are_offered(script: Path) -> None:
    assert {"gtc", "psp"} < completed(script, "fit", "--trainer.strategy", "=")


def test_zsh_script_is_accepted(tmp_path: Path) -> None:
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("needs zsh")
    (tmp_path / "script").write_text(completion.script("zsh"))
    subprocess.run([zsh, "-n", str(tmp_path / "script")], check=True)


def test_error_for_an_unknown_shell_lists_the_shells(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", "tcsh"])
    assert stop.value.code == 2
    assert "one of bash, zsh, got tcsh" in capsys.readouterr().err
