"""Ports between emulated hosts: tcp with CURVE over links of their own, which are cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.hosts import hosts
from benchmarks.launch import run_module


@pytest.mark.needs_netns
def test_ports_between_hosts(tmp_path: Path) -> None:
    """Two hosts of two ranks; what is said, and what cuts do, is asserted in `ports_run`."""
    with hosts(2) as found:
        run_module(found, 2, "tests.distributed.ports_run", str(tmp_path), folder=tmp_path)
        for rank in range(4):
            report = json.loads((tmp_path / f"rank{rank}.json").read_text())
            assert report["served_at"] == found[rank // 2].address
            for peer, way in enumerate(report["ways"]):
                near = "ipc" if peer // 2 == rank // 2 else "tcp"
                assert way == ("inproc" if peer == rank else near)
