"""Compared systems, and the strategies and callbacks of their Trainers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
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
    """One system.

    Attributes:
        name: name on the command line and in keys.
        title: name in tables.
        family: ``"ours"``, ``"peer"``, or ``"limit"`` for training without communication.
        factory: name of a class of this package, or of a function of
            `benchmarks.performance.peers`.
        arguments: keyword arguments of the factory.
        block: steps between two synchronisations, or 1 if every step communicates.
        dense: whether every step sends whole gradients, so that few steps are enough.
        adam: whether the optimizer is Adam.
        needs: optional package that it needs.
        expected_failure: reason of a known failure.
        plain: whether it trains in a plain loop instead of a Trainer.

    """

    name: str
    title: str
    family: Family
    factory: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    block: int = BLOCK
    dense: bool = False
    adam: bool = False
    needs: str = ""
    expected_failure: str = ""
    plain: bool = False


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Settings of a Trainer.

    Attributes:
        strategy: strategy of the Trainer.
        callbacks: callbacks of the Trainer.
        alone: whether the Trainer is configured for one rank.

    """

    strategy: Strategy
    callbacks: list[pl.Callback] = field(default_factory=list)
    alone: bool = False

    def trainer_settings(self, hosts: int, ranks_per_host: int) -> dict[str, Any]:
        """Return the arguments of the Trainer."""
        single = {"devices": 1, "num_nodes": 1, "plugins": [LightningEnvironment()]}
        every = {"devices": ranks_per_host, "num_nodes": hosts}
        return {"strategy": self.strategy, **(single if self.alone else every)}


def _ours(name: str, title: str, factory: str, *, block: int = BLOCK, adam: bool = False,
          **arguments: Any) -> System:  # fmt: skip
    arguments["warmup_steps"] = 0
    # With momentum, as in long runs. Automatic values give such short ones less of it.
    if factory.startswith("BMUF"):
        arguments["block_momentum"] = 0.75
    elif factory == "DiLoCoStrategy":
        arguments["outer_momentum"] = 0.9
    if block > 1:
        arguments["block_size"] = block
    return System(name=name, title=title, family="ours", factory=factory, arguments=arguments,
                  block=block, adam=adam)  # fmt: skip


def _peer(name: str, title: str, factory: str, **rest: Any) -> System:
    return System(name=name, title=title, family="peer", factory=factory, **rest)


def _diloco(name: str, title: str, *, fragments: int = 5, overlap: int = 9,
            **arguments: Any) -> System:  # fmt: skip
    """DiLoCo with groups of one rank and fragments, applied ``overlap`` steps after sending."""
    sync = lightning_hier.DiLoCo(
        block_size=BLOCK, fragments=fragments, overlap=overlap, **arguments
    )
    return System(name=name, title=title, family="ours", factory="HierarchicalStrategy",
                  arguments={"group_size": 1, "block_sync": sync, "warmup_steps": 0})  # fmt: skip


def _loop(name: str, title: str, sync: Any) -> System:
    """A plain loop with groups of one rank."""
    return System(name=name, title=title, family="ours", factory="attach", plain=True,
                  arguments={"block_sync": sync, "warmup_steps": 0})  # fmt: skip


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
    _ours("gtc_updates", "`gtc` of updates, density 1%", "GTCStrategy", block=1, density=0.01,
          of="update"),
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
    _peer("loop_torchft_local_sgd", "plain loop, torchft LocalSGD", "torchft_local_sgd",
          needs="torchft", plain=True),
    _loop("loop_bmuf", "plain loop, `BMUF`", lightning_hier.BMUF(block_size=BLOCK)),
    _peer("loop_torchft_diloco", "plain loop, torchft DiLoCo", "torchft_diloco",
          needs="torchft", plain=True),
    _loop("loop_diloco", "plain loop, `DiLoCo`", lightning_hier.DiLoCo(block_size=BLOCK)),
)  # fmt: skip
"""All systems, in the order in which they run: peers run soon after the limit."""


def named(name: str) -> System:
    """Return the system with this name.

    Raises:
        ValueError: there is no such system.

    """
    known = {system.name: system for system in SYSTEMS}
    if name not in known:
        raise ValueError(f"unknown system {name!r}: choose from {', '.join(known)}")
    return known[name]


def unavailable_reason(system: System) -> str | None:
    """Return why a system cannot run, such as a missing package, or None if it can."""
    if system.family == "limit":
        return None
    if system.family == "peer":
        return peers.missing(system.needs) if system.needs else None
    strategy = getattr(lightning_hier, system.factory, None)
    if strategy is None:
        return f"lightning_hier has no {system.factory}"
    # The constructor would pass unknown arguments to DDP instead of raising an error.
    unknown = set(system.arguments) - set(inspect.signature(strategy).parameters)
    if not unknown:
        return None
    return f"{system.factory} has no argument {', '.join(sorted(unknown))}"


def set_up(system: System) -> Setup:
    """Create strategy and callbacks of a Trainer. All ranks must call it."""
    if system.family == "limit":
        return without_communication()
    if system.family == "ours":
        strategy = getattr(lightning_hier, system.factory)(**system.arguments)
        return Setup(strategy=strategy, callbacks=[AgedResiduals()])
    make: Callable[..., tuple[Strategy | None, list[pl.Callback]]] = getattr(peers, system.factory)
    strategy, callbacks = make(**system.arguments)
    if strategy is None:
        return Setup(strategy=_one_device(), callbacks=callbacks, alone=True)
    return Setup(strategy=strategy, callbacks=callbacks)


def without_communication() -> Setup:
    """Return the settings of a Trainer that trains each rank independently: the limit."""
    return Setup(strategy=_one_device(), alone=True)


def _one_device() -> Strategy:
    return SingleDeviceStrategy(device="cpu")
