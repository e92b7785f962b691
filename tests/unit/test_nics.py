"""Network cards are counted from what the kernel says, on a made-up host."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_hier.comm.blocks.shard_placement import count_nics


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    return tmp_path


def _interface(host: Path, name: str, state: str, *, hardware: bool) -> None:
    folder = host / "net" / name
    folder.mkdir()
    (folder / "operstate").write_text(state + "\n")
    if hardware:
        (folder / "device").mkdir()


def _infiniband(host: Path, name: str, port: int, state: str) -> None:
    folder = host / "infiniband" / name / "ports" / str(port)
    folder.mkdir(parents=True)
    (folder / "state").write_text(state + "\n")


def test_only_hardware_that_is_up_counts(host: Path) -> None:
    _interface(host, "lo", "unknown", hardware=False)
    _interface(host, "docker0", "up", hardware=False)
    _interface(host, "eth0", "up", hardware=True)
    _interface(host, "eth1", "down", hardware=True)
    assert count_nics(host) == 1
    _interface(host, "eth2", "up", hardware=True)
    assert count_nics(host) == 2


def test_infiniband_ports_count_once(host: Path) -> None:
    _interface(host, "ib0", "up", hardware=True)
    _infiniband(host, "mlx5_0", 1, "4: ACTIVE")
    assert count_nics(host) == 1
    _infiniband(host, "mlx5_1", 1, "4: ACTIVE")
    _infiniband(host, "mlx5_2", 1, "1: DOWN")
    assert count_nics(host) == 2


def test_host_without_readable_cards_has_one(host: Path) -> None:
    assert count_nics(host) == 1
    assert count_nics(host / "nowhere") == 1
    (host / "net" / "eth0" / "device").mkdir(parents=True)
    assert count_nics(host) == 1
