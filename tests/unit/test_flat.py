"""Flat views of tensors, shards of a group, and the number of NICs of a host."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.comm.blocks.shard_placement import ShardPlacement, count_nics, make_placement
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.flat import FlatView

sizes_of_tensors = st.lists(st.integers(0, 9), max_size=8)


def _numbered(sizes: list[int]) -> list[torch.Tensor]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [torch.arange(s, s + n).float() for s, n in zip(starts, sizes, strict=True)]


@given(sizes=sizes_of_tensors, data=st.data())
def test_any_range_reads_its_elements_once(sizes: list[int], data: st.DataObject) -> None:
    view = FlatView(_numbered(sizes))
    assert len(view) == sum(sizes)
    start = data.draw(st.integers(0, len(view)))
    stop = data.draw(st.integers(start, len(view)))
    out = torch.full((stop - start,), -1.0)
    view.read_(start, stop, out)
    assert out.tolist() == list(range(start, stop))


def _at(position: int, size: int) -> Channel:
    return cast(Channel, SimpleNamespace(position=position, size=size))


@given(numel=st.integers(0, 100), size=st.integers(1, 12))
def test_shards_of_a_group_contain_each_element_once(numel: int, size: int) -> None:
    for sharded in (False, True):
        placements = [
            ShardPlacement(_at(position, size), sharded=sharded) for position in range(size)
        ]
        shards = [placement.shard(numel) for placement in placements]
        elements = [i for shard in shards for i in range(shard.start, shard.stop)]
        assert elements == list(range(numel))
        assert len({placement.padded(numel) for placement in placements}) == 1
        assert placements[0].padded(numel) >= numel


def test_placement_follows_the_nics() -> None:
    group = _at(0, 4)
    assert make_placement("auto", group, nics=None).sharded
    assert make_placement("auto", group, nics=4).sharded
    assert not make_placement("auto", group, nics=1).sharded
    assert make_placement("sharded", group, nics=1).sharded
    assert not make_placement("leader", group, nics=None).sharded


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


def test_only_hardware_interfaces_that_are_up_count(host: Path) -> None:
    _interface(host, "lo", "unknown", hardware=False)
    _interface(host, "docker0", "up", hardware=False)
    _interface(host, "eth0", "up", hardware=True)
    _interface(host, "eth1", "down", hardware=True)
    assert count_nics(host) == 1
    _interface(host, "eth2", "up", hardware=True)
    assert count_nics(host) == 2
