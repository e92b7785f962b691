"""Runs a function on ranks of emulated hosts, without a new interpreter for each of them.

The ranks fork from the server of `tests.ranks`, and then enter the network namespace of their host,
as `ip netns exec` does.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hosts import Host
from tests.ranks import run_ranks

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_PORT = "29611"


def run_on_hosts(
    hosts: Sequence[Host], ranks_per_host: int, function: Callable[..., Any], *args: Any
) -> list[Any]:
    """Call a function on every rank, and return the results. The first host has the store."""
    return run_ranks(
        _on_host,
        len(hosts) * ranks_per_host,
        hosts,
        function,
        args,
        ranks_per_node=ranks_per_host,
        env={
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "GLOO_SOCKET_IFNAME": hosts[0].interface,
            # Names of addresses are looked up, and no name server answers.
            "RES_OPTIONS": "timeout:1 attempts:1",
        },
    )


def _on_host(hosts: Sequence[Host], function: Callable[..., Any], args: Sequence[Any]) -> Any:
    _enter(str(hosts[int(os.environ["GROUP_RANK"])].namespace))
    os.environ.update(MASTER_ADDR=hosts[0].address, MASTER_PORT=_PORT)
    return function(*args)


def _enter(namespace: str) -> None:
    """Enter a namespace with this thread and those that it will start."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as file:
        if libc.setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
