"""Manual optimization: ``training_step`` steps the optimizer, once for each worker of a rank."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from typing import Any


class ManualStep:
    """One step of all workers of a rank, each with a model of its own.

    ``training_step`` steps schedulers too, so every worker starts from the same scheduler state.

    Args:
        trainer: that fits.
        run: Lightning's method for one of them.

    """

    def __init__(self, trainer: Any, run: Callable[[OrderedDict[str, Any]], Any]) -> None:
        self._loop = trainer.fit_loop.epoch_loop.manual_optimization
        self._run = run
        self._schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._begun = [deepcopy(own.state_dict()) for own in self._schedulers]
        self._of_first: int | None = None

    def of_next_worker(self, kwargs: OrderedDict[str, Any]) -> Any:
        """Run the step of the next worker.

        Raises:
            ValueError: a worker steps more than once, or not as often as the first: blocks end
                with a step of all workers.

        """
        if self._of_first is not None:
            for scheduler, begun in zip(self._schedulers, self._begun, strict=True):
                scheduler.load_state_dict(deepcopy(begun))
        before = self._loop.optim_step_progress.total.ready
        output = self._run(kwargs)
        taken = self._loop.optim_step_progress.total.ready - before
        if taken > 1:
            raise ValueError(
                f"virtual_workers above 1 can't be combined with {taken} optimizer steps in one "
                "training_step, since a block could end between them: take one, or start a rank "
                "for each worker"
            )
        if self._of_first not in (None, taken):
            raise ValueError(
                f"with virtual_workers above 1 all workers step together, but training_step took "
                f"{self._of_first} optimizer steps as the first worker of this rank and {taken} "
                "as another: decide by what is the same for all, such as batch_idx"
            )
        self._of_first = taken
        return output
