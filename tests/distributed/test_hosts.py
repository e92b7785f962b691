"""Emulated hosts: their resources are removed, and ranks without root share the loopback."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import on_hosts
from benchmarks.hosts import existing_resources
from tests.waiting import wait_for_marks


@pytest.mark.needs_netns
def test_nothing_is_left_after_a_signal(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from benchmarks.hosts import hosts\n"
        "with hosts(2, '1gbit') as found:\n"
        "    found[0].start(['sleep', '600'], Path(sys.argv[1]) / 'log')\n"
        "    (Path(sys.argv[1]) / 'up').touch()\n"
        "    time.sleep(600)"
    )
    program = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.PIPE)
    wait_for_marks(tmp_path, "up")
    assert existing_resources(program.pid)
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=280)
    assert program.returncode != 0
    assert not existing_resources(program.pid)


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


def test_without_root_ranks_share_the_loopback(
    users_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_hosts, "missing_requirement", lambda: "no root")
    on_hosts.main(["--hosts", "2", "mine", "--epochs", "3"])
    assert [(users_folder / f"rank{rank}").read_text() for rank in (0, 1)] == ["--epochs 3"] * 2
    output = capfd.readouterr()
    assert "host 0" in output.out and "host 1" not in output.out
    assert output.err.startswith("no emulated hosts: no root; ranks share the loopback")
