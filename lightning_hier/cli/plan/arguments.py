"""The arguments of `lightning-hier plan`, and what they come to: a network and a workload."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from lightning_hier.algorithms.planning.measurement import Measurement
from lightning_hier.algorithms.planning.network import Link, Network, Processor
from lightning_hier.algorithms.planning.synchronisation import AcrossDtype
from lightning_hier.algorithms.planning.workload import OptimizerName, Workload
from lightning_hier.cli.parsing import CommandParser

_TEXT = """\
Predict what each strategy would cost, and recommend one, without training.

  lightning-hier plan --network network.json --hosts 16
  lightning-hier plan --parameters 24.3e6 --step-s 0.15 --hosts 16 --devices 8 \\
                      --between-mbit-s 1000 --within-gbit-s 100 --yaml strategy.yaml --png plan.png

What the file of `lightning-hier measure` holds need not be said again; what is said counts."""


def parser() -> argparse.ArgumentParser:
    """Of all arguments."""
    made = CommandParser("plan", _TEXT)
    made.add_argument("--network", type=Path, metavar="FILE", help="what `measure` has written")
    _add_cluster(made.add_argument_group("the cluster"))
    _add_work(made.add_argument_group("the training of one rank"))
    _add_choices(made.add_argument_group("settings; what is not named is recommended"))
    out = made.add_argument_group("what is written besides the table")
    out.add_argument("--yaml", type=Path, metavar="FILE", help="the recommended Trainer settings")
    out.add_argument("--png", type=Path, metavar="FILE", help="speedup over workers (matplotlib)")
    out.add_argument(
        "--most-hosts", type=int, default=4096, metavar="N", help="of it (%(default)s)"
    )
    out.add_argument("--json", type=Path, metavar="FILE", help="all predictions")
    return made


def _add_cluster(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--hosts", type=int, metavar="N")
    group.add_argument("--devices", type=int, metavar="N", help="of a host; a rank on each")
    group.add_argument(
        "--between-mbit-s",
        type=float,
        metavar="X",
        help="payload of the link between hosts, each way; a host's ranks share it",
    )
    group.add_argument("--between-latency-ms", type=float, metavar="X", help="one way (0.1)")
    group.add_argument(
        "--within-gbit-s", type=float, metavar="X", help="payload between two ranks of a host (100)"
    )
    group.add_argument("--within-latency-us", type=float, metavar="X", help="one way (20)")
    group.add_argument(
        "--cores",
        type=int,
        metavar="N",
        help="of a host, that carry messages and models (as many as wanted)",
    )
    group.add_argument(
        "--copy-gbyte-s",
        type=float,
        metavar="X",
        help="that a rank copies where its model lies (7)",
    )
    group.add_argument(
        "--socket-gbyte-s",
        type=float,
        metavar="X",
        help="that a core sends or receives through the kernel (no limit)",
    )


def _add_work(group: argparse._ArgumentGroup) -> None:
    size = group.add_mutually_exclusive_group()
    size.add_argument("--parameters", type=_whole, metavar="N", help="trainable ones, as 24.3e6")
    size.add_argument(
        "--module",
        metavar="CLASS|FILE",
        help="module to count: pkg.Class, or a YAML with an entry 'model'",
    )
    group.add_argument(
        "--step-s", type=float, metavar="X", help="seconds of a step without communication"
    )
    group.add_argument("--backward-share", type=float, metavar="X", help="of the step (0.67)")
    group.add_argument("--optimizer", choices=get_args(OptimizerName), help="(sgd_momentum)")
    group.add_argument("--element-bytes", type=int, metavar="N", help="of a parameter (4)")
    group.add_argument(
        "--efficiency",
        type=float,
        metavar="X",
        help="speed that a rank keeps beside all others, whatever they send (1)",
    )
    group.add_argument(
        "--on-cores",
        action="store_true",
        default=None,
        help="steps are computed by the cores that carry messages",
    )


def _add_choices(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--block-size", type=int, metavar="N", help="steps of a block")
    group.add_argument("--group-size", type=int, metavar="N", help="ranks that train one model")
    group.add_argument("--density", type=float, metavar="X", help="of GTC")
    group.add_argument("--push-period", type=int, metavar="N", help="of two-stage ASGD")
    group.add_argument(
        "--across-dtype", choices=get_args(AcrossDtype), help="in which models travel"
    )
    group.add_argument(
        "--overlap", action="store_true", default=None, help="models travel beside the next block"
    )
    group.add_argument(
        "--share",
        type=float,
        metavar="X",
        help="of a step that synchronisation may cost (0.1; with overlap 0.03)",
    )


def _whole(text: str) -> int:
    number = float(text)
    if number != int(number):
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text}")
    return int(number)


def read_measurement(file: Path | None) -> Measurement | None:
    """What a file of `measure` holds.

    Raises:
        OSError: it can't be read.
        ValueError: it is no such file.

    """
    if file is None:
        return None
    try:
        return Measurement.from_json(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def network_of(told: argparse.Namespace, measured: Measurement | None) -> Network:
    """The cluster: what was said, else what was measured, else the defaults that help names.

    Raises:
        ValueError: something that has no default was neither said nor measured.

    """
    hosts = told.hosts or (measured.hosts if measured else None)
    devices = told.devices or (measured.devices if measured else None)
    if told.hosts == 0 or told.devices == 0:
        raise ValueError("--hosts and --devices must be at least 1, got 0")
    if hosts is None or devices is None:
        raise ValueError("say --hosts and --devices, or name a --network that was measured")
    between = _link(
        measured.between if measured else None,
        None if told.between_mbit_s is None else told.between_mbit_s * 1e6 / 8,
        None if told.between_latency_ms is None else told.between_latency_ms * 1e-3,
        usual=None if hosts > 1 else Link(bytes_per_second=1e9, latency_s=1e-4),
        latency_s=1e-4,
    )
    if between is None:
        raise ValueError(
            f"{hosts} hosts need --between-mbit-s, which was not measured: 1000 Mbit/s of Ethernet "
            "carry about 950"
        )
    within = _link(
        measured.within if measured else None,
        None if told.within_gbit_s is None else told.within_gbit_s * 1e9 / 8,
        None if told.within_latency_us is None else told.within_latency_us * 1e-6,
        usual=Link(bytes_per_second=100e9 / 8, latency_s=20e-6),
        latency_s=20e-6,
    )
    assert within is not None
    return Network(
        hosts=hosts,
        devices=devices,
        within=within,
        between=between,
        processor=_processor(told, measured.processor if measured else None),
    )


def _link(
    measured: Link | None,
    bytes_per_second: float | None,
    own_latency_s: float | None,
    *,
    usual: Link | None,
    latency_s: float,
) -> Link | None:
    found = measured or usual
    if found is None and bytes_per_second is not None:
        found = Link(bytes_per_second=bytes_per_second, latency_s=latency_s)
    if found is None:
        return None
    if bytes_per_second is not None:
        found = replace(found, bytes_per_second=bytes_per_second)
    return found if own_latency_s is None else replace(found, latency_s=own_latency_s)


def _processor(told: argparse.Namespace, measured: Processor | None) -> Processor:
    said: dict[str, Any] = {
        "cores": told.cores,
        "copy_bytes_per_second": _times(told.copy_gbyte_s, 1e9),
        "socket_bytes_per_second": _times(told.socket_gbyte_s, 1e9),
    }
    return replace(measured or Processor(), **_given(said))


def workload_of(told: argparse.Namespace, measured: Measurement | None) -> Workload:
    """What is trained, likewise.

    Raises:
        ValueError: its size or the time of a step is not known; or a module can't be counted.

    """
    said: dict[str, Any] = {
        name: getattr(told, name)
        for name in ("parameters", "step_s", "backward_share", "optimizer", "element_bytes",
                     "efficiency", "on_cores")
    }  # fmt: skip
    if told.module is not None:
        from lightning_hier.cli.plan.named_module import module_size

        size = module_size(told.module)
        said |= {
            **asdict(size),
            "element_bytes": told.element_bytes or size.element_bytes,
            "name": told.module,
        }
    said = _given(said)
    known = measured.workload if measured else None
    if known is not None:
        return replace(known, **said)
    if "parameters" not in said:
        raise ValueError("say --parameters or --module, or name a --network with a workload")
    if "step_s" not in said:
        raise ValueError("say --step-s, seconds of a step of one rank without communication")
    return Workload(**said)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _given(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}
