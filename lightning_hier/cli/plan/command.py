"""`lightning-hier plan`: prints the table and the recommendation, and writes files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import yaml

from lightning_hier.cli.plan.arguments import cluster_and_work, given, parser
from lightning_hier.planning import (
    Network,
    Prediction,
    Recommendation,
    Settings,
    Workload,
    predict_all,
    recommend,
)


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
    recommended = recommend(workload, network, given(arguments, Settings))
    # With the settings of the recommendation, so that both tables agree.
    predictions = predict_all(workload, network, recommended.candidates[0].settings)
    _print_cluster(workload, network)
    _print_table(predictions)
    if recommended.strategy != "ddp":
        print("\nblock synchronisations, preferred ones first:")
        _print_table([candidate.prediction for candidate in recommended.candidates])
    _print_recommended(recommended)
    if arguments.yaml is not None:
        arguments.yaml.write_text(_as_yaml(recommended, network))
        print(f"\nwritten: {arguments.yaml}")
    if arguments.json is not None:
        values = {
            "workload": asdict(workload),
            "network": asdict(network),
            "predictions": [prediction.as_dict() for prediction in predictions],
            "recommended": asdict(recommended)
            | {
                "prediction": recommended.prediction.as_dict(),
                "candidates": [
                    candidate.prediction.as_dict() for candidate in recommended.candidates
                ],
            },
        }
        arguments.json.write_text(json.dumps(values, indent=2) + "\n")
        print(f"\nwritten: {arguments.json}")


def _print_cluster(workload: Workload, network: Network) -> None:
    between, within = network.between, network.within
    print(
        f"{workload.name}: {workload.parameters / 1e6:.4g} million parameters, "
        f"{1e3 * workload.step_s:.4g} ms a step, {workload.optimizer}\n"
        f"{network.hosts} hosts of {network.devices} devices; between hosts "
        f"{8e-6 * between.bytes_per_second:.4g} Mbit/s and {1e3 * between.latency_s:.3g} ms, "
        f"inside {8e-9 * within.bytes_per_second:.4g} Gbit/s and {1e6 * within.latency_s:.3g} us\n"
    )


def _print_table(predictions: Sequence[Prediction]) -> None:
    """Print a row for each prediction."""
    columns: dict[str, Callable[[Prediction], str]] = {
        "strategy": lambda own: own.strategy,
        "settings": lambda own: ", ".join(f"{n} {value}" for n, value in own.settings.items()),
        "ms a step": lambda own: f"{1e3 * own.step_s:.4g}",
        "efficiency": lambda own: f"{own.efficiency:.1%}",
        "MB a host and step": lambda own: f"{own.host_bytes / 1e6:.3g}",
        "MB at once": lambda own: f"{own.peak_bytes / 1e6:.3g}",
        "ms of pause": lambda own: f"{1e3 * own.pause_s:.3g}",
        "MB of a rank": lambda own: f"{own.memory_bytes / 1e6:.0f}",
    }
    cells = [list(columns), *([cell(own) for cell in columns.values()] for own in predictions)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    # Texts to the left, numbers to the right, so that their digits are below each other.
    for row in cells:
        texts = (c.ljust(w) for c, w in zip(row[:2], widths[:2], strict=True))
        numbers = (c.rjust(w) for c, w in zip(row[2:], widths[2:], strict=True))
        print("  ".join([*texts, *numbers]))


def _print_recommended(recommended: Recommendation) -> None:
    prediction = recommended.prediction
    print(f"\nrecommended: {recommended.strategy}")
    for name, value in recommended.arguments.items():
        print(f"    {name}: {value}")
    print(f"  {prediction.efficiency:.1%} of linear speed, {prediction.speedup:.1f} times one rank")
    for reason in recommended.reasons:
        print(f"  - {reason}")


def _as_yaml(recommended: Recommendation, network: Network) -> str:
    """Trainer settings for `lightning-hier fit --config`, with the reasons as comments."""
    strategy: Any = recommended.strategy
    if recommended.arguments:
        class_path = f"lightning_hier.{recommended.strategy}"
        strategy = {"class_path": class_path, "init_args": dict(recommended.arguments)}
    trainer = {"strategy": strategy, "num_nodes": network.hosts, "devices": network.devices}
    comments = "".join(f"# {reason}\n" for reason in recommended.reasons)
    if network.hosts > 1:
        comments += "# To try it on one host: --trainer.num_nodes=1\n"
    return comments + yaml.safe_dump({"trainer": trainer}, sort_keys=False)
