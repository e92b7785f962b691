"""`python -m benchmarks.on_hosts` runs a module on every host, from the user's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import on_hosts

MODULE = """
import os, pathlib, sys
pathlib.Path(f"rank{os.environ['RANK']}").write_text(" ".join(sys.argv[1:]))
print("host", os.environ["GROUP_RANK"])
"""


@pytest.fixture
def users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_means_ranks_share_the_loopback(
    users_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_hosts, "missing_means", lambda: "no root")
    on_hosts.main(["--hosts", "2", "mine", "--epochs", "3"])
    assert [(users_folder / f"rank{rank}").read_text() for rank in (0, 1)] == ["--epochs 3"] * 2
    said = capfd.readouterr()
    assert "host 0" in said.out and "host 1" not in said.out
    assert said.err.startswith("no emulated hosts: no root; ranks share the loopback")


@pytest.mark.needs_netns
def test_failure_is_shown(users_folder: Path) -> None:
    (users_folder / "mine.py").write_text("raise OSError('on purpose')")
    with pytest.raises(RuntimeError, match="OSError: on purpose"):
        on_hosts.main(["--rate", "1gbit", "mine"])
