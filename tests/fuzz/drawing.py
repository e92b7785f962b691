"""Draws a case from a seed. Most cases are valid and train to the end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

from tests.fuzz.case import Case, Fault, Named
from tests.fuzz.drawing_strategies import draw_strategy

Item = TypeVar("Item")

ADAMS: Sequence[Named] = (
    ("Adam", {"lr": 0.02, "betas": (0.5, 0.99), "weight_decay": 0.01}),
    ("AdamW", {"lr": 0.02, "foreach": False}),
    ("NAdam", {"lr": 0.02}),
    ("RAdam", {"lr": 0.02, "betas": (0.8, 0.98)}),
)
WITH_MOMENTUM: Sequence[Named] = (
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.5, "dampening": 0.3, "foreach": False}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.5}),
)
OTHERS: Sequence[Named] = (
    ("SGD", {"lr": 0.05}),
    ("Adam", {"lr": 0.02, "amsgrad": True}),
    ("Adagrad", {"lr": 0.05}),
    ("Adamax", {"lr": 0.02}),
    ("Rprop", {"lr": 0.01}),
    ("ASGD", {"lr": 0.02}),
    ("Adafactor", {"lr": 0.02}),
)
HOOKS = ("on_train_batch_end",) * 6 + (
    "on_validation_end",
    "on_validation_batch_end",
    "on_train_epoch_end",
)


def draw(seed: int) -> Case:
    """The case of a seed, which is the same at every call."""
    dice = random.Random(seed)
    ranks = dice.choices((1, 2, 3, 4), (10, 48, 14, 28))[0]
    hosts = 2 if ranks % 2 == 0 and dice.random() < 0.25 else 1
    strategy, gradient, block = draw_strategy(dice, ranks, ranks // hosts)
    servers = strategy[0] != "HierarchicalStrategy"
    case: dict[str, Any] = {
        "seed": seed,
        "ranks": ranks,
        "hosts": hosts,
        "gradient": gradient,
        "block": block,
        "batchnorm": dice.random() < 0.3,
        "dropout": 0.3 if dice.random() < 0.3 else 0.0,
        "batches": dice.randint(3, 7),
        "epochs": dice.randint(1, 3),
        "accumulate": dice.choices((1, 2, 3), (65, 25, 10))[0],
        "skips": dice.random() < 0.15,
    }
    case |= _optimizers(dice, _optimizers_for(block), plain=servers)
    case |= _arithmetic(dice)
    if case["epochs"] > 1 and not servers and len(case["optimizers"]) == 1:
        case["unfreezes"] = dice.random() < 0.15
    if case["skips"] or dice.random() < 0.1:
        strategy[1]["find_unused_parameters"] = True
    case["strategy"] = strategy
    case |= _evaluation(dice, case)
    case["fault"] = _fault(dice, case)
    if dice.random() < 0.7:
        same = dice.random() < 0.7 or case["fault"] is not None
        case["resume_ranks"] = ranks if same else _another_world(dice, case)
    return Case(**case)


def _optimizers_for(block: Named | None) -> Sequence[Named]:
    name, settings = block or ("", {})
    if name == "BMUFAdam":
        return ADAMS
    if settings.get("local_momentum") == "average":
        return WITH_MOMENTUM
    return (*ADAMS, *WITH_MOMENTUM, *OTHERS)


def _optimizers(dice: random.Random, choices: Sequence[Named], plain: bool) -> dict[str, Any]:
    by_hand = not plain and dice.random() < 0.25
    number = 2 if by_hand and dice.random() < 0.5 else 1
    drawn = [dice.choice(choices) for _ in range(number)]
    return {
        "by_hand": by_hand,
        "optimizers": [(name, dict(arguments)) for name, arguments in drawn],
        "scheduler": _often_none(dice, 0.4, ("step", "epoch")),
    }


def _arithmetic(dice: random.Random) -> dict[str, Any]:
    names = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed")
    precision = dice.choices(names, (65, 10, 10, 5, 10))[0]
    dtypes = ("float32", "float64", "bfloat16", "two")
    dtype = dice.choices(dtypes, (70, 10, 8, 12))[0] if precision == "32-true" else "float32"
    return {"precision": precision, "dtype": dtype}


def _evaluation(dice: random.Random, case: dict[str, Any]) -> dict[str, Any]:
    hook = dice.choice(HOOKS)
    number = dice.randint(1, case["batches"] * case["epochs"] - 1)
    every = dice.randint(1, case["batches"])
    if case["by_hand"] and case["accumulate"] > 1:
        # A checkpoint does not contain gradients that manual optimization has accumulated. The save
        # is therefore after a step, or at the end of an epoch.
        places = [*range(case["accumulate"], case["batches"], case["accumulate"]), case["batches"]]
        number = dice.randrange(case["epochs"]) * case["batches"] + dice.choice(places)
        return {"save": ("on_train_batch_end", number), "validate_every": every}
    if hook.startswith("on_validation"):
        number = dice.randint(1, max(1, case["epochs"] * (case["batches"] // every) - 1))
    if hook == "on_train_epoch_end":
        number = dice.randint(1, max(1, case["epochs"] - 1))
    return {"save": (hook, number), "validate_every": every}


def _fault(dice: random.Random, case: dict[str, Any]) -> Fault | None:
    if dice.random() > 0.15:
        return None
    return Fault(
        kind=dice.choice(("kill", "kill", "nan", "nan", "raise")),
        rank=dice.randrange(case["ranks"]),
        step=dice.randrange(case["batches"] * case["epochs"]),
    )


def _another_world(dice: random.Random, case: dict[str, Any]) -> int:
    """A number of ranks on which to resume. The group size divides it in most cases."""
    settings = case["strategy"][1]
    size, of_device = settings.get("group_size", 1), settings.get("ranks_per_device", 1)
    fitting = [
        ranks
        for ranks in (1, 2, 3, 4)
        if ranks % (case["hosts"] * of_device) == 0 and (size == "world" or ranks % size == 0)
    ]
    case["validate_every"] = 1  # more ranks have fewer batches each
    return dice.choice((1, 2, 3, 4) if dice.random() < 0.1 else fitting)


def _often_none(dice: random.Random, probability: float, values: Sequence[Item]) -> Item | None:
    value = dice.choice(values)
    return value if dice.random() < probability else None
