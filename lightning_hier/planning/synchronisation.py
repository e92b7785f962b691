"""Cost of a block synchronisation, in the order of its steps in `comm/blocks/`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lightning_hier.comm.blocks.exchange import make_codec
from lightning_hier.planning.collectives import (
    Load,
    RankGroup,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    reduce,
)
from lightning_hier.planning.layout import Layout
from lightning_hier.planning.network import Network
from lightning_hier.planning.prediction import Settings
from lightning_hier.planning.workload import Workload

# Elements of a chunk, of a quantised chunk and of a quantisation group: comm/blocks/shard.py and
# algorithms/kernels/reference.py.
_CHUNK, _QUANTISED_CHUNK, _GROUP, _INT4_GROUP = 1 << 19, 1 << 20, 512, 128
# Bytes per element. int8 and int4 have a float32 scale for each quantisation group.
_WIDTHS = {"bfloat16": 2.0, "int8": 1 + 4 / _GROUP, "int4": 0.5 + 4 / _INT4_GROUP}
# Chunks in flight, one for each of gloo's threads.
_IN_FLIGHT = 2
_STATUS_BYTES, _COUNT_BYTES = 64, 8
# Time of each pass over an element, in copies (docs/reports/performance.md, one core).
_SQUARES, _COPY, _SUBTRACT_START = 0.6, 1.0, 2.0
_FILTER, _LATE_FILTER, _ENCODE, _DECODE = 2.5, 4.5, 2.0, 1.0
# torch.topk, and additions to single elements for each that is received (measured on one core).
_SELECT, _SCATTER = 12.0, 9.0
# Dtype of the parameters by the bytes of an element.
_DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
# torch's gather on gloo copies through a flat tensor on both sides.
_GATHER_COPIES = 2.0


@dataclass(frozen=True, kw_only=True)
class Synchronisation:
    """Cost of one synchronisation.

    Attributes:
        blocking_s: seconds in which no rank trains.
        in_flight_s: seconds of the exchange that may overlap with the next block (``overlap``).
        host_bytes: bytes of models that a host sends to other hosts, as `Traffic` counts them.
        control_bytes: bytes of health reports and step counts.

    """

    blocking_s: float = 0.0
    in_flight_s: float = 0.0
    host_bytes: float = 0.0
    control_bytes: float = 0.0

    def mean_step_s(self, step_s: float, block_size: int) -> float:
        """(tau step + synchronisation + part of the exchange beyond the next block) / tau."""
        outlasting_s = max(self.in_flight_s - block_size * step_s, 0.0)
        return step_s + (self.blocking_s + outlasting_s) / block_size


def synchronise(workload: Workload, network: Network, settings: Settings) -> Synchronisation:
    """Predict one synchronisation.

    Raises:
        ValueError: the groups do not fit the hosts.

    """
    layout = _layout(network, settings)
    if layout.models == 1:
        return Synchronisation()
    shard = _Shard(workload, layout, settings)
    status = all_gather(_STATUS_BYTES, layout.world, network)
    control = status + shard.step_counts()
    # All health reports must have arrived before any rank sends its model.
    reading_s = status.seconds(network) + shard.read().processor_s(network)
    exchanged, handed_out = shard.exchange(), shard.hand_out()
    applied = shard.apply() + handed_out
    in_flight_s = 0.0
    if settings.overlap:
        applied_s = applied.seconds(network, pieces=shard.chunks)
        in_flight_s = exchanged.seconds(network, pieces=shard.chunks)
        if workload.on_cores:
            # The exchange uses the same cores as the steps, so its processor time is not hidden.
            applied_s += exchanged.processor_s(network)
    else:
        applied_s = (exchanged + applied).seconds(network, pieces=shard.chunks)
    return Synchronisation(
        blocking_s=reading_s + applied_s,
        in_flight_s=in_flight_s,
        host_bytes=exchanged.nic_bytes + handed_out.nic_bytes,
        control_bytes=control.nic_bytes,
    )


def synchronisation_memory_bytes(workload: Workload, network: Network, settings: Settings) -> float:
    """Transfer buffer, global model, block momentum, and what the settings add.

    The table is in docs/architecture.md, "The life of one step".
    """
    layout = _layout(network, settings)
    if layout.models == 1:
        return 0.0
    vectors = 1.0 + settings.block_momentum + 2.0 * settings.overlap
    # Both moments at the start of the block and, with overlap, when they were sent and in flight.
    vectors += 2.0 * settings.moments * (1.0 + 2.0 * settings.overlap)
    if network.hosts > 1:
        vectors += _error_vectors(settings, layout.between_hosts)
    buffer = workload.model_bytes + 2 * settings.moments * workload.gradient_bytes
    share = 1 / settings.group_size if settings.sharded else 1.0
    return buffer + share * vectors * workload.gradient_bytes


def _error_vectors(settings: Settings, between: RankGroup) -> float:
    """Vectors of error feedback: of own values, and of the sums that a rank computes."""
    if settings.across_density < 1.0:
        return 1.0
    return 0.0 if settings.across_dtype == "same" else 1 + 1 / between.size


def sparse_break_even(element_bytes: int, settings: Settings) -> float:
    """Number of hosts up to which sparse updates send fewer bytes than whole ones.

    A host sends ``density * (width + 2)`` bytes per element to each of the M - 1 others, where an
    exchange of whole updates sends ``2 (M - 1) / M * width``.
    """
    width = _WIDTHS.get(settings.across_dtype, element_bytes)
    entry = _WIDTHS.get(settings.across_dtype, max(element_bytes, 4)) + 2
    return 2 * width / (settings.across_density * entry)


def _layout(network: Network, settings: Settings) -> Layout:
    return Layout(network=network, group_size=settings.group_size, sharded=settings.sharded)


class _Shard:
    """The shard of model, buffers and moments that one inter-host rank exchanges."""

    def __init__(self, workload: Workload, layout: Layout, settings: Settings) -> None:
        self._workload, self._layout, self._settings = workload, layout, settings
        self._network = layout.network
        self._senders = layout.inter_host_ranks
        self._between = layout.between_hosts
        self._models = 3 if settings.moments else 1
        self._sparse = settings.across_density < 1.0
        self._quantised = settings.across_dtype != "same" or self._sparse
        shards = settings.group_size if settings.sharded else 1
        elements = workload.parameters * self._models + workload.buffers
        self._elements = math.ceil(elements / shards)
        self._parameters = math.ceil(workload.parameters / shards)
        self._bytes = self._elements * workload.element_bytes
        self._bytes_on_host = self._senders * layout.groups_per_host * self._bytes
        self.chunks = math.ceil(self._elements / (_QUANTISED_CHUNK if self._quantised else _CHUNK))

    def read(self) -> Load:
        """Read the shard, and check it and the models of the other ranks for NaN."""
        passes = _COPY + (_SUBTRACT_START if self._quantised else _SQUARES)
        readers = 0 if self._settings.sharded else self._senders * self._layout.groups_per_host
        others = (self._network.devices - readers) * self._workload.model_bytes
        return Load(copied_bytes=self._bytes_on_host * passes + others * _SQUARES)

    def step_counts(self) -> Load:
        """Adam's step count of each tensor, averaged over the groups."""
        if not self._settings.moments:
            return Load()
        concurrent = min(self._layout.group_size, self._network.devices)
        group = RankGroup(
            size=self._layout.models, hosts=self._between.hosts, concurrent=concurrent
        )
        return all_reduce(_COUNT_BYTES * self._workload.tensors, group, self._network)

    def exchange(self) -> Load:
        """Sum within a host, exchange between hosts, broadcast within a host."""
        group, network = self._between, self._network
        if self._quantised and group.hosts > 1:
            found = self._quantised_exchange()
        else:
            found = all_reduce(self._bytes, group, network)
        rounds = max(self.chunks / _IN_FLIGHT, 1.0)
        found += Load(latency_s=found.latency_s * (rounds - 1))
        inner = self._layout.within_host
        if inner is not None:
            found += reduce(self._bytes, inner, network) + broadcast(self._bytes, inner, network)
        return found

    def _quantised_exchange(self) -> Load:
        """Sparse parameters in one all-gather; else a reduce-scatter and an all-gather."""
        group, network, settings = self._between, self._network, self._settings
        parameters = min(self._elements, self._parameters)
        sent = self._row_bytes(self._elements - parameters, 2.0)  # moments, as bfloat16
        passes, found = 2 * _DECODE + _ENCODE * (1 + 1 / group.size), Load()
        if self._sparse:
            found = all_gather(self._sparse_bytes(parameters), group, network)
            passes = _SELECT + _SCATTER * settings.across_density * group.size
        else:
            sent += self._row_bytes(parameters, _WIDTHS[settings.across_dtype])
        if sent:
            found += all_to_all(group.size * sent, group, network)
            found += all_gather(sent, group, network)
        return found + Load(copied_bytes=self._senders * self._bytes * passes)

    def _row_bytes(self, elements: int, width: float) -> float:
        """Bytes that a host sends to each other host in a reduce-scatter.

        The shard of a host consists of whole quantisation groups, and of a multiple of 8 bytes.
        """
        groups = math.ceil(elements / (self._between.size * _GROUP))
        return math.ceil(groups * _GROUP * width / 8) * 8

    def _sparse_bytes(self, elements: int) -> float:
        """Bytes of the largest of some parameters, with their positions."""
        settings, dtype = self._settings, _DTYPES[self._workload.element_bytes]
        codec = make_codec(settings.across_dtype, dtype, settings.across_density)
        assert codec is not None, "it is sparse"
        whole, rest = divmod(elements, _QUANTISED_CHUNK)
        return whole * codec.bytes_for(_QUANTISED_CHUNK) + codec.bytes_for(rest)

    def apply(self) -> Load:
        """Block filter on each inter-host rank, and copy into all parameters."""
        passes = _LATE_FILTER if self._settings.overlap else _FILTER
        written = self._network.devices * self._models * self._workload.gradient_bytes * _COPY
        return Load(copied_bytes=self._bytes_on_host * passes + written)

    def hand_out(self) -> Load:
        """Send the new start model to the other ranks of the group."""
        group, network = self._layout.group, self._network
        if group.size == 1:
            return Load()
        if not self._settings.sharded:
            return broadcast(self._bytes, group, network)
        copied = network.devices * group.size * self._bytes * _GATHER_COPIES
        return all_gather(self._bytes, group, network) + Load(copied_bytes=copied)
