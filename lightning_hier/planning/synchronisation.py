"""Cost of the synchronisations of a block: time and bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_hier.algorithms.chunks import exchanged_length
from lightning_hier.planning.collectives import Layout, Load
from lightning_hier.planning.inputs import Network, Workload
from lightning_hier.planning.prediction import ACROSS_BYTES, Settings

# Chunks in flight, one for each of gloo's threads.
_IN_FLIGHT = 2
# Bytes of the position of a selected element.
_POSITION_BYTES = 2
# Time of each pass over an element, in copies (docs/reports/performance.md, one core).
_SQUARES, _COPY, _SUBTRACT_START, _ENCODE, _DECODE = 0.6, 1.0, 2.0, 2.0, 1.0
# The outer step.
_FILTER = 2.5
# A delay: update in flight and block-start weights are copied, and the local model is read again,
# and its update is subtracted from the start and added to the new start.
_LATE = 3 * _COPY + _SUBTRACT_START + 1.0
# Selection, and additions to single elements for each that is received (measured on one core).
_SELECT, _SCATTER = 10.0, 70.0
# torch's gather on gloo copies through a flat tensor on both sides.
_GATHER_COPIES = 2.0


@dataclass(frozen=True, kw_only=True)
class Synchronisation:
    """Cost of the synchronisations of a mean block, one for each of n fragments.

    With ``moments_every``, blocks differ. The mean is that of all blocks.

    Attributes:
        blocking_s: seconds in which no rank trains, in all synchronisations of a block.
        in_flight_s: seconds of the exchange of one fragment, if it may overlap with steps.
        host_bytes: bytes of models that a host sends to other hosts in a block, as `Traffic` counts
            them.
        pause_s: seconds in which no rank trains, in the largest synchronisation.
        peak_bytes: bytes of models that a host sends to other hosts in the largest one.

    """

    blocking_s: float = 0.0
    in_flight_s: float = 0.0
    host_bytes: float = 0.0
    pause_s: float = 0.0
    peak_bytes: float = 0.0

    def outlasting_s(self, step_s: float, settings: Settings) -> float:
        """Seconds of the exchange of a fragment that steps do not hide.

        A fragment is in flight during ``overlap`` steps, and the link has tau / n steps for each.
        """
        steps = min(settings.delay, settings.block_size / settings.fragments)
        return max(self.in_flight_s - steps * step_s, 0.0)

    def mean_step_s(self, step_s: float, settings: Settings) -> float:
        """(tau step + synchronisations + parts of their exchanges that are not hidden) / tau."""
        outlasting_s = settings.fragments * self.outlasting_s(step_s, settings)
        return step_s + (self.blocking_s + outlasting_s) / settings.block_size


def synchronise(workload: Workload, network: Network, settings: Settings) -> Synchronisation:
    """Predict the synchronisations of a block.

    Raises:
        ValueError: the groups do not fit the hosts.

    """
    layout = Layout(network, settings)
    if layout.models == 1:
        return Synchronisation()
    # Synchronisations with the moments, and without them.
    largest = _Fragment(workload, layout, moments=settings.moments)
    others = _Fragment(workload, layout, moments=False)
    share = 1 / settings.moments_every

    def mean(of_largest: float, of_others: float) -> float:
        return settings.fragments * (share * of_largest + (1 - share) * of_others)

    return Synchronisation(
        blocking_s=mean(largest.blocking_s, others.blocking_s),
        in_flight_s=largest.in_flight_s,
        host_bytes=mean(largest.host_bytes, others.host_bytes),
        pause_s=largest.blocking_s,
        peak_bytes=largest.host_bytes,
    )


class _Fragment:
    """One of n equal fragments, of which an inter-host rank exchanges its shard.

    Averaged buffers are counted as parameters, and rounding to quantisation groups is left out.

    Args:
        workload: training of one rank.
        layout: the groups, with the settings of their synchronisation.
        moments: whether Adam's moments are sent with the fragment.

    Attributes:
        blocking_s: seconds of its synchronisation in which no rank trains.
        in_flight_s: seconds of its exchange, if it may overlap with steps.
        host_bytes: bytes that a host sends to other hosts.

    """

    def __init__(self, workload: Workload, layout: Layout, *, moments: bool) -> None:
        settings, network = layout.settings, layout.network
        self._workload, self._layout, self._settings = workload, layout, settings
        self._sparse = settings.across_density < 1.0
        self._encodes = settings.across_dtype != "same" or self._sparse
        shards = settings.fragments * (1 if settings.across == "leader" else settings.group_size)
        width = workload.element_bytes
        self._weights = workload.model_bytes / width / shards
        self._moments = 2 * workload.parameters / shards if moments else 0.0
        elements = self._weights + self._moments
        self._bytes = elements * width
        # Ranks of a host that exchange a shard.
        self._senders = layout.inter_host_ranks * layout.groups_per_host
        each = exchanged_length(
            on_cpu=workload.on_cores or network.processor.cores is not None,
            quantised=self._encodes,
            one_host=network.hosts == 1,
        )
        chunks = math.ceil(elements / each)
        exchanged, handed_out = self._exchange(chunks), self._hand_out()
        local = self._encode() + self._apply() + handed_out
        self.in_flight_s = 0.0
        self.blocking_s = self._report().seconds(network) + self._read().processor_s(network)
        self.host_bytes = exchanged.nic_bytes + handed_out.nic_bytes
        if not settings.overlap:
            self.blocking_s += (exchanged + local).seconds(network, pieces=chunks)
            return
        self.in_flight_s = exchanged.seconds(network, pieces=chunks)
        self.blocking_s += local.seconds(network, pieces=chunks)
        if workload.on_cores:
            # The exchange uses the same cores as the steps, so its processor time is not hidden.
            self.blocking_s += exchanged.processor_s(network)

    def _report(self) -> Load:
        """Health reports of all ranks, which must have arrived before any rank sends its model.

        The first rank gathers and broadcasts them. They are short, so only latencies count.
        """
        network = self._layout.network
        link = network.within if network.hosts == 1 else network.between
        return Load(latency_s=(1 + math.ceil(math.log2(network.ranks))) * link.latency_s)

    def _read(self) -> Load:
        """Read the shard, and check it and the models of the other ranks for NaN."""
        settings = self._settings
        sends_updates = self._encodes or settings.overlap or settings.block_sync == "diloco"
        passes = _COPY + (_SUBTRACT_START if sends_updates else _SQUARES)
        # Ranks that read all of their tensors for this.
        readers = 0 if settings.across == "sharded" else self._senders
        others = (self._layout.network.devices - readers) * self._workload.model_bytes
        others_passes = _SQUARES / settings.fragments
        return Load(copied_bytes=self._senders * self._bytes * passes + others * others_passes)

    def _exchange(self, chunks: int) -> Load:
        """Sum within a host, exchange between hosts, broadcast within a host."""
        load = (
            self._encoded() if self._encodes else self._layout.between_hosts.all_reduce(self._bytes)
        )
        # Chunks in flight at the same time share one latency.
        load += Load(latency_s=load.latency_s * (max(chunks / _IN_FLIGHT, 1.0) - 1))
        if (inner := self._layout.within_host) is not None:
            load += inner.reduce(self._bytes) + inner.broadcast(self._bytes)
        return load

    def _encoded(self) -> Load:
        """Sparse updates in one all-gather; the rest in a reduce-scatter and an all-gather."""
        group, settings = self._layout.between_hosts, self._settings
        # Values that are not quantised have the dtype of their errors.
        width = ACROSS_BYTES.get(settings.across_dtype, max(self._workload.element_bytes, 4))
        load, scattered = Load(), self._moments * ACROSS_BYTES["bfloat16"]
        if self._sparse:
            selected = settings.across_density * self._weights
            load += group.all_gather(selected * (width + _POSITION_BYTES))
        else:
            scattered += self._weights * width
        if scattered:
            # To the hosts that sum, and back from them.
            load += group.all_to_all(scattered) + group.all_to_all(scattered)
        return load

    def _encode(self) -> Load:
        """Passes of the codecs, which run between two steps also if the exchange overlaps."""
        if not self._encodes:
            return Load()
        group, density = self._layout.between_hosts, self._settings.across_density
        passes = 2 * _DECODE + _ENCODE * (1 + 1 / group.size)
        selected = _SELECT + _SCATTER * density * group.size
        total = self._weights * (selected if self._sparse else passes) + self._moments * passes
        # On a single host, every group exchanges with the others.
        encoders = self._layout.inter_host_ranks * (group.size if group.hosts == 1 else 1)
        return Load(copied_bytes=encoders * self._workload.element_bytes * total)

    def _apply(self) -> Load:
        """Outer step on each inter-host rank, and copy into all parameters."""
        settings = self._settings
        passes = _FILTER + (_LATE if settings.overlap else 0.0)
        written = self._layout.network.devices * self._bytes * _COPY
        if settings.across == "sharded":  # every rank has the tensors of all shards
            written *= settings.group_size
        return Load(copied_bytes=self._senders * self._bytes * passes + written)

    def _hand_out(self) -> Load:
        """Send the new start model to the other ranks of the group."""
        group = self._layout.group
        if group.size == 1 or self._settings.across == "divided":
            return Load()
        if self._settings.across == "leader":
            return group.broadcast(self._bytes)
        copied = self._layout.network.devices * group.size * self._bytes * _GATHER_COPIES
        return group.all_gather(self._bytes) + Load(copied_bytes=copied)
