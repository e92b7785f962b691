"""Ports between emulated hosts: TCP with CURVE over links that are cut for a while."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.hosts import hosts
from benchmarks.launch import run_module


@pytest.mark.needs_netns
def test_ports_between_hosts(tmp_path: Path) -> None:
    """Two hosts of two ranks. ``ports_run`` checks the messages and the effects of cuts."""
    with hosts(2) as emulated:
        run_module(emulated, 2, "tests.distributed.ports_run", str(tmp_path), folder=tmp_path)
        for rank in range(4):
            report = json.loads((tmp_path / f"rank{rank}.json").read_text())
            assert report["served_at"] == emulated[rank // 2].address
            for peer, transport in enumerate(report["transports"]):
                near = "ipc" if peer // 2 == rank // 2 else "tcp"
                assert transport == ("inproc" if peer == rank else near)
