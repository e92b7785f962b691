"""What a rank plays its workers with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.worker_random import WorkerRandom


@dataclass(frozen=True)
class Played:
    """What one rank plays its workers with; those of one group share a model.

    Attributes:
        models: one for each group, with the state of its optimizers.
        random: what each worker draws from.

    """

    models: LocalModels
    random: WorkerRandom

    @property
    def per_model(self) -> int:
        """Workers that share a model once the models are opened."""
        return self.random.number // self.models.number

    def each(self) -> Iterator[range]:
        """The workers of every model in turn, which is in the module while they are given.

        In the warm-up there is one model, of all of them.
        """
        together = self.random.number // self.models.present
        for model in self.models.each():
            yield range(model * together, (model + 1) * together)
