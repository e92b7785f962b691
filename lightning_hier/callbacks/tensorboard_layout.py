"""Layout of the metrics by tier in TensorBoard's tab "Custom Scalars"."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

# Charts by title, with their tags as regular expressions, because kinds of messages appear with the
# first message, and with several optimizers their index is part of the name.
Charts = dict[str, str]

_ONE_OPTIMIZER = r"(\d+/)?"


def _tier(tier: str) -> Charts:
    return {
        "payload bytes by kind": rf"hier/{tier}/[a-z_]+/payload_bytes",
        "seconds in flight by kind": rf"hier/{tier}/[a-z_]+/seconds",
        "messages by kind": rf"hier/{tier}/[a-z_]+/calls",
    }


_TIERS: dict[str, Charts] = {
    # One metric in each chart, so that its lines are runs.
    "Runs side by side": {
        "seconds of a step": "hier/step/seconds",
        "seconds of a step in which training waited within its group": (
            "hier/step/group/waited_seconds"
        ),
        "seconds of a step in which training waited for other groups": (
            "hier/step/across/waited_seconds"
        ),
        "payload bytes of a step within a group": "hier/step/group/payload_bytes",
        "payload bytes of a step across groups": "hier/step/across/payload_bytes",
        "payload bytes across groups so far": "hier/across/payload_bytes",
    },
    "Both tiers": {
        "payload bytes": r"hier/((group|across)/)?payload_bytes",
        "seconds in flight": r"hier/(group|across)/seconds",
        "seconds in which training waited": r"hier/((group|across)/)?waited_seconds",
        "seconds since the start": "hier/elapsed_seconds",
    },
    "Within a group": _tier("group"),
    "Across groups": _tier("across"),
}

# Further charts, by a setting that only the strategies with these metrics have.
_BY_SETTING: dict[str, dict[str, Charts]] = {
    "threshold": {
        "GTC": {
            "density (fraction of elements sent)": "hier/gtc/density",
            "norm of the residuals": "hier/gtc/residual_norm",
        },
    },
    "block_size": {
        "Block": {
            "norm of the global update": rf"hier/block/{_ONE_OPTIMIZER}update_norm",
            "distance between the groups' models": rf"hier/block/{_ONE_OPTIMIZER}model_distance",
            "blocks, and their steps by a rule": (
                rf"hier/block/{_ONE_OPTIMIZER}(blocks|block_size)"
            ),
        },
    },
    "min_pushes": {
        "Servers (PSP)": {
            "staleness of gradients": "hier/psp/staleness",
            "gradients of an update": "hier/psp/gradients_per_round",
            "updates of this rank's shard": "hier/psp/rounds",
            "late, dropped, unsent, not finite": "hier/psp/(late|dropped|unsent|nonfinite)",
            "seconds waited for shards": "hier/psp/waiting_seconds",
            "refused messages": r"hier/refused/.+",
        },
    },
    "push_period": {
        "Servers (two-stage ASGD)": {
            "this rank's training": rf"hier/two_stage/{_ONE_OPTIMIZER}device/.+",
            "its group's first rank": rf"hier/two_stage/{_ONE_OPTIMIZER}node/.+",
            "the master": rf"hier/two_stage/{_ONE_OPTIMIZER}master/.+",
            "refused messages": r"hier/refused/.+",
        },
    },
}


def layout(settings: Collection[str]) -> dict[str, Any]:
    """The layout for ``SummaryWriter.add_custom_scalars``.

    Args:
        settings: names of the settings of the strategy.

    """
    groups = dict(_TIERS)
    for name, charts in _BY_SETTING.items():
        groups |= charts if name in settings else {}
    return {
        group: {title: ["Multiline", [f"^{tags}$"]] for title, tags in charts.items()}
        for group, charts in groups.items()
    }
