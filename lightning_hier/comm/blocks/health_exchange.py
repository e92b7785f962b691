"""Exchange of health reports between all ranks, before every synchronisation of models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.blocks.health import (
    Averaging,
    HealthReport,
    ModelHealth,
    OutOfStepError,
    SyncPoint,
    require_common_point,
    require_finite,
)
from lightning_hier.comm.blocks.trained import TrainedTensors
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.progress_record import DifferentCollectivesError
from lightning_hier.comm.worker import Worker


class HealthExchange:
    """Exchanges the health reports of all ranks, and checks them.

    Args:
        communicators: channels of this rank.
        worker: step counts of this rank.
        trained: tensors of the module. Ranks that train different parameters, and buffers that
            cannot be averaged, are an error.
        counted: most fragments whose samples a report contains. 0: groups count equally, and
            reports contain none.
        independent: whether groups are jobs of their own, which may be at different steps and stop
            on signals of their own.

    Attributes:
        independent: see above.
        signalled: whether any rank has reported a signal since :meth:`clear_signal`.
        batches: number of batches of this epoch if this rank has none left, otherwise -1.

    """

    def __init__(
        self,
        communicators: Communicators,
        worker: Worker,
        trained: TrainedTensors,
        *,
        counted: int = 0,
        independent: bool = False,
    ) -> None:
        self._communicators = communicators
        self._worker = worker
        self._trained = trained
        self._counted = counted
        self.independent = independent
        self._terminate = False
        self.signalled = False
        self.batches = -1

    def note_signal(self) -> None:
        """Report at the next exchange that this rank received a signal."""
        self._terminate = True

    def clear_signal(self) -> None:
        """Forget the signals that ranks have reported."""
        self._terminate = self.signalled = False

    @property
    def detail(self) -> str:
        """More about the position of this rank, for messages."""
        return f"with no batch left after {self.batches}" if self.batches >= 0 else ""

    def agree(self, point: SyncPoint, optimizer: int, health: ModelHealth) -> Averaging:
        """Check all models, and agree on how they are averaged. A collective of the world.

        Raises:
            OutOfStepError: on every rank, if ranks are at different synchronisations.
            NonFiniteModelError: on every rank, if a model is not finite.

        """
        own, reports = self._communicators, self._exchange(point, optimizer, health)
        # Not the number of all models that there may be: groups may come and go.
        size, models = own.layout.sizes
        require_finite(reports, size)
        return Averaging.agreed(reports, size, own.world.position, models)

    def check(self, point: SyncPoint, optimizer: int = -1, carried: Sequence[Tensor] = ()) -> None:
        """Check that all ranks are in step, and that the single model that they train is finite.

        A collective of the world. Only buffers and state of the first group are checked, because
        all groups get them.

        Args:
            point: kind of the synchronisation.
            optimizer: index of the optimizer, or -1 for all.
            carried: state of local optimizers that all ranks get.

        Raises:
            OutOfStepError: on every rank, if ranks are at different synchronisations.
            NonFiniteModelError: on every rank, if the model is not finite.

        """
        layout, trained = self._communicators.layout, self._trained
        first = layout.coordinates(self._communicators.world.position)[1] == 0
        blocks = trained.members() if first else ()
        buffers = [buffer for members in blocks for buffer in members.float_buffers]
        state = carried if first else ()
        health = ModelHealth.of_tensors(trained.parameters, buffers, state)
        require_finite(self._exchange(point, optimizer, health), layout.sizes[0])

    def check_in_step(self, point: SyncPoint) -> None:
        """Check that all ranks are in step, without checking models. A collective of the world.

        Raises:
            OutOfStepError: on every rank, if they are not in step, or synchronise different
                parameters.

        """
        with self._communicators.progress.at(point.text):
            self._exchange(point, -1, ModelHealth())

    def same_parameters_in(self, channel: Channel) -> bool:
        """Whether all ranks of ``channel`` train the same parameters. A collective of it."""
        if channel.size == 1:
            return True
        # Before every batch with frozen parameters, so it reads none of them. What was written to
        # them on some ranks only is found in the next exchange.
        self._trained.describe()
        own = self._trained.digest(with_found=False)
        digest = torch.tensor([own], device=self._communicators.device)
        return bool((channel.gather_rows(digest, "status") == digest).all())

    def _exchange(
        self, point: SyncPoint, optimizer: int, health: ModelHealth
    ) -> list[HealthReport]:
        """Reports of all ranks, which are at the same point. A collective of the world."""
        own, counts = self._communicators, self._worker.steps
        self._trained.note()
        report = HealthReport(
            point,
            optimizer,
            counts[optimizer].total if optimizer >= 0 else sum(c.total for c in counts),
            int(self._terminate),
            int(health.nonfinite | self._trained.buffers.finding),
            self.batches,
            self._trained.digest(with_found=True),
            health.squares,
        )
        # float64 represents counts and digests exactly, below 2**53, and any sum of squares.
        row = torch.tensor(report[:-1], dtype=torch.float64, device=own.device)
        with profiler_range("hier/block/status"):
            rows = own.world.gather_rows(row, "status")
        if not set(rows[:, 0].tolist()) <= set(SyncPoint):
            raise DifferentCollectivesError(f"{point.text} got data of another collective")
        if self._counted:
            # In a second message: the first may meet that of gather_json, which has its length.
            # Ranks may be at different points, so all send equally many.
            samples = [*health.samples, *[0.0] * self._counted][: self._counted]
            of_ranks = own.world.gather_rows(row.new_tensor(samples), "status")
            rows = torch.cat([rows, of_ranks], dim=1)
        reports = [HealthReport.of_row(values) for values in rows.tolist()]
        if len({report.digest for report in reports}) > 1:
            self._unite([report.digest for report in reports])
        relevant = reports
        if self.independent:
            # A group that is a job of its own stops by itself. The others go on without it. A
            # RankLayout has groups of consecutive ranks.
            first = own.world.position - own.world.position % own.group.size
            relevant = reports[first : first + own.group.size]
        # Kept until clear_signal(), because several exchanges may happen in one batch.
        self.signalled |= any(report.terminate for report in relevant)
        try:
            require_common_point(relevant)
        except OutOfStepError:
            # A rank that ends with an error may reach a synchronisation on its way, alone.
            own.progress.raise_first_error()
            raise
        self._trained.buffers.require_fit(reports)
        return reports

    def _unite(self, digests: Sequence[int]) -> None:
        """Find the frozen parameters that any rank has written. A collective of the world.

        Raises:
            OutOfStepError: on every rank, if ranks differ in anything else.

        """
        rank = self._communicators.world.position
        # The exchange of names reaches only the ranks of this job, not the other groups.
        if self.independent and self._communicators.layout.sizes[1] > 1:
            raise OutOfStepError(
                "the groups train different parameters: unfreeze the same parameters at the same "
                "step in all groups, and write to the same frozen ones"
            )
        # The first of the ranks with the same digest sends its entries.
        first = digests.index(digests[rank]) == rank
        sent = gather_json(
            self._trained.sent_entries() if first else None, self._communicators.device
        )
        difference = self._trained.unite([sent[digests.index(digest)] for digest in digests])
        if difference is not None:
            raise OutOfStepError(
                f"the ranks train different parameters: {difference}. Freeze and unfreeze the same "
                "parameters at the same step on all ranks, add them to the same optimizer, and "
                "register the same buffers."
            )
