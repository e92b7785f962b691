"""Time a few steps of several systems, one after the other, on the ranks of one job.

Started on every rank, by torchrun or alone. The argument is a JSON object, and rank 0 writes the
result.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist

from examples.acoustic.run_system import Settings, data_and_model, trainer_for
from examples.acoustic.systems import ALL
from examples.quiet import silence_lightning

# Steps of a system without blocks: the first ones, which are not timed, and the timed ones.
_FIRST, _TIMED = 6, 30
# Of a system with blocks: the first block, in which GTC sends exact gradients once, and so many.
_TIMED_BLOCKS = 2


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """What was timed.

    Attributes:
        seconds: of a step, by the name of the system; the synchronisation of models is divided
            among the steps of a block.
        parameters: of the model.

    """

    seconds: dict[str, float]
    parameters: int


def arguments(runs: Sequence[Settings], result: Path) -> str:
    """The argument of this module.

    Args:
        runs: whose steps are timed, without their warm-up and validation.
        result: file of the result.

    """
    return json.dumps({"runs": [asdict(run) for run in runs], "result": str(result)})


def read(result: Path) -> StepTimes:
    """What rank 0 has written."""
    return StepTimes(**json.loads(result.read_text()))


def window(settings: Settings) -> tuple[int, int]:
    """Steps before the timed ones, and timed steps: whole blocks where the system has blocks."""
    if ALL[settings.system].block_sync is None:
        return _FIRST, _TIMED
    return settings.block_size, _TIMED_BLOCKS * settings.block_size


class StepEnds(pl.Callback):
    """Keeps the time at the end of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any
    ) -> None:
        self.seconds.append(time.perf_counter())


def time_steps(settings: Settings) -> StepTimes:
    """Train for a few steps. Every rank must call it."""
    first, timed = window(settings)
    data, model = data_and_model(settings)
    ends = StepEnds()
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    trainer = trainer_for(
        settings,
        devices=here,
        num_nodes=int(os.environ.get("WORLD_SIZE", "1")) // here,
        # One step more, so that the end of training is not in the last timed one.
        max_steps=first + timed + 1,
        max_epochs=-1,
        limit_val_batches=0,
        logger=False,
        enable_progress_bar=False,
        callbacks=[ends],
    )
    trainer.fit(model, data)
    seconds = (ends.seconds[first + timed - 1] - ends.seconds[first - 1]) / timed
    parameters = [own.numel() for own in model.parameters()]
    return StepTimes(seconds={settings.system: seconds}, parameters=sum(parameters))


def main() -> None:
    """Time what the first argument says."""
    silence_lightning()
    torch.set_num_threads(1)
    job = json.loads(sys.argv[1])
    found = [time_steps(Settings(**run)) for run in job["runs"]]
    if dist.is_initialized() and dist.get_rank():
        return
    seconds = {name: own for each in found for name, own in each.seconds.items()}
    times = StepTimes(seconds=seconds, parameters=found[0].parameters)
    Path(job["result"]).write_text(json.dumps(asdict(times)))


if __name__ == "__main__":
    main()
