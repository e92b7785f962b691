"""Measure the times of steps of several systems, one after the other, on the ranks of a job.

Every rank runs this module, with torchrun or as a single process. The argument is a JSON object.
Rank 0 writes the result.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist

from examples.acoustic.run_system import Settings, data_and_model, trainer_for
from examples.acoustic.systems import SYSTEMS
from examples.quiet import silence_lightning

# Steps before the measurement, and measured steps, of a system without blocks.
_FIRST, _TIMED = 6, 30
# Measured blocks of a system with blocks. The first block is not measured, because GTC sends exact
# gradients once.
_TIMED_BLOCKS = 2


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Times of steps.

    Attributes:
        seconds: mean time of a step by name of the system, including the synchronisation of models.
        parameters: number of parameters of the model.

    """

    seconds: dict[str, float]
    parameters: int


def arguments(runs: Sequence[Settings], result: Path) -> str:
    """Return the argument of this module.

    Args:
        runs: runs whose steps are measured, without warm-up and validation.
        result: file of the result.

    """
    return json.dumps({"runs": [asdict(run) for run in runs], "result": str(result)})


def read(result: Path) -> StepTimes:
    """Return the result that rank 0 has written."""
    return StepTimes(**json.loads(result.read_text()))


def window(settings: Settings) -> tuple[int, int]:
    """Return the number of steps before the measurement, and of measured steps.

    Both are whole blocks if the system has blocks.
    """
    if SYSTEMS[settings.system].block_sync is None:
        return _FIRST, _TIMED
    return settings.block_size, _TIMED_BLOCKS * settings.block_size


class StepEnds(pl.Callback):
    """Records the time at the end of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any
    ) -> None:
        self.seconds.append(time.perf_counter())


def time_steps(settings: Settings) -> StepTimes:
    """Train for a few steps and measure their times. Every rank must call it."""
    first, timed = window(settings)
    data, model = data_and_model(settings)
    ends = StepEnds()
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    trainer = trainer_for(
        settings,
        devices=local_ranks,
        num_nodes=int(os.environ.get("WORLD_SIZE", "1")) // local_ranks,
        # With one more step, the last measured step does not contain the end of training.
        max_steps=first + timed + 1,
        max_epochs=-1,
        limit_val_batches=0,
        callbacks=[ends],
    )
    trainer.fit(model, data)
    seconds = (ends.seconds[first + timed - 1] - ends.seconds[first - 1]) / timed
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return StepTimes(seconds={settings.system: seconds}, parameters=parameters)


def main() -> None:
    """Measure the steps of the runs in the first argument."""
    silence_lightning()
    torch.set_num_threads(1)
    job = json.loads(sys.argv[1])
    measured = [time_steps(Settings(**run)) for run in job["runs"]]
    if dist.is_initialized() and dist.get_rank():
        return
    seconds = {system: step_s for run in measured for system, step_s in run.seconds.items()}
    times = replace(measured[0], seconds=seconds)
    Path(job["result"]).write_text(json.dumps(asdict(times)))


if __name__ == "__main__":
    main()
