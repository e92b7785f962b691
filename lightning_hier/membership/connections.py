"""Process groups between the groups that are present, created anew for each set of groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.progress_record import PeerError, is_lost_peer
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.membership.lighthouse import Entry


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


@dataclass
class GroupConnections:
    """Channels of this rank to the ranks of the groups that are present.

    Attributes:
        across: ranks at this rank's position in the groups that are present.
        world: all ranks of these groups.
        layout: these groups.

    """

    across: Channel
    world: Channel
    layout: RankLayout

    @classmethod
    def unconnected(cls, own: Communicators) -> GroupConnections:
        """Channels of this group alone, until :meth:`connect`."""
        loss = LossOfGroups()
        across = Channel(own.across.group, "across", own.traffic, loss)
        world = Channel(own.world.group, "across", own.traffic, loss)
        return cls(across, world, own.layout)

    def connect(
        self,
        identifier: str,
        members: Sequence[Entry],
        group: int,
        own: Communicators,
        *,
        host: str,
        timeout: timedelta,
    ) -> None:
        """Connect the ranks of ``members``. Every rank of them must call it.

        Args:
            identifier: identifier of the connections, the same on all these ranks.
            members: groups that are present, in order.
            group: number of this group.
            own: channels of this rank in its group.
            host: IP address of this rank.
            timeout: time limit of the connection, and of every collective.

        Raises:
            GroupLostError: another rank did not connect.

        """
        number = [member.group for member in members].index(group)
        position, size = own.group.position, own.group.size
        self.layout = RankLayout((size, len(members)))
        groups = [entry.group for entry in members]
        with LossOfGroups().explaining((), f"connecting the groups {groups}"):
            store = open_store(members[0].address, timeout)
            ends = store, host, timeout
            across = process_group(f"{identifier}/across/{position}", number, len(members), *ends)
            rank, total = number * size + position, len(members) * size
            world = process_group(f"{identifier}/world", rank, total, *ends)
        self.across.use(across, range(position, total, size))
        self.world.use(world, range(total))

    def close(self, own: Communicators) -> None:
        """Close the connections, so that ranks that still wait for this one fail."""
        for channel, replacement in ((self.across, own.across), (self.world, own.world)):
            if channel.group is not replacement.group:
                with suppress(RuntimeError):
                    channel.group.abort()
                channel.use(replacement.group, replacement.ranks)


def serve_store(host: str) -> TCPStore:
    """Start the store of this group, on any free port of ``host``."""
    return TCPStore(host, 0, is_master=True, wait_for_workers=False)


def open_store(address: str, timeout: timedelta) -> Store:
    """Connect to the store of a group, at ``host:port``."""
    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), is_master=False, timeout=timeout, wait_for_workers=False)


def process_group(
    name: str, rank: int, size: int, store: Store, host: str, timeout: timedelta
) -> dist.ProcessGroup:
    """Create a process group over gloo that is independent of the job's default group.

    A collective of its ``size`` ranks, which connect through ``store`` under ``name``. gloo carries
    tensors on accelerators through host memory.
    """
    prefixed = PrefixStore(name, store)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    backend = dist.ProcessGroupGloo(prefixed, rank, size, options)
    group = dist.ProcessGroup(prefixed, rank, size)
    kind = dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(kind)
    for device in ("cpu", "cuda"):
        group._register_backend(torch.device(device), kind, backend)
    return group
