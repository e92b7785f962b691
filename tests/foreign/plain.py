"""Evaluates checkpoints in plain Lightning, in a process that never imports lightning_hier.

Reads a line of JSON for each checkpoint, and answers with one: the validation loss of the loaded
model and the fingerprint of its state.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from lightning.pytorch import seed_everything

from tests.foreign.task import build, fingerprint


def evaluate(package: str, seed: int, path: str | None) -> dict[str, Any]:
    """Return loss and fingerprint of a checkpoint, or of the model before training."""
    task = build(package, seed)
    module = task.module if path is None else task.load(path)
    trainer = task.lightning.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    seed_everything(0, verbose=False)
    state = fingerprint(module.state_dict())
    trainer.validate(module, task.val or task.train, verbose=False)
    return {"loss": float(trainer.callback_metrics[task.metric]), "state": state}


def main() -> None:
    """Answer on the standard output, to which nothing else is printed."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for name in ("lightning.pytorch", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for line in sys.stdin:
        try:
            answer = evaluate(**json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        assert "lightning_hier" not in sys.modules
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
