"""`lightning-hier measure`: the batch sizes with which a step takes equally long on all hosts.

The model is trained for a few steps with each of four batch sizes. The time of a step of host h is
close to a line in the samples b of a rank's batch, ``t_h(b) = a_h + k_h b``. All steps take T if::

    b_h = (T - a_h) / k_h        T = (sum of b_h + sum of a_h / k_h) / (sum of 1 / k_h)

with the sum of b_h that equal batches have, so that a step of all hosts trains on as many samples.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from statistics import linear_regression, median
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.parsing import (
    lightning_getattr,
    lightning_hasattr,
    lightning_setattr,
)
from typing_extensions import override

from lightning_hier.cli.lightning_cli import TrainingCLI
from lightning_hier.cli.mistakes import mistakes_in_one_screen
from lightning_hier.comm.blocks.bmuf import ModelAveraging
from lightning_hier.strategies.hierarchical import HierarchicalStrategy

# Batch sizes relative to the given one. Between two hosts, the slower one may be 7 times as slow.
_SHARES = (0.25, 0.5, 1.0, 2.0)
_LEAST = 4
# Steps with each batch size. The first ones also start workers of loaders and allocate memory.
STEPS, _UNTIMED = 24, 4


class Line(NamedTuple):
    """Seconds of a step: ``start_s + sample_s * samples`` of a rank's batch."""

    start_s: float
    sample_s: float

    def seconds(self, samples: float) -> float:
        """Seconds of a step with so many samples."""
        return self.start_s + self.sample_s * samples


class MeasuringCLI(TrainingCLI):
    """Trains as `fit` does, without exchanges between hosts, and measures steps.

    Args:
        args: arguments of `fit`.

    """

    def __init__(self, args: list[str]) -> None:
        self._times = StepTimes()
        super().__init__(args)

    @override
    def run(self) -> None:
        """Measure, and print on rank 0."""
        super().run()
        with mistakes_in_one_screen():  # the same on all ranks
            self._times.check()
            text = report(self._times.sizes, self._times.of_hosts, equal=self._times.given)
        if self.trainer.is_global_zero:
            print(text, flush=True)

    @override
    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Create the Trainer of the config, with what a measurement needs instead of its values."""
        self.save_config_callback = None
        # What is measured does not depend on how well the models learn.
        warnings.filterwarnings("ignore", message="ModelAveraging without block momentum")
        return super().instantiate_trainer(
            **kwargs,
            # Hosts average their models with the last step of each batch size, and nothing before.
            strategy=HierarchicalStrategy(
                group_size="node", block_sync=ModelAveraging(block_size=STEPS), warmup_steps=0
            ),
            callbacks=[self._times],
            max_epochs=len(_SHARES),
            max_steps=-1,
            min_epochs=None,
            min_steps=None,
            limit_train_batches=STEPS,
            limit_val_batches=0,
            reload_dataloaders_every_n_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )


class StepTimes(pl.Callback):
    """Times steps with several batch sizes, one in each epoch.

    Attributes:
        given: batch size of the data module or LightningModule.
        sizes: batch sizes that are measured.
        of_hosts: after training, seconds of a step of each host with each of them.

    """

    def __init__(self) -> None:
        self.given = 0
        self.sizes: list[int] = []
        self.of_hosts: list[list[float]] = []
        self._seconds: list[float] = []
        self._ends: list[float] = []

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Set the first batch size.

        Raises:
            ValueError: there is one host, no batch size that can be set, or too long a step.

        """
        known = lightning_hasattr(pl_module, "batch_size")
        given = lightning_getattr(pl_module, "batch_size") if known else None
        if not isinstance(given, int) or given < _LEAST:
            raise ValueError(
                "measure sets `batch_size` of the data module or of the LightningModule, from "
                "which train_dataloader() must take the size of a rank's batches. It must be a "
                f"whole number of at least {_LEAST}, got {given!r}"
            )
        if trainer.accumulate_grad_batches >= STEPS - _UNTIMED:
            raise ValueError(
                f"measure times {STEPS - _UNTIMED} batches, fewer than the accumulate_grad_batches="
                f"{trainer.accumulate_grad_batches} of a step: pass a smaller number, the batch "
                "sizes are the same"
            )
        if _layout(trainer)[1] < 2:
            raise ValueError(
                "measure compares hosts, but all ranks are on one: start it on all hosts, with "
                "num_nodes of the Trainer, as you start fit"
            )
        self.given, self.sizes = given, [int(share * given) for share in _SHARES]
        lightning_setattr(pl_module, "batch_size", self.sizes[0])

    @override
    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Note the time."""
        if trainer.strategy.root_device.type != "cpu":
            torch.accelerator.synchronize()
        self._ends.append(time.perf_counter())

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the median time of a step, and set the next batch size."""
        if len(self._ends) < STEPS:
            trainer.should_stop = True  # and check() raises, outside of the module's code
            return
        self._seconds.append(median_step(self._ends, trainer.accumulate_grad_batches))
        self._ends.clear()
        if len(self._seconds) < len(self.sizes):
            lightning_setattr(pl_module, "batch_size", self.sizes[len(self._seconds)])

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gather the times of all ranks. A collective of the world."""
        if len(self._seconds) < len(self.sizes):
            return
        here = torch.tensor(self._seconds, dtype=torch.float64)
        rows = trainer.strategy.all_gather(here.to(trainer.strategy.root_device)).cpu()
        ranks, hosts = _layout(trainer)
        # Ranks of a host exchange gradients, so the slowest one sets the time.
        self.of_hosts = rows.view(hosts, ranks, -1).amax(1).tolist()

    def check(self) -> None:
        """Raise a ``ValueError`` if the data ended too early, also before the first batch."""
        if not self.of_hosts:
            raise ValueError(
                f"measure needs {STEPS} batches of {self.sizes[len(self._seconds)]} samples on "
                f"every rank, got {len(self._ends)}: use more data or a smaller batch_size"
            )


def median_step(ends_s: Sequence[float], batches: int) -> float:
    """Median seconds of a batch, from the ends of batches of which ``batches`` make a step."""
    timed = ends_s[_UNTIMED:]
    return median((timed[i + batches] - timed[i]) / batches for i in range(len(timed) - batches))


def line_through(sizes: Sequence[int], seconds: Sequence[float], host: int) -> Line:
    """Fit the seconds of a step by least squares.

    Raises:
        ValueError: a step does not take longer with more samples.

    """
    fitted = linear_regression(sizes, seconds)
    if fitted.slope <= 0:
        raise ValueError(
            f"steps of host {host} take {1e3 * seconds[0]:.1f} ms with {sizes[0]} samples and "
            f"{1e3 * seconds[-1]:.1f} ms with {sizes[-1]}: its speed does not depend on the batch "
            "size yet, set a larger batch_size"
        )
    return Line(fitted.intercept, fitted.slope)


def equal_steps(lines: Sequence[Line], total: int) -> list[int]:
    """Batch sizes of all hosts, with which a step takes equally long.

    Args:
        lines: seconds of a step of each host.
        total: sum of the batch sizes.

    Raises:
        ValueError: a host is too slow for a batch of one sample.

    """
    offsets = sum(line.start_s / line.sample_s for line in lines)
    step_s = (total + offsets) / sum(1 / line.sample_s for line in lines)
    exact = [(step_s - line.start_s) / line.sample_s for line in lines]
    if min(exact) < 1:
        slow = exact.index(min(exact))
        raise ValueError(
            f"host {slow} is too slow: while the others train on their batches, it would not "
            "finish one sample. Set a larger batch_size, or leave the host out"
        )
    sizes = [math.floor(size) for size in exact]
    # The hosts that lost most by rounding get the samples that are left.
    lost = sorted(range(len(lines)), key=lambda host: sizes[host] - exact[host])
    for host in lost[: total - sum(sizes)]:
        sizes[host] += 1
    return sizes


def report(sizes: Sequence[int], table: Sequence[Sequence[float]], *, equal: int) -> str:
    """Return the measured times and the batch sizes as text.

    Args:
        sizes: batch sizes that were measured.
        table: seconds of a step of each host with each of them.
        equal: batch size of all hosts with which others are compared.

    """
    lines = [line_through(sizes, row, host) for host, row in enumerate(table)]
    chosen = equal_steps(lines, equal * len(lines))
    longest_s = max(map(Line.seconds, lines, chosen))
    equal_s = max(line.seconds(equal) for line in lines)
    measured = [
        f"  host {host}: "
        + ", ".join(f"{1e3 * time_s:.1f} ({n})" for n, time_s in zip(sizes, row, strict=True))
        for host, row in enumerate(table)
    ]
    result = [
        f"  host {host}: {size}    {1e3 * line.seconds(size):.1f} ms a step"
        for host, (line, size) in enumerate(zip(lines, chosen, strict=True))
    ]
    return "\n".join(
        [
            "ms of a step, by the samples of a rank's batch:",
            *measured,
            "",
            f"batch_size for steps of equal length, with as many samples in all as {equal} each:",
            *result,
            "",
            f"Equal batches take {1e3 * equal_s:.1f} ms, {equal_s / longest_s:.2f} times as long.",
        ]
    )


def _layout(trainer: pl.Trainer) -> tuple[int, int]:
    """Ranks of a host, and the number of hosts, which are the groups of the strategy."""
    strategy: Any = trainer.strategy
    sizes: tuple[int, int] = strategy.layout.sizes
    return sizes
