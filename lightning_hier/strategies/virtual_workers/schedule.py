"""The order in which the virtual workers of a rank make a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.worker_random import WorkerRandom


@dataclass(frozen=True)
class WorkerSchedule:
    """The workers of one rank, one model after the other. Workers of one group share a model.

    Attributes:
        models: one for each group, with the state of its optimizers.
        random: the random states of the workers.

    """

    models: LocalModels
    random: WorkerRandom

    @property
    def is_virtual(self) -> bool:
        """Whether this rank has several workers."""
        return self.random.number > 1

    @property
    def per_model(self) -> int:
        """Workers that share a model once the models are opened."""
        return self.random.number // self.models.number

    def each(self) -> Iterator[range]:
        """Yield the workers of each model, with this model in the module.

        In the warm-up all of them share one model.
        """
        together = self.random.number // self.models.present
        for model in self.models.each():
            yield range(model * together, (model + 1) * together)
