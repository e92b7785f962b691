"""`lightning-hier plan`: predicts the cost of each strategy, and recommends one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NoReturn, get_args

import yaml

from lightning_hier.cli.mistakes import PROGRAM, end_with
from lightning_hier.planning import (
    Link,
    Network,
    Prediction,
    Processor,
    Recommendation,
    Settings,
    Workload,
    predict_all,
    recommend,
)
from lightning_hier.planning.inputs import OptimizerName
from lightning_hier.planning.prediction import ACROSS_BYTES, BlockSyncName

_TEXT = """\
Predict the cost of each strategy without training, and recommend one.

  lightning-hier plan --parameters 24.3e6 --step-s 0.15 --hosts 16 --devices 8 \\
                      --between-mbit-s 950 --within-gbit-s 100 --yaml strategy.yaml"""

# For each argument with a unit: component of the network, name of the field, factor of the unit.
_UNITS = {
    "between_mbit_s": ("between", "bytes_per_second", 1e6 / 8),
    "between_latency_ms": ("between", "latency_s", 1e-3),
    "within_gbit_s": ("within", "bytes_per_second", 1e9 / 8),
    "within_latency_us": ("within", "latency_s", 1e-6),
    "copy_gbyte_s": ("processor", "copy_bytes_per_second", 1e9),
    "socket_gbyte_s": ("processor", "socket_bytes_per_second", 1e9),
}
_DEFAULTS = {
    "between": {"latency_s": 1e-4},
    "within": {"bytes_per_second": 100e9 / 8, "latency_s": 20e-6},
}
_FLAG: dict[str, Any] = {"action": "store_true", "default": None}
_COUNT: dict[str, Any] = {"type": int, "metavar": "N"}
_NUMBER: dict[str, Any] = {"type": float, "metavar": "X"}


def run(args: list[str]) -> None:
    """Print the plan and write the requested files.

    Args:
        args: arguments of the command line.

    Raises:
        ValueError: an argument or a file is malformed.
        OSError: a file cannot be read or written.

    """
    arguments = _parser().parse_args(args)
    network, workload = _cluster_and_work(arguments)
    recommended = recommend(workload, network, _given(arguments, Settings))
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


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        end_with(f"{message}; '{self.prog} --help' lists the arguments")


def _parser() -> argparse.ArgumentParser:
    """Create the parser, whose help shows the text without reformatting."""
    plain = argparse.RawDescriptionHelpFormatter
    command = _Parser(prog=f"{PROGRAM} plan", description=_TEXT, formatter_class=plain)
    add = command.add_argument
    add("--yaml", type=Path, metavar="FILE", help="write the recommended Trainer settings")
    add("--json", type=Path, metavar="FILE", help="write all predictions")
    add = command.add_argument_group("the cluster").add_argument
    add("--hosts", **_COUNT, help="number of hosts")
    add("--devices", **_COUNT, help="ranks of one host")
    add("--between-mbit-s", **_NUMBER, help="payload of the link between hosts, each way")
    add("--between-latency-ms", **_NUMBER, help="one-way latency (0.1)")
    add("--within-gbit-s", **_NUMBER, help="payload between two ranks of a host (100)")
    add("--within-latency-us", **_NUMBER, help="one way (20)")
    add("--copy-gbyte-s", **_NUMBER, help="rate of a copy by one rank on the model's device (7)")
    add("--socket-gbyte-s", **_NUMBER, help="rate of one core through the kernel (no limit)")
    add("--cores", **_COUNT, help="cores of a host (one for each rank)")
    add = command.add_argument_group("the training of one rank").add_argument
    add("--parameters", type=_whole, metavar="N", help="trainable parameters, such as 24.3e6")
    add("--step-s", **_NUMBER, help="seconds of a step without communication")
    optimizers = get_args(OptimizerName)
    add("--optimizer", choices=optimizers, help="adam: also AdamW (sgd_momentum)")
    add("--element-bytes", **_COUNT, help="bytes of a parameter (4)")
    add("--on-cores", **_FLAG, help="steps run on the cores that send messages")
    add = command.add_argument_group("settings; the others are recommended").add_argument
    add("--block-sync", choices=get_args(BlockSyncName), help="synchronisation of models")
    add("--block-size", **_COUNT, help="steps of a block")
    add("--group-size", **_COUNT, help="ranks that train one model")
    add("--density", **_NUMBER, help="fraction of the elements that GTC sends")
    add("--push-period", **_COUNT, help="push period of two-stage ASGD")
    add("--across-dtype", choices=("same", *ACROSS_BYTES), help="dtype of models between hosts")
    add("--across-density", **_NUMBER, help="fraction of the elements that hosts exchange")
    add("--fragments", **_COUNT, help="parts of the model that are exchanged one after the other")
    overlap = _COUNT | {"nargs": "?", "const": True}
    add("--overlap", **overlap, help="exchange models during N steps, by default a block; 0: never")
    add("--moments-every", **_COUNT, help="blocks between two exchanges of Adam's moments")
    return command


def _whole(text: str) -> int:
    number = float(text)  # int() does not read 24.3e6
    if not number.is_integer():  # also False for inf and nan
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text}")
    return int(number)


def _given(arguments: argparse.Namespace, kind: type) -> dict[str, Any]:
    """Fields of a dataclass for which an argument of the same name was given."""
    values = {entry.name: getattr(arguments, entry.name, None) for entry in fields(kind)}
    return {name: value for name, value in values.items() if value is not None}


def _cluster_and_work(arguments: argparse.Namespace) -> tuple[Network, Workload]:
    """Create network and workload from the arguments.

    Raises:
        ValueError: a value is missing or out of range.

    """
    values = _given(arguments, Network)
    parts: dict[str, dict[str, Any]] = {
        part: dict(_DEFAULTS.get(part, {})) for part in ("between", "within", "processor")
    }
    for argument, (part, name, unit) in _UNITS.items():
        if (value := getattr(arguments, argument)) is not None:
            parts[part][name] = value * unit
    parts["processor"] |= _given(arguments, Processor)
    workload = _given(arguments, Workload)
    if not {"hosts", "devices"} <= values.keys():
        raise ValueError("the cluster is unknown: set --hosts and --devices")
    if values["hosts"] > 1 and "bytes_per_second" not in parts["between"]:
        raise ValueError(
            f"{values['hosts']} hosts need --between-mbit-s: 1000 Mbit/s of Ethernet carry about "
            "950, and iperf3 measures it"
        )
    network = Network(
        hosts=values["hosts"],
        devices=values["devices"],
        within=Link(**parts["within"]),
        # With one host, the rate between hosts is not used, so any value is valid.
        between=Link(**{"bytes_per_second": 1e9} | parts["between"]),
        processor=Processor(**parts["processor"]),
    )
    for name, argument in (
        ("parameters", "--parameters"),
        ("step_s", "--step-s, seconds of a step of one rank without communication"),
    ):
        if name not in workload:
            raise ValueError(f"the workload is incomplete: set {argument}")
    return network, Workload(**workload)


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
