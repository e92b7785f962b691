"""`lightning-hier plan`: what each strategy would cost, and which one to take."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict
from typing import Any

from lightning_hier.algorithms.planning.network import Network
from lightning_hier.algorithms.planning.overview import (
    Choices,
    doublings,
    predict_all,
    speedups,
)
from lightning_hier.algorithms.planning.placement import Placement
from lightning_hier.algorithms.planning.prediction import Prediction
from lightning_hier.algorithms.planning.recommend import (
    Recommendation,
    Wishes,
    recommend,
)
from lightning_hier.algorithms.planning.tuning import recommend_push_period
from lightning_hier.algorithms.planning.workload import Workload
from lightning_hier.cli.plan.arguments import (
    network_of,
    parser,
    read_measurement,
    workload_of,
)
from lightning_hier.cli.plan.strategy_yaml import as_text, strategy_yaml
from lightning_hier.cli.plan.table import headline, show


def run(args: list[str]) -> None:
    """Print the plan, and write what else was asked for.

    Args:
        args: of the command line.

    Raises:
        ValueError: an argument, or a file that is named in one; says what would be right.
        OSError: a file can't be read or written.

    """
    told = parser().parse_args(args)
    measured = read_measurement(told.network)
    network, workload = network_of(told, measured), workload_of(told, measured)
    recommended = recommend(workload, network, wishes=_wishes(told))
    push_period, why_period = recommend_push_period(workload, network)
    choices = _choices(told, recommended, push_period)
    predictions = predict_all(workload, network, choices)
    show(headline(workload, network), predictions)
    _say(recommended, why_period if network.hosts > 1 else "")
    if told.yaml is not None:
        told.yaml.write_text(strategy_yaml(recommended, network))
        print(f"\nwritten: {told.yaml}")
    if told.json is not None:
        told.json.write_text(_as_json(workload, network, predictions, recommended))
        print(f"\nwritten: {told.json}")
    if told.png is not None:
        _draw(told, workload, network, choices)
        print(f"\nwritten: {told.png}")


def _wishes(told: Namespace) -> Wishes:
    return Wishes(
        block_size=told.block_size,
        group_size=told.group_size,
        density=told.density,
        across_dtype=told.across_dtype,
        overlap=told.overlap,
        share=told.share,
    )


def _choices(told: Namespace, recommended: Recommendation, push_period: int) -> Choices:
    settings = recommended.settings
    return Choices(
        block_size=settings.block_size,
        group_size=settings.group_size,
        across_dtype=settings.across_dtype,
        overlap=settings.overlap,
        density=told.density or recommended.density or 0.01,
        push_period=push_period if told.push_period is None else told.push_period,
    )


def _say(recommended: Recommendation, further: str) -> None:
    arguments = "".join(
        f"\n    {name}: {as_text(value)}" for name, value in recommended.arguments.items()
    )
    found = recommended.prediction
    print(f"\nrecommended: {recommended.strategy}{arguments}")
    print(f"  {found.efficiency:.1%} of linear speed, {found.speedup:.1f} times one rank")
    for reason in recommended.reasons:
        print(f"  - {reason}")
    if further:
        print(f"\ntwo-stage ASGD: {further}")


def _as_json(
    workload: Workload,
    network: Network,
    predictions: list[Prediction],
    recommended: Recommendation,
) -> str:
    told: dict[str, Any] = {
        "workload": asdict(workload),
        "network": asdict(network),
        "predictions": [own.as_dict() for own in predictions],
        "recommended": {
            "strategy": recommended.strategy,
            "arguments": dict(recommended.arguments),
            "reasons": list(recommended.reasons),
            "prediction": recommended.prediction.as_dict(),
        },
    }
    return json.dumps(told, indent=2) + "\n"


def _draw(told: Namespace, workload: Workload, network: Network, choices: Choices) -> None:
    from lightning_hier.cli.plan.plot import draw

    group = Placement(network=network, group_size=choices.group_size).group
    hosts = doublings(told.most_hosts, group.hosts)
    curves = speedups(workload, network, choices, hosts)
    title = (
        f"{workload.name}, {workload.parameters / 1e6:.3g}M parameters, {network.devices} devices "
        f"a host, {8e-6 * network.between.bytes_per_second:.4g} Mbit/s; block {choices.block_size}"
    )
    draw(told.png, title, curves)
