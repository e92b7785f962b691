"""Tests of the ranks that examples start: addresses and errors."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from examples.loopback import ADDRESS, loopback_store
from examples.ranks import run_module

_TABLES, _LISTENING = ("tcp", "tcp6"), "0A"
_LOOPBACK = "0100007F:"
LIMIT_S = 280.0


def test_store_listens_at_the_loopback_only() -> None:
    store = loopback_store()
    other = TCPStore(ADDRESS, store.port, is_master=False, wait_for_workers=False)
    other.set("said", "by another")
    assert store.get("said") == b"by another"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port))


def main(folder: Path) -> None:
    """Run a rank, which writes its listening addresses, as the kernel reports them. One fails."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    sockets = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    tables = [Path(f"/proc/self/net/{name}").read_text().splitlines()[1:] for name in _TABLES]
    rows = [row.split() for table in tables for row in table]
    listening = [r[1] for r in rows if r[3] == _LISTENING and f"socket:[{r[9]}]" in sockets]
    (folder / os.environ["RANK"]).write_text(" ".join(listening))
    dist.barrier()
    if os.environ["RANK"] == "1":
        raise ValueError("this rank's own mistake")
    time.sleep(LIMIT_S)


def test_ranks_listen_at_the_loopback_and_end_with_the_error_of_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError, match="on 2 ranks ended with status 1"):
        run_module("tests.examples.test_example_ranks", str(tmp_path), ranks=2, limit_s=LIMIT_S)
    assert "ValueError: this rank's own mistake" in capfd.readouterr().err
    for rank in range(2):
        addresses = (tmp_path / str(rank)).read_text().split()
        assert addresses and all(address.startswith(_LOOPBACK) for address in addresses)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
