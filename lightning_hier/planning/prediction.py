"""Settings of the strategies, and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from lightning_hier.algorithms.arguments import check_choice, check_share, check_whole

# Importing torch takes longer than a plan.
if TYPE_CHECKING:
    from lightning_hier.comm.blocks.exchange import AcrossDtype

BlockSyncName = Literal["model_averaging", "bmuf", "bmuf_adam", "diloco"]
"""Block synchronisations by the name of their preset."""

Across = Literal["leader", "sharded", "divided"]
"""Ranks of a group that exchange the model, as in the argument ``across`` of a `block_sync`."""

ACROSS_BYTES = {"bfloat16": 2.0, "int8": 1 + 4 / 512, "int4": 0.5 + 4 / 128}
"""Bytes per element by ``across_dtype``. Groups of 512 or 128 elements share a float32 scale."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Arguments of the strategies that affect their cost. Each strategy uses its own.

    Attributes:
        block_sync: synchronisation of the models of the groups.
        block_size: steps of a block; with a `block_rule`, of the shortest.
        group_size: ranks that train one model, for strategies with groups.
        density: fraction of the elements that GTC sends. None: exact gradients.
        across_dtype: dtype of models between hosts.
        across_density: share of the elements of an update that is sent between hosts.
        fragments: parts of the model that are synchronised one after the other in a block.
        overlap: steps during which a fragment is exchanged. True: those of a block.
        moments_every: blocks between two exchanges of Adam's moments, with ``"bmuf_adam"``.
        across: ranks of a group that exchange the model: only the first one (``"leader"``), or each
            one shard (``"sharded"``). ``"divided"``: the same with FSDP2, which divides the module.
        push_period: mini-batches of a node between two pushes of two-stage ASGD.
        double_buffering: whether devices of two-stage ASGD compute during a push.

    """

    block_sync: BlockSyncName = "bmuf"
    block_size: int = 50
    group_size: int = 1
    # The lowest density that GTC(density="auto") takes.
    density: float | None = 0.01
    across_dtype: AcrossDtype = "same"
    across_density: float = 1.0
    fragments: int = 1
    overlap: bool | int = False
    moments_every: int = 1
    across: Across = "leader"
    push_period: int = 4
    double_buffering: bool = True

    def __post_init__(self) -> None:
        for name in ("block_size", "group_size", "fragments", "moments_every", "push_period"):
            check_whole(name, getattr(self, name))
        if self.density is not None and not 0 < self.density <= 1:
            raise ValueError(f"density must be above 0 and at most 1, got {self.density!r}")
        check_choice("block_sync", self.block_sync, get_args(BlockSyncName))
        check_choice("across", self.across, get_args(Across))
        check_choice("across_dtype", self.across_dtype, ("same", *ACROSS_BYTES))
        check_share("across_density", self.across_density)
        if not isinstance(self.overlap, bool):
            check_whole("overlap", self.overlap, least=0)
        # A block has a step for each fragment, and an exchange arrives before the next one is sent.
        for name in ("fragments", "overlap"):
            if int(getattr(self, name)) > self.block_size:
                raise ValueError(
                    f"{name} must be at most block_size, got {name}={getattr(self, name)} and "
                    f"block_size={self.block_size}"
                )

    @property
    def moments(self) -> bool:
        """Whether Adam's moments are exchanged with the model."""
        return self.block_sync == "bmuf_adam"

    @property
    def block_arguments(self) -> dict[str, Any]:
        """Arguments of the block synchronisation, without those that have no effect."""
        names = ["across_dtype", "across_density", "fragments", "overlap"]
        names += ["moments_every"] * self.moments
        values = {name: getattr(self, name) for name in names}
        changed = {name: own for name, own in values.items() if own != getattr(Settings, name)}
        return {"block_size": self.block_size, **changed}

    @property
    def delay(self) -> int:
        """Steps between sending a fragment and applying its mean."""
        return self.block_size if self.overlap is True else int(self.overlap)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Cost of one strategy on one network.

    Attributes:
        strategy: name of the strategy.
        settings: assumed arguments of the strategy.
        ranks: number of ranks.
        alone_s: seconds of a step without communication.
        step_s: mean seconds of a step, including its share of a synchronisation.
        host_bytes: bytes that the busiest host sends to other hosts in a mean step.
        peak_bytes: bytes of models that a host sends to other hosts in the largest synchronisation.
        pause_s: longest time in which no rank trains because of a synchronisation.
        memory_bytes: model, gradients, optimizer state and tensors of the strategy, on the rank
            that needs most, without activations and the layers that FSDP2 gathers.

    """

    strategy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    ranks: int
    alone_s: float
    step_s: float
    host_bytes: float
    memory_bytes: float
    peak_bytes: float = 0.0
    pause_s: float = 0.0

    @property
    def efficiency(self) -> float:
        """Speed of a rank relative to its speed without communication."""
        return self.alone_s / self.step_s

    @property
    def speedup(self) -> float:
        """Speed of all ranks relative to one rank without communication."""
        return self.ranks * self.efficiency

    def as_dict(self) -> dict[str, Any]:
        """Return the prediction as a JSON object."""
        return {**asdict(self), "efficiency": self.efficiency, "speedup": self.speedup}
