"""`lightning-hier plan`: prints the table and the recommendation, and writes files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import yaml

from lightning_hier.cli.plan.arguments import SETTINGS, cluster_and_work, given, parser
from lightning_hier.planning import (
    Network,
    Prediction,
    Recommendation,
    Workload,
    predict_all,
    recommend,
)

# Mini-batches of a device between two pushes of two-stage ASGD. The paper uses 2.
_LONG_PERIOD = 32


def run(args: list[str]) -> None:
    """Print the plan and write the requested files.

    Args:
        args: arguments of the command line.

    Raises:
        ValueError: an argument or a file is malformed.
        OSError: a file cannot be read or written.

    """
    arguments = parser().parse_args(args)
    network, workload = cluster_and_work(arguments)
    recommended = recommend(workload, network, given(arguments, *SETTINGS))
    predictions = predict_all(workload, network, recommended.settings)
    _print_table(workload, network, predictions)
    _print_recommended(recommended, network.devices)
    if arguments.yaml is not None:
        arguments.yaml.write_text(_as_yaml(recommended, network))
        print(f"\nwritten: {arguments.yaml}")
    if arguments.json is not None:
        values = {
            "workload": asdict(workload),
            "network": asdict(network),
            "predictions": [prediction.as_dict() for prediction in predictions],
            "recommended": asdict(recommended) | {"prediction": recommended.prediction.as_dict()},
        }
        arguments.json.write_text(json.dumps(values, indent=2) + "\n")
        print(f"\nwritten: {arguments.json}")


def _print_table(workload: Workload, network: Network, predictions: Sequence[Prediction]) -> None:
    between, within = network.between, network.within
    print(
        f"{workload.name}: {workload.parameters / 1e6:.4g} million parameters, "
        f"{1e3 * workload.step_s:.4g} ms a step, {workload.optimizer}\n"
        f"{network.hosts} hosts of {network.devices} devices; between hosts "
        f"{8e-6 * between.bytes_per_second:.4g} Mbit/s and {1e3 * between.latency_s:.3g} ms, "
        f"inside {8e-9 * within.bytes_per_second:.4g} Gbit/s and {1e6 * within.latency_s:.3g} us\n"
    )
    shown = [
        ", ".join(f"{name} {value}" for name, value in prediction.settings.items())
        for prediction in predictions
    ]
    width = max(map(len, shown))
    print(
        f"{'strategy':<15} {'settings':<{width}}   ms a step  efficiency  speedup  "
        "MB a host and step  MB of a rank"
    )
    for found, settings in zip(predictions, shown, strict=True):
        print(
            f"{found.strategy:<15} {settings:<{width}} {1e3 * found.step_s:>11.4g} "
            f"{found.efficiency:>11.1%} {found.speedup:>8.1f} {found.host_bytes / 1e6:>19.3g} "
            f"{found.memory_bytes / 1e6:>13.0f}"
        )


def _print_recommended(recommended: Recommendation, devices: int) -> None:
    found = recommended.prediction
    print(f"\nrecommended: {recommended.strategy}")
    for name, value in recommended.arguments.items():
        print(f"    {name}: {value}")
    print(f"  {found.efficiency:.1%} of linear speed, {found.speedup:.1f} times one rank")
    for reason in recommended.reasons:
        print(f"  - {reason}")
    if recommended.settings.push_period > _LONG_PERIOD * devices:
        print("\ntwo_stage_asgd: the link to the master is too slow for this number of nodes")


def _as_yaml(recommended: Recommendation, network: Network) -> str:
    """Trainer settings for `lightning-hier fit --config`, with the reasons as comments."""
    strategy: Any = recommended.strategy
    if recommended.arguments:
        class_path = f"lightning_hier.{recommended.strategy}"
        strategy = {"class_path": class_path, "init_args": dict(recommended.arguments)}
    trainer = {"strategy": strategy, "num_nodes": network.hosts, "devices": network.devices}
    comments = "".join(f"# {reason}\n" for reason in recommended.reasons)
    return comments + yaml.safe_dump({"trainer": trainer}, sort_keys=False)
