"""The arguments of `lightning-hier plan`."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from lightning_hier.cli.mistakes import CommandParser
from lightning_hier.planning import Link, Network, Processor, Workload
from lightning_hier.planning.prediction import ACROSS_BYTES, BlockSyncName
from lightning_hier.planning.workload import OptimizerName

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


def parser() -> argparse.ArgumentParser:
    """Create the parser."""
    command = CommandParser("plan", _TEXT)
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


def given(arguments: argparse.Namespace, kind: type) -> dict[str, Any]:
    """Fields of a dataclass for which an argument of the same name was given."""
    values = {entry.name: getattr(arguments, entry.name, None) for entry in fields(kind)}
    return {name: value for name, value in values.items() if value is not None}


def cluster_and_work(arguments: argparse.Namespace) -> tuple[Network, Workload]:
    """Create network and workload from the arguments.

    Raises:
        ValueError: a value is missing or out of range.

    """
    values = given(arguments, Network)
    parts: dict[str, dict[str, Any]] = {
        part: dict(_DEFAULTS.get(part, {})) for part in ("between", "within", "processor")
    }
    for argument, (part, name, unit) in _UNITS.items():
        if (value := getattr(arguments, argument)) is not None:
            parts[part][name] = value * unit
    parts["processor"] |= given(arguments, Processor)
    workload = given(arguments, Workload)
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
