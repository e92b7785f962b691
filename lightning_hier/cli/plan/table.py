"""Predictions as a table on the screen."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from lightning_hier.algorithms.planning.network import Network
from lightning_hier.algorithms.planning.prediction import Prediction
from lightning_hier.algorithms.planning.workload import Workload
from lightning_hier.cli.columns import aligned

_COLUMNS = ("strategy", "settings", "ms a step", "efficiency", "speedup", "MB a host and step",
            "MB of a rank")  # fmt: skip


def headline(workload: Workload, network: Network) -> str:
    """What is planned for."""
    between, within = network.between, network.within
    return (
        f"{workload.name}: {workload.parameters / 1e6:.4g} million parameters, "
        f"{1e3 * workload.step_s:.4g} ms a step, {workload.optimizer}\n"
        f"{network.hosts} hosts of {network.devices} devices; between hosts "
        f"{8e-6 * between.bytes_per_second:.4g} Mbit/s and {1e3 * between.latency_s:.3g} ms, "
        f"inside {8e-9 * within.bytes_per_second:.4g} Gbit/s and {1e6 * within.latency_s:.3g} us"
    )


def rows(predictions: Sequence[Prediction]) -> list[list[str]]:
    """A row for each."""
    return [
        [
            own.strategy,
            settings_text(own.settings),
            f"{1e3 * own.step_s:.4g}",
            f"{own.efficiency:.1%}",
            f"{own.speedup:.1f}",
            f"{own.host_bytes / 1e6:.3g}",
            f"{own.memory_bytes / 1e6:.0f}",
        ]
        for own in predictions
    ]


def settings_text(settings: Mapping[str, object]) -> str:
    """Settings on one line."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def show(title: str, predictions: Sequence[Prediction]) -> None:
    """Print the table: by rich where it is installed and somebody looks, else plainly."""
    found = rows(predictions)
    print(title)
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            pass
        else:
            table = Table()
            for number, name in enumerate(_COLUMNS):
                table.add_column(name, justify="left" if number < 2 else "right")
            for row in found:
                table.add_row(*row)
            Console().print(table)
            return
    print(aligned([_COLUMNS, *found], left=2))
