"""One block synchronisation: what it sends, and how long it takes (`comm/blocks/`).

The same steps in the same order as there: all ranks exchange a row of statuses, while each that
carries a share of the model has read it; then chunks of the share go through the sum at home, the
exchange between hosts, the filter, and the hand-out at home and in the group, several at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from lightning_hier.algorithms.arguments import check_whole
from lightning_hier.algorithms.planning.collectives import (
    Team,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    reduce,
)
from lightning_hier.algorithms.planning.load import Load
from lightning_hier.algorithms.planning.network import Network
from lightning_hier.algorithms.planning.placement import Placement
from lightning_hier.algorithms.planning.workload import Workload

Carried = Literal["model", "momentum", "moments"]
"""What travels: the model alone, with SGD's momentum, or with Adam's moments."""

AcrossDtype = Literal["same", "bfloat16", "int8"]

_MODELS_CARRIED = {"model": 0, "momentum": 1, "moments": 2}

# Elements of a chunk, of one in a short form, and those that share a scale in int8: see
# comm/blocks/shard.py and algorithms/quantisation.py.
_CHUNK, _CODED_CHUNK, _SCALED = 1 << 19, 1 << 20, 512
# Chunks on the wire at a time: gloo's threads; averaging.py waits for each a round later.
_ON_THE_WIRE = 2
_STATUS_BYTES, _COUNT_BYTES = 8 * 8, 8

# What a pass over an element takes, in copies (docs/reports/performance.md, one core).
_SQUARES, _COPY, _LEAVE_OUT_START = 0.6, 1.0, 2.0
_FILTER, _LATE_FILTER, _ENCODE, _DECODE = 2.5, 4.5, 2.0, 1.0
# torch's gather on gloo goes through a flat tensor of its own at both ends.
_GATHER_COPIES = 2.0


@dataclass(frozen=True, kw_only=True)
class BlockSettings:
    """How models are synchronised.

    Attributes:
        block_size: tau, steps of a block.
        group_size: P, ranks that train one model together.
        sharded: whether every rank of a group carries 1/P, or the first one all.
        across_dtype: in what form models travel between hosts.
        overlap: whether they travel while the next block is trained.
        carried: what travels with the model.
        block_momentum: whether Delta is kept, which plain model averaging does without.

    Raises:
        ValueError: a value outside its range, or what can't be combined.

    """

    block_size: int = 50
    group_size: int = 1
    sharded: bool = False
    across_dtype: AcrossDtype = "same"
    overlap: bool = False
    carried: Carried = "model"
    block_momentum: bool = True

    def __post_init__(self) -> None:
        """Check the values."""
        check_whole("block_size", self.block_size)
        check_whole("group_size", self.group_size)
        choices = {"across_dtype": get_args(AcrossDtype), "carried": get_args(Carried)}
        for name, known in choices.items():
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if self.overlap and self.carried != "model":
            raise ValueError(
                f"overlap=True carries the model alone, got carried={self.carried!r}: what the "
                "optimizer keeps does not fit a mean that comes a block late"
            )


@dataclass(frozen=True, kw_only=True)
class Synchronisation:
    """What the end of a block costs.

    Attributes:
        visible_s: in which nobody trains, if nothing travelled beside the next block.
        travel_s: that models are under way between and on hosts; with ``overlap`` it is not part
            of ``visible_s`` and hides behind the next block as far as that lasts.
        host_bytes: of the models that a host sends to others, by the count of `Traffic`.
        small_bytes: of statuses and step counts, likewise.

    """

    visible_s: float
    travel_s: float
    host_bytes: float
    small_bytes: float


def synchronise(workload: Workload, network: Network, settings: BlockSettings) -> Synchronisation:
    """Predict one synchronisation.

    Raises:
        ValueError: groups that do not fit the hosts.

    """
    place = Placement(network=network, group_size=settings.group_size)
    if place.models == 1:
        return Synchronisation(visible_s=0.0, travel_s=0.0, host_bytes=0.0, small_bytes=0.0)
    share = _Share(workload, place, settings)
    status = all_gather(_STATUS_BYTES, place.world, network)
    small = status + share.counts()
    before = status.seconds(network) + share.read().processor_s(network)
    travel, after = share.travel(), share.filtered() + share.hand_out()
    if not settings.overlap:
        together = (travel + after).seconds(network, pieces=share.chunks)
        return Synchronisation(
            visible_s=before + together,
            travel_s=together,
            host_bytes=travel.card_bytes + share.hand_out().card_bytes,
            small_bytes=small.card_bytes,
        )
    # Cores that compute the steps lend themselves to what travels.
    shared_s = travel.processor_s(network) if workload.on_cores else 0.0
    return Synchronisation(
        visible_s=before + after.seconds(network, pieces=share.chunks) + shared_s,
        travel_s=travel.seconds(network, pieces=share.chunks),
        host_bytes=travel.card_bytes + share.hand_out().card_bytes,
        small_bytes=small.card_bytes,
    )


def extra_memory_bytes(workload: Workload, network: Network, settings: BlockSettings) -> float:
    """What block synchronisation holds on the rank that carries most, besides the model.

    The table in docs/architecture.md ("Across groups"): transfer buffer, W, Delta, and what
    settings add.
    """
    place = Placement(network=network, group_size=settings.group_size)
    model, part = workload.model_bytes, 1 / settings.group_size if settings.sharded else 1.0
    vectors = 1.0 + settings.block_momentum
    if place.models > 1:
        vectors += 2.0 * settings.overlap
        vectors += 2.0 * (settings.carried == "moments")
        if settings.across_dtype != "same" and network.hosts > 1:
            vectors += 1 + 1 / place.between(sharded=settings.sharded).size
    buffer = model + _MODELS_CARRIED[settings.carried] * workload.gradient_bytes
    return buffer + part * vectors * workload.gradient_bytes


class _Share:
    """The part of the model, and of what travels with it, that a rank carries."""

    def __init__(self, workload: Workload, place: Placement, settings: BlockSettings) -> None:
        self._work, self._place, self._settings = workload, place, settings
        self._network = place.network
        sharded = settings.sharded
        self._carriers = place.carriers(sharded=sharded)
        self._carried = _MODELS_CARRIED[settings.carried]
        parts = settings.group_size if sharded else 1
        elements = workload.parameters * (1 + self._carried) + workload.buffers
        self._elements = -(-elements // parts)
        self._filtered = -(-workload.parameters // parts)
        self._between = place.between(sharded=sharded)
        self._home = place.at_home(sharded=sharded)
        self._coded = settings.across_dtype != "same"
        self.chunks = math.ceil(self._elements / (_CODED_CHUNK if self._coded else _CHUNK))

    @property
    def _bytes(self) -> int:
        return self._elements * self._work.element_bytes

    @property
    def _on_host(self) -> float:
        """Shares on a host, over all ranks that carry one."""
        return self._carriers * self._place.groups_on_host

    def read(self) -> Load:
        """Before anything is sent: reading the share, and looking whether the rest is sound."""
        width = self._work.element_bytes
        each = _COPY + (_LEAVE_OUT_START if self._coded else _SQUARES)
        read = self._on_host * self._elements * width * each
        carry_all = self._on_host if not self._settings.sharded else 0
        others = (self._network.devices - carry_all) * self._work.model_bytes * _SQUARES
        return Load(copied_bytes=read + others)

    def counts(self) -> Load:
        """The optimizer's step counts, one for each tensor, averaged over the groups."""
        if self._settings.carried != "moments":
            return Load()
        nbytes = _COUNT_BYTES * self._work.tensors
        across = Team(size=self._place.models, hosts=self._between.hosts,
                      at_once=min(self._place.group_size, self._network.devices))  # fmt: skip
        return all_reduce(nbytes, across, self._network)

    def travel(self) -> Load:
        """The sum at home, the exchange between hosts, and what of it comes home again."""
        network, found = self._network, self._exchange()
        if self._home is not None:
            found += reduce(self._bytes, self._home, network)
            found += broadcast(self._bytes, self._home, network)
        return found

    def _exchange(self) -> Load:
        network, lanes = self._network, self._between
        if self._coded and lanes.hosts > 1:
            sent = sum(self._coded_shard(length) for length in self._chunk_lengths())
            found = all_to_all(lanes.size * sent, lanes, network)
            found += all_gather(sent, lanes, network)
            passes = 2 * _DECODE + _ENCODE * (1 + 1 / lanes.size)
            found += Load(copied_bytes=self._carriers * self._bytes * passes)
        else:
            found = all_reduce(self._bytes, lanes, network)
        rounds = max(self.chunks / _ON_THE_WIRE, 1.0)
        return found + Load(latency_s=found.latency_s * (rounds - 1))

    def _chunk_lengths(self) -> list[tuple[int, int]]:
        """Elements of each chunk, those of the model and those of state that travels with it."""
        model = min(self._elements, self._filtered)
        both: list[tuple[int, int]] = []
        for start in range(0, self._elements, _CODED_CHUNK):
            stop = min(start + _CODED_CHUNK, self._elements)
            own = max(min(stop, model) - start, 0)
            both.append((own, stop - start - own))
        return both

    def _coded_shard(self, lengths: tuple[int, int]) -> float:
        """Bytes that a lane sends to each other one of a chunk; moments travel as bfloat16."""
        widths = (2.0, 2.0) if self._settings.across_dtype == "bfloat16" else (1 + 4 / _SCALED, 2.0)
        lanes = self._between.size
        each = (-(-length // (lanes * _SCALED)) * _SCALED for length in lengths)
        return sum(
            math.ceil(numel * width / 8) * 8 for numel, width in zip(each, widths, strict=True)
        )

    def filtered(self) -> Load:
        """The block filter on every carrier, and the copy into the parameters on every rank."""
        width = self._work.element_bytes
        each = _LATE_FILTER if self._settings.overlap else _FILTER
        filtered = self._on_host * self._elements * width * each
        written = self._network.devices * (1 + self._carried) * self._work.gradient_bytes * _COPY
        return Load(copied_bytes=filtered + written)

    def hand_out(self) -> Load:
        """To the other ranks of the group."""
        group = self._place.group
        if group.size == 1:
            return Load()
        if not self._settings.sharded:
            return broadcast(self._bytes, group, self._network)
        copied = self._network.devices * group.size * self._bytes * _GATHER_COPIES
        return all_gather(self._bytes, group, self._network) + Load(copied_bytes=copied)
