"""Loss scaling of a worker that starts again from the global model."""

from __future__ import annotations

from typing import Any

from lightning_hier.comm.blocks.block_report import BlockReport
from lightning_hier.comm.worker import Worker


class LossScale:
    """Resets the scale of fp16 gradients to its value when the model was last healthy.

    Every step with a non-finite gradient halves the scale. A model with NaN has such steps until
    its block ends, and at the scale that is left then, gradients would vanish for a long time.

    Args:
        scaler: the GradScaler of this rank.
        worker: the worker of this rank, which keeps the scale.

    """

    def __init__(self, scaler: Any, worker: Worker) -> None:
        self._scaler = scaler
        self._worker = worker
        if worker.loss_scale is None:
            worker.loss_scale = float(scaler.get_scale())

    def after_block(self, report: BlockReport) -> None:
        """Note the scale of a healthy worker, or give it back to one that restarts."""
        if report.restarted:
            healthy = {"scale": self._worker.loss_scale, "_growth_tracker": 0}
            self._scaler.load_state_dict(self._scaler.state_dict() | healthy)
        else:
            self._worker.loss_scale = float(self._scaler.get_scale())
