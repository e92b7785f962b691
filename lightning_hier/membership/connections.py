"""Process groups between the groups that are present, created anew for each set of groups."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from lightning_hier.comm.addresses import routed_address
from lightning_hier.comm.job_store import JobStore, NoAnswerError, within
from lightning_hier.comm.progress_record import PeerError, is_lost_peer
from lightning_hier.membership.lighthouse import Entry, Quorum

# Seconds between two checks of the store, and between two checks of the other groups.
_POLL_S = 0.02
_CHECK_EVERY_S = 0.5


class GroupLostError(PeerError):
    """A group was lost during an exchange of groups that come and go."""


class LossOfGroups:
    """Turns a failed collective of several groups into a :class:`GroupLostError`.

    The jobs of the groups have different stores, so it can't name the group. The next quorum does.
    """

    @contextmanager
    def explaining(self, ranks: Sequence[int], doing: str = "") -> Iterator[None]:
        """As :meth:`ProgressRecord.explaining`."""
        try:
            yield
        except GroupLostError:
            raise
        except RuntimeError as error:
            if not is_lost_peer(error):
                raise
            raise GroupLostError(f"{doing} failed ({error})") from error


def wait_for_all(
    store: Store,
    identifier: str,
    rank: int,
    total: int,
    addresses: Sequence[str],
    timeout: timedelta,
) -> None:
    """Wait until all ranks are about to connect. gloo itself would wait for a lost one to the end.

    Args:
        store: store of one of their groups.
        identifier: identifier of the connections.
        rank: number of this rank among them.
        total: number of these ranks.
        addresses: addresses of the stores of the groups.
        timeout: time limit.

    Raises:
        GroupLostError: the process of a group has ended or does not answer, or a rank did not come
            in time.

    """
    shared = JobStore(store)
    keys = [f"{identifier}/here/{number}" for number in range(total)]
    shared.set(keys[rank], "")
    begun = checked = monotonic()
    while not _all_here(shared, keys):
        if monotonic() - checked > _CHECK_EVERY_S:
            for address in addresses:  # a lost group costs half a second, not the time limit
                _require_alive(address)
            checked = monotonic()
        if monotonic() - begun > timeout.total_seconds():
            missing = [number for number, key in enumerate(keys) if not _all_here(shared, [key])]
            raise GroupLostError(f"ranks {missing} of the groups did not connect")
        sleep(_POLL_S)


def _all_here(store: JobStore, keys: Sequence[str]) -> bool:
    """Whether the ranks of these keys are about to connect."""
    try:
        return store.has(keys)
    except RuntimeError as error:
        raise GroupLostError(f"the process of a group, which has its store: {error}") from error


def serve_store(host: str) -> TCPStore:
    """Start the store of this group, on any free port of ``host``."""
    # Other groups connect when they need it, and none does so at the start.
    return TCPStore(host, 0, is_master=True, wait_for_workers=False)


def open_store(address: str, timeout: timedelta) -> Store:
    """Connect to the store of a group, at ``host:port``, with a time limit of every wait.

    Raises:
        GroupLostError: its process has ended or does not answer. The store itself would try until
            the time limit, or without one.

    """
    _require_alive(address)
    host, _, port = address.rpartition(":")
    ends: dict[str, Any] = {"is_master": False, "wait_for_workers": False, "timeout": timeout}
    try:
        return within(timeout.total_seconds(), lambda: TCPStore(host, int(port), **ends))
    except NoAnswerError as error:
        raise GroupLostError(f"the process of the group at {address}: {error}") from error


def _require_alive(address: str) -> None:
    if has_ended(address):
        raise GroupLostError(f"the group at {address} has ended")


def has_ended(address: str) -> bool:
    """Whether the process of the store of a group has ended, which is its rank 0."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CHECK_EVERY_S).close()
    except ConnectionRefusedError:  # the host is there, and nothing listens at the port
        return True
    except OSError:
        pass  # it may only be slow: the time limit decides
    return False


def without_ended(quorum: Quorum, own: Entry) -> Quorum:
    """The quorum without former processes of this group.

    The Lighthouse lists a process that was killed until its heartbeats have expired.

    Args:
        quorum: quorum of this process.
        own: entry of this process.

    """
    entries = [
        entry
        for entry in quorum.entries
        if entry.group != own.group or entry.address == own.address or not has_ended(entry.address)
    ]
    return replace(quorum, entries=entries)


def own_address(lighthouse: str) -> str:
    """Address of this host on the route to the Lighthouse.

    Raises:
        ValueError: there is no route to it.

    """
    try:
        return routed_address(urlsplit(lighthouse).hostname or "")[0]
    except OSError as error:
        raise ValueError(
            f"lighthouse={lighthouse!r} has no address that this host can reach ({error}): pass "
            "the address of the host on which `torchft_lighthouse` runs"
        ) from error


def process_group(
    name: str, rank: int, size: int, store: Store, host: str, timeout: timedelta
) -> dist.ProcessGroup:
    """Create a process group over gloo that is independent of the job's default group.

    A collective of its ``size`` ranks, which connect through ``store`` under ``name``. gloo carries
    tensors on accelerators through host memory.
    """
    # Not by dist.new_group, whose ranks must all belong to the default group of one job.
    prefixed = PrefixStore(name, store)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    # By default, gloo uses the address of the host's name, which other hosts may not reach.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    backend = dist.ProcessGroupGloo(prefixed, rank, size, options)
    group = dist.ProcessGroup(prefixed, rank, size)
    kind = dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(kind)
    for device in ("cpu", "cuda"):
        group._register_backend(torch.device(device), kind, backend)
    return group
