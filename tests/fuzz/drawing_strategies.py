"""Draws a strategy whose arguments are valid together and for the number of ranks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.fuzz.case import Named

Drawn = tuple[Named, Named | None, Named | None]

# Outer steps on such small models are small, so that no model diverges.
OUTER_OPTIMIZERS: Sequence[Named] = (
    ("AdamW", {"lr": 0.01, "weight_decay": 0.01}),
    ("Adagrad", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01}),
)
# Settings that are often "auto" instead of a value.
AUTOMATIC = ("warmup_steps", "block_size", "density", "local_beta1", "block_momentum")


def draw_strategy(dice: random.Random, ranks: int, ranks_per_host: int) -> Drawn:
    """Draw a strategy, a gradient synchronisation and a block synchronisation."""
    kind = dice.choices(("synchronous", "psp", "two_stage"), (80, 11, 9))[0]
    own: dict[str, Any] = {"warmup_steps": dice.choices((0, 1, 3), (65, 15, 20))[0]}
    if kind == "psp":
        return ("PSPStrategy", own | _psp(dice, ranks)), None, None
    if kind == "two_stage":
        return ("TwoStageASGDStrategy", own | _two_stage(dice, ranks_per_host)), None, None
    size = dice.choice([size for size in range(1, ranks + 1) if ranks % size == 0])
    groups = ranks // size
    own["group_size"] = "world" if groups == 1 and dice.random() < 0.5 else size
    if ranks_per_host % 2 == 0 and dice.random() < 0.15:
        own["ranks_per_device"] = 2
    strategy: Named = ("HierarchicalStrategy", _with_automatic(dice, own))
    gradient: Named = ("AllReduce", {})
    if dice.random() < 0.6:
        gradient = ("GTC", _with_automatic(dice, _gtc(dice)))
    if groups == 1 and dice.random() < 0.6:
        return strategy, gradient, None
    name = dice.choice(("ModelAveraging", "BMUF", "BMUF", "BMUFAdam", "DiLoCo"))
    return strategy, gradient, (name, _with_automatic(dice, _block(dice, name, groups)))


def _with_automatic(dice: random.Random, settings: dict[str, Any]) -> dict[str, Any]:
    """The same settings, of which some are "auto".

    Fragments and delays are left out where blocks are automatic and may be too short for them.
    """
    chosen = [key for key in AUTOMATIC if key in settings and dice.random() < 0.12]
    left_out = ("fragments", "overlap", "merge") if "block_size" in chosen else ()
    kept = {key: value for key, value in settings.items() if key not in left_out}
    return kept | dict.fromkeys(chosen, "auto")


def _gtc(dice: random.Random) -> dict[str, Any]:
    name, values = dice.choice((("threshold", (0.01, 0.1)), ("density", (0.05, 0.3))))
    return {name: dice.choice(values), "dense_below": dice.choice((0, 0, 10, 1024))}


def _block(dice: random.Random, name: str, groups: int) -> dict[str, Any]:
    size = dice.randint(1, 5)
    settings: dict[str, Any] = {"block_size": size}
    if dice.random() < 0.3:
        settings["fragments"] = dice.randint(1, size)
    if dice.random() < 0.25:
        settings["across_dtype"] = dice.choice(("bfloat16", "int8", "int4"))
    if dice.random() < 0.2:
        settings["across_density"] = 0.2
    if dice.random() < 0.4:
        settings["across"] = dice.choice(("leader", "sharded"))
    if name in ("ModelAveraging", "BMUF"):
        settings["local_momentum"] = dice.choice(("reset", "keep", "average"))
    if settings.get("local_momentum") != "average" and dice.random() < 0.4:
        settings["overlap"] = dice.choice((True, dice.randint(1, size)))
        settings["merge"] = dice.choice(("progress", "progress", 0.3, 0.5, 1.0))
    if name == "DiLoCo":
        settings |= _outer(dice)
    elif name != "ModelAveraging":
        settings |= _momentum(dice, name, groups)
    if dice.random() < 0.2:
        settings["weighting"] = "samples"
        if settings.get("block_lr", 1.0) > 1.0 or "update_from" in settings:
            settings.setdefault("block_momentum", 0.4)  # "auto" would be refused
    return settings


def _momentum(dice: random.Random, name: str, groups: int) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if dice.random() < 0.4:
        settings["block_momentum"] = dice.choice((0.0, 0.4, 0.9))
    if dice.random() < 0.3:
        settings["nesterov"] = False
    if dice.random() < 0.25 and groups > 1:
        settings["block_lr"] = dice.choice((0.5, 1.2))
    if name == "BMUF":
        return settings | ({"update_from": "start"} if dice.random() < 0.2 else {})
    settings["local_beta1"] = dice.choice(("keep", "keep", 0.6))
    settings["moments"] = dice.choice(("corrected", "corrected", "average"))
    settings["moments_every"] = dice.choice((1, 1, 2, 3))
    return settings


def _outer(dice: random.Random) -> dict[str, Any]:
    if dice.random() < 0.3:
        return {"outer_optimizer": dice.choice(OUTER_OPTIMIZERS)}
    return {
        "outer_lr": dice.choice((0.7, 1.0)),
        "outer_momentum": dice.choice((0.0, 0.5, 0.9, "auto")),
        "nesterov": dice.random() < 0.7,
    }


def _psp(dice: random.Random, ranks: int) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if ranks > 1 and dice.random() < 0.5:
        settings["min_pushes"] = dice.choice((ranks - 1, 1, 0.5))
        settings["push_timeout_s"] = dice.choice((0.0, 0.05))
    if dice.random() < 0.3:
        settings["min_pulled"] = 0.5
        settings["pull_timeout_s"] = dice.choice((0.0, 0.05))
    if dice.random() < 0.3:
        settings["linear_scaling"] = False
    return settings


def _two_stage(dice: random.Random, ranks_per_host: int) -> dict[str, Any]:
    sizes = [size for size in range(1, ranks_per_host + 1) if ranks_per_host % size == 0]
    settings = {"group_size": dice.choice(sizes), "push_period": dice.randint(1, 4)}
    for name in ("order_locking", "double_buffering", "hierarchical_lr"):
        if dice.random() < 0.3:
            settings[name] = False
    if dice.random() < 0.3:
        settings["refresh_period"] = 2
    return settings
