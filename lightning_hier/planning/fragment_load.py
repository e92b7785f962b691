"""Loads of the synchronisation of one fragment, in the order of its steps in `comm/blocks/`."""

from __future__ import annotations

import math

from lightning_hier.planning.collectives import (
    Load,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    reduce,
)
from lightning_hier.planning.layout import Layout
from lightning_hier.planning.prediction import ACROSS_BYTES, Settings
from lightning_hier.planning.workload import Workload

# Elements of a chunk and of a quantised chunk on a CPU (on a GPU there are fewer chunks, and their
# latencies are overestimated), of a quantisation group, and of a block from which the largest are
# selected: comm/blocks/shard.py, algorithms/kernels/quantisation_groups.py, sparse_codec.py.
_CHUNK, _QUANTISED_CHUNK, _GROUP, _SELECTION_BLOCK = 1 << 19, 1 << 20, 512, 4096
# Chunks in flight, one for each of gloo's threads.
_IN_FLIGHT = 2
_REPORT_BYTES = 64
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


class FragmentLoad:
    """One of n equal fragments, of which an inter-host rank exchanges its shard.

    Averaged buffers are divided among the fragments as well, although the last one has them all.

    Args:
        workload: training of one rank.
        layout: the groups.
        settings: settings of block synchronisation.
        moments: whether Adam's moments are sent with the fragment.

    Attributes:
        chunks: pieces of the shard that are exchanged one after the other.

    """

    def __init__(
        self, workload: Workload, layout: Layout, settings: Settings, *, moments: bool
    ) -> None:
        self._workload, self._layout, self._settings = workload, layout, settings
        self._network, self._between = layout.network, layout.between_hosts
        self._senders = layout.inter_host_ranks
        self._sparse = settings.across_density < 1.0
        self._encodes = settings.across_dtype != "same" or self._sparse
        shards = settings.fragments * (settings.group_size if settings.sharded else 1)
        self._parameters = math.ceil(workload.parameters / shards)
        self._buffers = math.ceil(workload.buffers / shards)
        self._moments = 2 * self._parameters if moments else 0
        elements = self._parameters + self._buffers + self._moments
        self._bytes = elements * workload.element_bytes
        self._bytes_on_host = self._senders * layout.groups_per_host * self._bytes
        self._tensor_bytes = (3 if moments else 1) * workload.gradient_bytes / settings.fragments
        if settings.divided:
            self._tensor_bytes /= settings.group_size
        self.chunks = math.ceil(elements / (_QUANTISED_CHUNK if self._encodes else _CHUNK))
        diloco = settings.block_sync == "diloco"
        self._sends_updates = self._encodes or bool(settings.overlap) or diloco

    def report(self) -> Load:
        """Health reports of all ranks, which must have arrived before any rank sends its model."""
        return all_gather(_REPORT_BYTES, self._layout.world, self._network)

    def read(self) -> Load:
        """Read the shard, and check it and the models of the other ranks for NaN."""
        passes = _COPY + (_SUBTRACT_START if self._sends_updates else _SQUARES)
        if self._settings.divided:  # each rank reads all that it has
            return Load(copied_bytes=self._bytes_on_host * passes)
        readers = 0 if self._settings.sharded else self._senders * self._layout.groups_per_host
        others = (self._network.devices - readers) * self._workload.model_bytes
        others_passes = _SQUARES / self._settings.fragments
        return Load(copied_bytes=self._bytes_on_host * passes + others * others_passes)

    def exchange(self) -> Load:
        """Sum within a host, exchange between hosts, broadcast within a host."""
        group, network = self._between, self._network
        load = self._encoded() if self._encodes else all_reduce(self._bytes, group, network)
        # Chunks in flight at the same time share one latency.
        rounds = max(self.chunks / _IN_FLIGHT, 1.0)
        load += Load(latency_s=load.latency_s * (rounds - 1))
        # Buffers are never quantised: a variance that is rounded to zero is useless.
        if self._encodes and self._buffers:
            load += all_reduce(self._buffers * self._workload.element_bytes, group, network)
        inner = self._layout.within_host
        if inner is not None:
            load += reduce(self._bytes, inner, network) + broadcast(self._bytes, inner, network)
        return load

    def _encoded(self) -> Load:
        """Sparse parameters in one all-gather; else a reduce-scatter and an all-gather."""
        group, network, settings = self._between, self._network, self._settings
        sent = self._row_bytes(self._moments, ACROSS_BYTES["bfloat16"])
        load = Load()
        if self._sparse:
            load += all_gather(self._sparse_bytes(), group, network)
        else:
            sent += self._row_bytes(self._parameters, ACROSS_BYTES[settings.across_dtype])
        if sent:
            load += all_to_all(group.size * sent, group, network)
            load += all_gather(sent, group, network)
        return load

    def _row_bytes(self, elements: int, width: float) -> float:
        """Bytes that a host sends to each other host in a reduce-scatter."""
        groups = math.ceil(elements / (self._between.size * _GROUP))
        return _aligned(groups * _GROUP * width)

    def _sparse_bytes(self) -> float:
        """Bytes of the largest elements of all chunks, with their positions."""
        whole, rest = divmod(self._parameters, _QUANTISED_CHUNK)
        return whole * self._selected_bytes(_QUANTISED_CHUNK) + self._selected_bytes(rest)

    def _selected_bytes(self, elements: int) -> float:
        density = self._settings.across_density
        blocks, rest = divmod(elements, _SELECTION_BLOCK)
        selected = blocks * math.ceil(density * _SELECTION_BLOCK) + math.ceil(density * rest)
        # Values that are not quantised have the dtype of their errors.
        exact = max(self._workload.element_bytes, 4)
        width = ACROSS_BYTES.get(self._settings.across_dtype, exact)
        padded = math.ceil(selected / _GROUP) * _GROUP
        return _aligned(padded * width) + _aligned(2 * selected)

    def encode(self) -> Load:
        """Passes of the codecs, which run between two steps also if the exchange overlaps."""
        if not self._encodes:
            return Load()
        size, density = self._between.size, self._settings.across_density
        passes = 2 * _DECODE + _ENCODE * (1 + 1 / size)
        selected = _SELECT + _SCATTER * density * size
        total = self._parameters * (selected if self._sparse else passes) + self._moments * passes
        # On a single host, every group exchanges with the others.
        encoders = self._senders * (size if self._between.hosts == 1 else 1)
        return Load(copied_bytes=encoders * self._workload.element_bytes * total)

    def apply(self) -> Load:
        """Outer step on each inter-host rank, and copy into all parameters."""
        passes = _FILTER + (_LATE if self._settings.overlap else 0.0)
        written = self._network.devices * self._tensor_bytes * _COPY
        return Load(copied_bytes=self._bytes_on_host * passes + written)

    def hand_out(self) -> Load:
        """Send the new start model to the other ranks of the group."""
        group, network = self._layout.group, self._network
        if group.size == 1 or self._settings.divided:
            return Load()
        if not self._settings.sharded:
            return broadcast(self._bytes, group, network)
        copied = network.devices * group.size * self._bytes * _GATHER_COPIES
        return all_gather(self._bytes, group, network) + Load(copied_bytes=copied)


def _aligned(nbytes: float) -> int:
    """The bytes rounded up to a multiple of 8."""
    return math.ceil(nbytes / 8) * 8
