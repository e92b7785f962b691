"""Groups of ranks on hosts, and the cost of their collectives.

The cost is bytes through NICs, links within hosts, memory and sockets. The equations of the ring
algorithms are those of Patarasuk and Yuan (2009), "Bandwidth optimal all-reduce algorithms for
clusters of workstations".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from lightning_hier.planning.inputs import Network
from lightning_hier.planning.prediction import Settings


@dataclass(frozen=True, kw_only=True)
class Load:
    """Work of the busiest host during a communication. Loads add up.

    Attributes:
        latency_s: latency of all consecutive messages.
        nic_bytes: bytes that the host sends to other hosts.
        inner_bytes: bytes that its busiest rank sends to ranks of the same host.
        copied_bytes: bytes of copies in memory, over all ranks of the host.
        socket_bytes: bytes sent and received, over all ranks of the host.

    """

    latency_s: float = 0.0
    nic_bytes: float = 0.0
    inner_bytes: float = 0.0
    copied_bytes: float = 0.0
    socket_bytes: float = 0.0

    def __add__(self, other: Load) -> Load:
        """Sum of the two."""
        names = [field.name for field in fields(self)]
        return Load(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def processor_s(self, network: Network) -> float:
        """Seconds of the host's cores: (copied / copy rate + sent / socket rate) / cores."""
        processor, ranks = network.processor, network.devices
        seconds = self.copied_bytes / processor.copy_bytes_per_second
        if processor.socket_bytes_per_second is not None:
            seconds += self.socket_bytes / processor.socket_bytes_per_second
        # The copy rate is that of one rank, so cores beyond the number of ranks add nothing.
        return seconds / min(ranks, processor.cores or ranks)

    def seconds(self, network: Network, *, pieces: float = 1.0) -> float:
        """Time of a pipeline of ``pieces`` pieces through NIC, inner link and processor.

        The longest stage is always busy; the other stages add the time of one piece.
        """
        stages = (
            self.nic_bytes / network.between.bytes_per_second,
            self.inner_bytes / network.within.bytes_per_second,
            self.processor_s(network),
        )
        longest = max(stages)
        return self.latency_s + longest + (sum(stages) - longest) / max(pieces, 1.0)


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """The ranks of a collective, spread evenly over hosts in order of rank.

    Attributes:
        size: number of ranks, n in the equations.
        latency_s: latency of one message of the group.
        hosts: number of hosts.
        concurrent: groups on the same hosts that run the same collective at the same time.

    """

    size: int
    latency_s: float = 0.0
    hosts: int = 1
    concurrent: int = 1

    def all_reduce(self, nbytes: float) -> Load:
        """Ring: 2 (n - 1) / n of the tensor from each rank in 2 (n - 1) rounds."""
        return self._ring(2 * self._share * nbytes, 2 * self._peers, added=self._share * nbytes)

    def all_gather(self, nbytes: float) -> Load:
        """Ring: (n - 1) times the ``nbytes`` of one rank from each rank in n - 1 rounds."""
        return self._ring(self._peers * nbytes, self._peers)

    def all_to_all(self, nbytes: float) -> Load:
        """(n - 1) / n of the tensor from each rank; the messages are in flight together."""
        return self._ring(self._share * nbytes, min(self._peers, 1))

    def reduce(self, nbytes: float) -> Load:
        """Ring of gloo: (n - 1) / n of the tensor from each rank in 2 (n - 1) rounds."""
        return self._ring(self._share * nbytes, 2 * self._peers, added=self._share * nbytes)

    def broadcast(self, nbytes: float) -> Load:
        """Binomial tree: the first rank sends log2 n times, first to other hosts."""
        rounds, to_hosts = (math.ceil(math.log2(number)) for number in (self.size, self.hosts))
        return Load(
            latency_s=rounds * self.latency_s,
            nic_bytes=self.concurrent * to_hosts * nbytes,
            inner_bytes=(rounds - to_hosts) * nbytes,
            socket_bytes=2 * self.concurrent * self._peers / self.hosts * nbytes,
        )

    @property
    def _peers(self) -> int:
        return self.size - 1

    @property
    def _share(self) -> float:
        return self._peers / self.size

    def _ring(self, sent: float, rounds: int, added: float = 0.0) -> Load:
        """Load of a ring in which each rank sends ``sent`` bytes in ``rounds`` messages.

        The ring leaves each host once, because ranks are ordered by host. ``added`` are the bytes
        that a rank receives and adds to its own.
        """
        per_host = self.size / self.hosts
        return Load(
            latency_s=rounds * self.latency_s,
            nic_bytes=self.concurrent * sent if self.hosts > 1 else 0.0,
            inner_bytes=sent if per_host > 1 else 0.0,
            copied_bytes=self.concurrent * per_host * added,
            # Sent and received; also between ranks of one host, which gloo connects by sockets too.
            socket_bytes=2 * self.concurrent * per_host * sent,
        )


@dataclass(frozen=True)
class Layout:
    """Groups of consecutive ranks.

    Attributes:
        network: the hosts.
        settings: settings, whose ``group_size`` and ``across`` count.

    Raises:
        ValueError: groups neither divide a host nor consist of whole hosts.

    """

    network: Network
    settings: Settings

    def __post_init__(self) -> None:
        devices, size = self.network.devices, self.settings.group_size
        # Then all hosts have the same load, and that of one host is enough.
        if self.network.ranks % size or (devices % size and size % devices):
            sizes = [n for n in range(1, devices + 1) if devices % n == 0]
            sizes += [n * devices for n in range(2, 17) if self.network.hosts % n == 0]
            raise ValueError(
                f"group_size must divide the {devices} devices of a host, or be a number of whole "
                f"hosts that divides {self.network.hosts}, got {size}; sizes that do: "
                f"{', '.join(map(str, sizes))}"
            )

    @property
    def models(self) -> int:
        """Number of groups."""
        return self.network.ranks // self.settings.group_size

    @property
    def groups_per_host(self) -> int:
        """Number of groups with ranks on one host."""
        return max(self.network.devices // self.settings.group_size, 1)

    @property
    def group(self) -> RankGroup:
        """The ranks of one group."""
        size = self.settings.group_size
        hosts = max(size // self.network.devices, 1)
        return self._ranks(size, hosts, self.groups_per_host)

    @property
    def inter_host_ranks(self) -> int:
        """Ranks of a group on one host that exchange models with other groups."""
        is_leader = self.settings.across == "leader"
        return 1 if is_leader else min(self.settings.group_size, self.network.devices)

    @property
    def within_host(self) -> RankGroup | None:
        """Ranks of a host that sum their models before one rank sends the sum to other hosts.

        None if there is one host, or one group on each host.
        """
        if self.network.hosts == 1 or self.groups_per_host == 1:
            return None
        return self._ranks(self.groups_per_host, 1, self.inter_host_ranks)

    @property
    def between_hosts(self) -> RankGroup:
        """Ranks that exchange models between hosts, or between groups if there is one host."""
        hosts = self.network.hosts
        size = self.models if self.within_host is None else hosts
        # Each of them is on a host of its own, also if a group spans several hosts.
        return self._ranks(size, 1 if hosts == 1 else size, self.inter_host_ranks)

    def _ranks(self, size: int, hosts: int, concurrent: int) -> RankGroup:
        link = self.network.within if hosts == 1 else self.network.between
        return RankGroup(size=size, latency_s=link.latency_s, hosts=hosts, concurrent=concurrent)
