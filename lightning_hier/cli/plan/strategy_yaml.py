"""Trainer settings as a YAML text that `lightning-hier fit --config` takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_hier.algorithms.planning.network import Network
from lightning_hier.algorithms.planning.recommend import Recommendation


def strategy_yaml(recommendation: Recommendation, network: Network) -> str:
    """The recommended strategy on this many hosts, with the reasons as comments."""
    strategy: Any = "ddp"
    if recommendation.strategy != "ddp":
        strategy = {"class_path": f"lightning_hier.{recommendation.strategy}"}
        if recommendation.arguments:
            strategy["init_args"] = recommendation.arguments
    trainer = {"strategy": strategy, "num_nodes": network.hosts, "devices": network.devices}
    comments = [f"# {reason}" for reason in recommendation.reasons]
    return "\n".join([*comments, *_lines({"trainer": trainer})]) + "\n"


def as_text(value: Any) -> str:
    """A setting, for people and for YAML, which reads JSON too."""
    return value if isinstance(value, str) else json.dumps(value)


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {as_text(value)}"
