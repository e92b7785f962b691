"""Draws a strategy whose arguments are valid together and for the number of ranks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.fuzz.case import Named

Drawn = tuple[Named, Named | None, Named | None]

# Outer steps on such small models are small, so that no model diverges.
OUTER_OPTIMIZERS: Sequence[Named] = (
    ("SGD", {"lr": 0.7, "momentum": 0.5}),
    ("Adam", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.01}),
    ("Adagrad", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01}),
)


def draw_strategy(dice: random.Random, ranks: int, ranks_per_host: int) -> Drawn:
    """Draw a strategy, a gradient synchronisation and a block synchronisation."""
    kind = dice.choices(("composed", "preset", "psp", "two_stage"), (55, 25, 11, 9))[0]
    warmup = dice.choices((0, 1, 3), (65, 15, 20))[0]
    if kind == "psp":
        return _psp(dice, ranks, warmup), None, None
    if kind == "two_stage":
        return _two_stage(dice, ranks, ranks_per_host, warmup), None, None
    own: dict[str, Any] = {"warmup_steps": warmup}
    if ranks_per_host % 2 == 0 and dice.random() < 0.15:
        own["ranks_per_device"] = 2
    drawn = _preset(dice, ranks, own) if kind == "preset" else _composed(dice, ranks, own)
    strategy, gradient, block = (named and _with_automatic(dice, named) for named in drawn)
    assert strategy is not None
    return _with_late_moments(strategy), gradient, block and _with_late_moments(block)


def _with_automatic(dice: random.Random, named: Named) -> Named:
    """The same settings, of which some are "auto" instead of a value.

    Fragments and delays are left out where blocks are automatic and may be too short for them.
    """
    name, arguments = named
    automatic = ("warmup_steps", "block_size", "density", "local_beta1", "block_momentum")
    chosen = [key for key in automatic if key in arguments and dice.random() < 0.12]
    left_out = ("fragments", "overlap", "merge") if "block_size" in chosen else ()
    settings = {key: value for key, value in arguments.items() if key not in left_out}
    return name, settings | dict.fromkeys(chosen, "auto")


def _with_late_moments(named: Named) -> Named:
    """The same settings. BMUF-Adam often gets an overlap, or moments that are exchanged seldom.

    The draw has its own generator, so that all other draws of a seed do not change.
    """
    name, arguments = named
    if not name.startswith("BMUFAdam") or arguments["block_size"] == "auto":
        return named
    dice, settings = random.Random(repr(named)), dict(arguments)
    late = dice.random() < 0.5
    if late:
        settings["overlap"] = dice.choice((True, dice.randint(1, settings["block_size"])))
    if name == "BMUFAdam":
        settings["moments_every"] = dice.choice((1, 1, 2, 3))
        if late:
            settings["merge"] = dice.choice(("progress", "progress", 0.3, 0.5, 1.0))
    return name, settings


def _composed(dice: random.Random, ranks: int, own: dict[str, Any]) -> Drawn:
    size = _group_size(dice, ranks)
    groups = ranks // size
    own["group_size"] = "world" if groups == 1 and dice.random() < 0.5 else size
    gradient: Named = ("AllReduce", {}) if dice.random() < 0.4 else ("GTC", _gtc(dice))
    if groups == 1 and dice.random() < 0.6:
        return ("HierarchicalStrategy", own), gradient, None
    name = dice.choice(("ModelAveraging", "BMUF", "BMUF", "BMUFAdam", "DiLoCo"))
    arguments = _block(dice, name, groups)
    if arguments.get("overlap"):
        arguments["merge"] = dice.choice(("progress", "progress", 0.3, 0.5, 1.0))
    if dice.random() < 0.4:
        arguments["across"] = dice.choice(("leader", "sharded"))
    # These draws have their own generators, so that all other draws of a seed do not change.
    if random.Random(repr(arguments)).random() < 0.2:
        arguments["across_density"] = 0.2
    if random.Random(repr((own, arguments))).random() < 0.2:
        arguments |= _by_samples(arguments)
    return ("HierarchicalStrategy", own), gradient, (name, arguments)


def _by_samples(arguments: dict[str, Any]) -> dict[str, Any]:
    """Weights groups by samples. Block momentum is a number if "auto" would be refused."""
    settings: dict[str, Any] = {"weighting": "samples"}
    if arguments.get("block_lr", 1.0) > 1.0 or arguments.get("update_from") == "start":
        settings["block_momentum"] = arguments.get("block_momentum", 0.4)
    return settings


def _preset(dice: random.Random, ranks: int, own: dict[str, Any]) -> Drawn:
    names = ("GTCStrategy", "ModelAveragingStrategy", "BMUFStrategy", "BMUFAdamStrategy")
    name = dice.choice((*names, "BMUFGTCStrategy", "DiLoCoStrategy"))
    if name == "GTCStrategy":
        own |= _gtc(dice)
    elif name == "ModelAveragingStrategy":
        own |= _block(dice, "ModelAveraging", ranks)
    elif name == "DiLoCoStrategy":
        own["group_size"] = _group_size(dice, ranks)
        own |= _block(dice, "DiLoCo", ranks // own["group_size"])
    elif name == "BMUFGTCStrategy":
        own["group_size"] = _group_size(dice, ranks)
        own |= _gtc(dice) | _block(dice, "BMUF", ranks // own["group_size"])
    else:
        own |= _block(dice, name.removesuffix("Strategy"), ranks)
    return (name, own), None, None


def _group_size(dice: random.Random, ranks: int) -> int:
    return dice.choice([size for size in range(1, ranks + 1) if ranks % size == 0])


def _gtc(dice: random.Random) -> dict[str, Any]:
    below = dice.choice((0, 0, 10, 1024))
    if dice.random() < 0.3:
        return {"threshold": dice.choice((0.01, 0.1)), "dense_below": below}
    return {"density": dice.choice((0.05, 0.3)), "dense_below": below}


def _block(dice: random.Random, name: str, groups: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"block_size": dice.randint(1, 5)}
    if dice.random() < 0.3:
        settings["fragments"] = dice.randint(1, settings["block_size"])
    if dice.random() < 0.25:
        settings["across_dtype"] = dice.choice(("bfloat16", "int8", "int4"))
    if name == "DiLoCo":
        settings |= _outer(dice)
    elif name != "BMUFAdam":
        settings["local_momentum"] = dice.choice(("reset", "keep", "average"))
    if name != "BMUFAdam":
        if settings.get("local_momentum") != "average" and dice.random() < 0.4:
            settings["overlap"] = dice.choice((True, dice.randint(1, settings["block_size"])))
    else:
        settings["local_beta1"] = dice.choice(("keep", "keep", 0.6))
        if dice.random() < 0.3:
            settings["moments"] = "average"
    if name in ("ModelAveraging", "DiLoCo"):
        return settings
    if dice.random() < 0.4:
        settings["block_momentum"] = dice.choice((0.0, 0.4, 0.9))
    if dice.random() < 0.3:
        settings["nesterov"] = False
    if dice.random() < 0.25 and groups > 1:
        settings["block_lr"] = dice.choice((0.5, 1.2))
    if name == "BMUF" and dice.random() < 0.2:
        settings["update_from"] = "start"
    return settings


def _outer(dice: random.Random) -> dict[str, Any]:
    if dice.random() < 0.3:
        return {"outer_optimizer": dice.choice(OUTER_OPTIMIZERS)}
    settings: dict[str, Any] = {"outer_lr": dice.choice((0.7, 1.0))}
    if dice.random() < 0.6:
        settings["outer_momentum"] = dice.choice((0.0, 0.5, "auto"))
    if dice.random() < 0.3:
        settings["nesterov"] = False
    return settings


def _psp(dice: random.Random, ranks: int, warmup: int) -> Named:
    settings: dict[str, Any] = {"warmup_steps": warmup}
    if ranks > 1 and dice.random() < 0.5:
        settings["min_pushes"] = dice.choice((ranks - 1, 1, 0.5))
        settings["push_timeout_s"] = dice.choice((0.0, 0.05))
    if dice.random() < 0.3:
        settings["min_pulled"] = 0.5
        settings["pull_timeout_s"] = dice.choice((0.0, 0.05))
    if dice.random() < 0.3:
        settings["linear_scaling"] = False
    return "PSPStrategy", settings


def _two_stage(dice: random.Random, ranks: int, ranks_per_host: int, warmup: int) -> Named:
    sizes = [size for size in range(1, ranks_per_host + 1) if ranks_per_host % size == 0]
    settings: dict[str, Any] = {
        "warmup_steps": warmup,
        "group_size": dice.choice(sizes),
        "push_period": dice.randint(1, 4),
    }
    for name in ("order_locking", "double_buffering", "hierarchical_lr"):
        if dice.random() < 0.3:
            settings[name] = False
    if dice.random() < 0.3:
        settings["refresh_period"] = 2
    return "TwoStageASGDStrategy", settings
