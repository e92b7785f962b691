"""The systems that are compared: a table, and how a row of it becomes a Trainer's strategy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy

import lightning_hier
from benchmarks.performance import peers
from benchmarks.performance.aged_residuals import AgedResiduals

BLOCK = 50
"""Steps of a block, as in the papers."""

Family = Literal["limit", "ours", "peer"]


@dataclass(frozen=True, kw_only=True)
class System:
    """One row.

    Attributes:
        name: by which it is asked for and stored.
        title: in tables.
        family: ``"limit"`` is the same ranks without communication.
        made_by: the class of ours, or the function of `benchmarks.performance.peers`.
        arguments: of that.
        block: steps between two synchronisations; 1 where every step communicates.
        dense: whether every step sends whole gradients, so that few steps take long enough.
        adam: whether the optimizer is Adam.
        needs: the package that it comes from, if that is an extra's.
        expected_failure: why it can't run, where that is known.

    """

    name: str
    title: str
    family: Family
    made_by: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    block: int = BLOCK
    dense: bool = False
    adam: bool = False
    needs: str = ""
    expected_failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a Trainer is given.

    Attributes:
        strategy: its strategy.
        callbacks: its callbacks.
        alone: whether the Trainer is to think that there is one rank only.

    """

    strategy: Strategy
    callbacks: list[pl.Callback] = field(default_factory=list)
    alone: bool = False

    def trainer_settings(self, hosts: int, ranks_per_host: int) -> dict[str, Any]:
        """Arguments for the Trainer."""
        single = {"devices": 1, "num_nodes": 1, "plugins": [LightningEnvironment()]}
        every = {"devices": ranks_per_host, "num_nodes": hosts}
        return {"strategy": self.strategy, **(single if self.alone else every)}


def _ours(name: str, title: str, made_by: str, *, block: int = BLOCK, adam: bool = False,
          **arguments: Any) -> System:  # fmt: skip
    arguments["warmup_steps"] = 0
    if block > 1:
        arguments["block_size"] = block
    return System(name=name, title=title, family="ours", made_by=made_by, arguments=arguments,
                  block=block, adam=adam)  # fmt: skip


def _peer(name: str, title: str, made_by: str, **rest: Any) -> System:
    return System(name=name, title=title, family="peer", made_by=made_by, **rest)


def _diloco(name: str, title: str, *, fragments: int = 5, overlap: int = 9,
            **arguments: Any) -> System:  # fmt: skip
    """Every rank a group, in fragments that are applied some steps after they are sent."""
    sync = lightning_hier.DiLoCo(
        block_size=BLOCK, fragments=fragments, overlap=overlap, **arguments
    )
    return System(name=name, title=title, family="ours", made_by="HierarchicalStrategy",
                  arguments={"group_size": 1, "block_sync": sync, "warmup_steps": 0})  # fmt: skip


_NO_POWER_SGD = (
    "crashes on gloo with several buckets: its collectives are issued from completions, in "
    "another order on every rank"
)

SYSTEMS = (
    System(name="none", title="same ranks without communication", family="limit"),
    _peer("ddp", "Lightning DDP", "ddp", block=1, dense=True),
    _peer("ddp_fp16", "DDP, fp16 hook", "ddp_fp16", block=1, dense=True),
    _peer("ddp_bf16", "DDP, bf16 hook", "ddp_bf16", block=1, dense=True),
    _peer("power_sgd", "DDP, PowerSGD hook", "power_sgd", block=1,
          expected_failure=_NO_POWER_SGD),
    _peer("power_sgd_one_bucket", "DDP, PowerSGD hook, one bucket", "power_sgd", block=1,
          arguments={"bucket_cap_mb": 1024}),
    _peer("post_local_sgd", "DDP, PostLocalSGD, hierarchical averages", "post_local_sgd"),
    _peer("torchft_local_sgd", "torchft LocalSGD", "torchft_local_sgd", needs="torchft"),
    _peer("torchft_diloco", "torchft DiLoCo", "torchft_diloco", needs="torchft"),
    _peer("torchft_streaming", "torchft DiLoCo, 5 fragments, delay 9", "torchft_streaming",
          needs="torchft"),
    _ours("gtc", "`gtc`, density 1%", "GTCStrategy", block=1, density=0.01),
    _ours("model_averaging", "`model_averaging`", "ModelAveragingStrategy"),
    _ours("bmuf", "`bmuf`", "BMUFStrategy"),
    _ours("bmuf_bf16", "`bmuf`, bfloat16", "BMUFStrategy", across_dtype="bfloat16"),
    _ours("bmuf_int8", "`bmuf`, int8", "BMUFStrategy", across_dtype="int8"),
    _ours("bmuf_overlap", "`bmuf`, overlap", "BMUFStrategy", overlap=True),
    _ours("bmuf_int8_overlap", "`bmuf`, int8, overlap", "BMUFStrategy", across_dtype="int8",
          overlap=True),
    _ours("bmuf_gtc", "`bmuf_gtc`, groups of 2", "BMUFGTCStrategy", group_size=2, density=0.01),
    _ours("bmuf_gtc_overlap", "`bmuf_gtc`, groups of 2, overlap", "BMUFGTCStrategy", group_size=2,
          density=0.01, overlap=True),
    _ours("bmuf_adam", "`bmuf_adam`", "BMUFAdamStrategy", adam=True),
    _ours("diloco", "`diloco`", "DiLoCoStrategy", group_size=1),
    _diloco("diloco_fragments_5", "`diloco`, 5 fragments", overlap=0),
    _diloco("diloco_fragments_10", "`diloco`, 10 fragments", fragments=10, overlap=0),
    _diloco("diloco_streaming", "`diloco`, 5 fragments, delay 9"),
    _diloco("diloco_streaming_int8", "`diloco`, 5 fragments, delay 9, int8", across_dtype="int8"),
    _diloco("diloco_streaming_sparse", "`diloco`, 5 fragments, delay 9, int4, density 2%",
            across_dtype="int4", across_density=0.02),
)  # fmt: skip
"""Every row, in the order in which they run; the peers' rows lie close to the limit's."""


def named(name: str) -> System:
    """The system of this name.

    Raises:
        ValueError: there is none.

    """
    system: System = by_name(name, SYSTEMS)
    return system


def by_name(name: str, systems: Sequence[Any]) -> Any:
    """The one of ``systems`` that has this name.

    Raises:
        ValueError: there is none.

    """
    found = {system.name: system for system in systems}
    if name not in found:
        raise ValueError(f"no system is named {name!r}; there are {', '.join(found)}")
    return found[name]


def obstacle(system: System) -> str | None:
    """Why a row can't run here, or None: a package that is missing, an argument not taken yet."""
    if system.family == "limit":
        return None
    if system.family == "peer":
        return peers.missing(system.needs) if system.needs else None
    strategy = getattr(lightning_hier, system.made_by, None)
    if strategy is None:
        return f"lightning_hier has no {system.made_by}"
    # By name: what a strategy does not know it would hand on to DDP.
    unknown = set(system.arguments) - set(inspect.signature(strategy).parameters)
    return f"{system.made_by} takes no {', '.join(sorted(unknown))}" if unknown else None


def set_up(system: System) -> Setup:
    """What the Trainer of this rank is given. A collective of the world for some peers."""
    if system.family == "limit":
        return without_communication()
    if system.family == "ours":
        strategy = getattr(lightning_hier, system.made_by)(**system.arguments)
        return Setup(strategy=strategy, callbacks=[AgedResiduals()])
    make: Callable[..., tuple[Strategy | None, list[pl.Callback]]] = getattr(peers, system.made_by)
    strategy, callbacks = make(**system.arguments)
    if strategy is None:
        return Setup(strategy=_one_device(), callbacks=callbacks, alone=True)
    return Setup(strategy=strategy, callbacks=callbacks)


def without_communication() -> Setup:
    """Each rank by itself: the limit."""
    return Setup(strategy=_one_device(), alone=True)


def _one_device() -> Strategy:
    return SingleDeviceStrategy(device="cpu")
