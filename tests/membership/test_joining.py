"""A group that cannot receive the state of another ends with an error, and leaves no files."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import lightning_hier as lh
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.membership import connections, group_exchange, state_transfer
from lightning_hier.membership.connections import GroupLostError, serve_store
from lightning_hier.membership.state_transfer import StateTransfer, copy_between, copy_files
from tests.ranks import run_ranks

LIMIT = timedelta(seconds=20)


def _ended() -> str:
    """Address of the store of a group that has ended."""
    return f"127.0.0.1:{serve_store('127.0.0.1').port}"


@pytest.mark.filterwarnings("ignore:.*waiting for another group")
def test_a_group_that_reaches_no_other_group_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every group that offers its state has ended before this one connects to it.

    Each attempt has a folder of its own, whose name nobody could have seen before.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders: list[Path] = []

    def join() -> tuple[str, str]:
        folders.extend(tmp_path.iterdir())
        (folders[-1] / "part").touch()  # a file of a failed attempt
        return "7.1", _ended()

    def on_first(function: Callable[[], Any]) -> Any:
        return function()

    quorums = SimpleNamespace(join=join, on_first=on_first, host="127.0.0.1", log=print)
    settings, device = lh.TorchFT("http://127.0.0.1:9", 1, 2), torch.device("cpu")
    exchange: Any = SimpleNamespace(settings=settings, quorums=quorums, device=device)
    own = StateTransfer(exchange, host_of=[0], rank=0)
    with pytest.raises(PeerError, match="group 1 has tried 10 times .* has ended. Check"):
        own.receive()
    assert len(folders) == len(set(folders)) == group_exchange.MOST_ATTEMPTS
    own.remove()
    assert not list(tmp_path.iterdir())


def test_a_group_that_has_ended_before_it_got_the_state_is_not_waited_for(tmp_path: Path) -> None:
    store, begun = serve_store("127.0.0.1"), time.monotonic()
    with pytest.raises(GroupLostError, match="has ended"):
        copy_between(tmp_path, "copy", _ended(), store, "127.0.0.1", LIMIT)
    assert time.monotonic() - begun < LIMIT.total_seconds()


def _copy(folder: Path) -> str:
    """Rank 0 sends a folder. The path of one file leads outside of the folder of rank 1."""
    dist.init_process_group("gloo")
    own = folder / str(dist.get_rank())
    own.mkdir()
    if dist.get_rank() == 0:
        (folder / "outside").write_bytes(b"abc")
        state_transfer._sizes = lambda _: {"../outside": 3}  # type: ignore[assignment]
        store = serve_store("127.0.0.1")
        dist.broadcast(torch.tensor([store.port]), 0)
        with suppress(GroupLostError):  # the other rank may have closed the connection already
            address = f"127.0.0.1:{store.port}"
            copy_between(own, "copy", address, store, "127.0.0.1", LIMIT)
        dist.barrier()
        return ""
    port = torch.zeros(1, dtype=torch.int64)
    dist.broadcast(port, 0)
    address = f"127.0.0.1:{int(port)}"
    message = ""
    try:
        copy_between(own, "copy", address, None, "127.0.0.1", LIMIT)
    except ValueError as error:
        message = str(error)
    dist.barrier()
    return message


def test_a_path_outside_of_the_folder_is_an_error(tmp_path: Path) -> None:
    _, message = run_ranks(_copy, 2, tmp_path)
    assert message == "another group has sent the path '../outside'"


def _shared(folder: Path) -> list[bytes]:
    """What rank 0 has, as on another host, and what is on a disk that both share."""
    dist.init_process_group("gloo")
    shared, own = folder / "shared", folder / os.environ["RANK"]
    for place in (shared, own):
        place.mkdir(exist_ok=True)
        if dist.get_rank() == 1:
            (place / "a").mkdir()
            (place / "a" / "b").write_bytes(bytes(range(200)))
    dist.barrier()
    assert dist.group.WORLD is not None
    for place in (shared, own):
        copy_files(place, dist.group.WORLD, 1, writes=dist.get_rank() == 0)
    return [(place / "a" / "b").read_bytes() for place in (shared, own)]


def test_files_of_another_host_are_copied_and_those_of_a_shared_disk_are_kept(
    tmp_path: Path,
) -> None:
    assert run_ranks(_shared, 2, tmp_path) == [[bytes(range(200))] * 2] * 2


def test_a_lighthouse_that_has_no_address() -> None:
    with pytest.raises(ValueError, match="lighthouse='http://no-such-host.invalid:29510' has no"):
        connections.own_address("http://no-such-host.invalid:29510")
