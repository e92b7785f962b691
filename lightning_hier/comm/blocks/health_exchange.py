"""One rank's part in what ranks agree on before every synchronisation."""

from __future__ import annotations

import warnings

from lightning_hier.comm.blocks.agreed_parameters import AgreedParameters
from lightning_hier.comm.blocks.health import (
    ModelHealth,
    OnNonfinite,
    Participation,
    exclusion,
    judge,
    require_finite,
)
from lightning_hier.comm.blocks.health_report import HealthReport, SyncPoint, common_place, exchange
from lightning_hier.comm.blocks.module_buffers import ModuleBuffers
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.worker import Worker


class HealthExchange:
    """Tells all ranks where this one is and how its model is, and judges what they tell.

    Args:
        communicators: channels of this rank.
        worker: counts of the worker that this rank plays.
        on_nonfinite: what becomes of groups whose models are not finite.
        buffers: of the module; what can't be averaged is an error.
        parameters: of the module; what ranks do not agree on is an error.

    Attributes:
        signalled: whether some rank has told that it got a signal.
        out_after: if this rank has no batches left in this epoch, how many it had, else -1.

    """

    def __init__(
        self,
        communicators: Communicators,
        worker: Worker,
        on_nonfinite: OnNonfinite,
        buffers: ModuleBuffers,
        parameters: AgreedParameters,
    ) -> None:
        self._communicators = communicators
        self._worker = worker
        self._on_nonfinite = on_nonfinite
        self._buffers = buffers
        self._parameters = parameters
        self._noted = False
        self.signalled = False
        self.out_after = -1

    def note_signal(self) -> None:
        """Remember that this rank got a signal; all learn of it at the next exchange."""
        self._noted = True

    def take_signal(self) -> bool:
        """Whether all ranks have learnt since the last call that some rank got a signal."""
        signalled = self.signalled
        if signalled:
            self._noted = self.signalled = False
        return signalled

    def said(self, place: SyncPoint) -> str:
        """Where this rank is, for people."""
        out = self.out_after
        return f"{place.text}, with no batch left after {out}" if out >= 0 else place.text

    def judge(self, place: SyncPoint, optimizer: int, reading: ModelHealth) -> Participation:
        """Agree on whose models are averaged. A collective of the world.

        Raises:
            OutOfStepError: on every rank, if ranks are at different places.
            NonFiniteModelError: on every rank, if models are not finite and that is an error.

        """
        statuses = self._exchange(place, optimizer, reading)
        communicators = self._communicators
        rank = communicators.world.position
        participation = judge(
            statuses,
            communicators.layout,
            rank,
            self._on_nonfinite,
            models_per_rank=communicators.models_per_rank,
        )
        if participation.excluded and rank == 0:
            warnings.warn(
                exclusion(statuses, communicators.layout, participation),
                RuntimeWarning,
                stacklevel=2,
            )
        return participation

    def check(self, place: SyncPoint, optimizer: int, reading: ModelHealth) -> None:
        """Agree that all ranks are in step with their one model. A collective of the world.

        Raises:
            OutOfStepError: on every rank, if ranks are at different places.
            NonFiniteModelError: on every rank, if the model is not finite.

        """
        require_finite(self._exchange(place, optimizer, reading))

    def compare(self, place: SyncPoint) -> None:
        """Agree that all ranks are in step, without a look at the model. A collective of the world.

        Raises:
            OutOfStepError: on every rank, if they are not, or do not agree on parameters.

        """
        with self._communicators.progress.at(place.text):
            self._exchange(place, -1, ModelHealth())

    def meet_at_end(self) -> HealthReport | None:
        """Learn where the ranks are that have batches left. A collective of the world.

        Returns:
            The place at which they wait for this rank, or None where no rank has batches left.

        Raises:
            OutOfStepError: on every rank, if it is none that this rank can come to.

        """
        return common_place(self._rows(SyncPoint.OUT_OF_DATA, -1, ModelHealth()))

    def _exchange(
        self, place: SyncPoint, optimizer: int, reading: ModelHealth
    ) -> list[HealthReport]:
        statuses = self._rows(place, optimizer, reading)
        common_place(statuses)
        if any(status.place == SyncPoint.OUT_OF_DATA for status in statuses):
            # Those who waited there know now where to come to, and speak of it for the first time.
            statuses = self._rows(place, optimizer, reading)
            common_place(statuses)
        self._buffers.require_fit(statuses)
        return statuses

    def _rows(self, place: SyncPoint, optimizer: int, reading: ModelHealth) -> list[HealthReport]:
        counts = self._worker.steps
        steps = counts[optimizer].total if optimizer >= 0 else sum(c.total for c in counts)
        own = HealthReport(
            place,
            optimizer,
            steps,
            reading.squares,
            int(self._noted),
            int(reading.nonfinite | self._buffers.finding),
            self.out_after,
            self._parameters.digest,
        )
        statuses = exchange(own, self._communicators.world, self._communicators.device)
        self._parameters.require(statuses)
        self.signalled |= any(status.terminate for status in statuses)
        return statuses
