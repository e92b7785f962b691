"""Exchange of health reports between all ranks, before every synchronisation of models."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple

import torch

from lightning_hier.comm.blocks.agreed_parameters import AgreedParameters, OutOfStepError
from lightning_hier.comm.blocks.health import (
    HealthReport,
    ModelHealth,
    OnNonfinite,
    Participation,
    SyncPoint,
    decide_participation,
    exclusion_warning,
    require_finite,
    span,
)
from lightning_hier.comm.blocks.module_buffers import ModuleBuffers
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.worker import Worker


class HealthExchange:
    """Sends this rank's health report to all ranks and checks those of all.

    Args:
        communicators: channels of this rank.
        worker: step counts of this rank.
        on_nonfinite: effect of groups whose models are not finite.
        buffers: of the module; buffers that can't be averaged are an error.
        parameters: of the module; ranks that synchronise different ones are an error.

    Attributes:
        signalled: whether some rank has reported a signal.
        batches: number of batches of this epoch if this rank has none left, else -1.

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
        self._terminate = False
        self.signalled = False
        self.batches = -1

    def note_signal(self) -> None:
        """Report at the next exchange that this rank received a signal."""
        self._terminate = True

    def take_signal(self) -> bool:
        """Whether some rank has reported a signal since the last call."""
        signalled = self.signalled
        if signalled:
            self._terminate = self.signalled = False
        return signalled

    def describe(self, point: SyncPoint) -> str:
        """Position of this rank for messages."""
        out = self.batches
        return f"{point.text}, with no batch left after {out}" if out >= 0 else point.text

    def agree(self, point: SyncPoint, optimizer: int, health: ModelHealth) -> Participation:
        """Agree on the groups whose models are averaged. A collective of the world.

        Raises:
            OutOfStepError: on every rank, if ranks are at different synchronisations.
            NonFiniteModelError: on every rank, if models are not finite and that is an error.

        """
        reports = self._exchange(point, optimizer, health)
        layout, rank = self._communicators.layout, self._communicators.world.position
        participation = decide_participation(
            reports,
            layout,
            rank,
            self._on_nonfinite,
            models_per_rank=self._communicators.models_per_rank,
        )
        if participation.excluded and rank == 0:
            warning = exclusion_warning(reports, layout, participation)
            warnings.warn(warning, RuntimeWarning, stacklevel=2)
        return participation

    def check(self, point: SyncPoint, optimizer: int, health: ModelHealth) -> None:
        """Check that all ranks are in step and their one model is finite.

        A collective of the world.

        Raises:
            OutOfStepError: on every rank, if ranks are at different synchronisations.
            NonFiniteModelError: on every rank, if the model is not finite.

        """
        require_finite(self._exchange(point, optimizer, health))

    def check_in_step(self, point: SyncPoint) -> None:
        """Check that all ranks are in step, whatever their models. A collective of the world.

        Raises:
            OutOfStepError: on every rank, if they are not, or synchronise different parameters.

        """
        with self._communicators.progress.at(point.text):
            self._exchange(point, -1, ModelHealth())

    def report_out_of_data(self) -> HealthReport | None:
        """Exchange reports after this rank's last batch. A collective of the world.

        Returns:
            A report of the ranks that have batches left, None if there are none.

        Raises:
            OutOfStepError: on every rank, if those ranks are not at the end of a block.

        """
        return _common_point(self._reports(SyncPoint.OUT_OF_DATA, -1, ModelHealth()))

    def _exchange(
        self, point: SyncPoint, optimizer: int, health: ModelHealth
    ) -> list[HealthReport]:
        reports = self._reports(point, optimizer, health)
        _common_point(reports)
        if any(report.point == SyncPoint.OUT_OF_DATA for report in reports):
            # Ranks without batches learn from the first exchange where the others are, and take
            # part in the second one with the health of their models.
            reports = self._reports(point, optimizer, health)
            _common_point(reports)
        self._buffers.require_fit(reports)
        return reports

    def _reports(self, point: SyncPoint, optimizer: int, health: ModelHealth) -> list[HealthReport]:
        counts = self._worker.steps
        own = HealthReport(
            point,
            optimizer,
            counts[optimizer].total if optimizer >= 0 else sum(c.total for c in counts),
            health.squares,
            int(self._terminate),
            int(health.nonfinite | self._buffers.finding),
            self.batches,
            self._parameters.digest,
        )
        world = self._communicators.world
        row = torch.tensor(astuple(own), dtype=torch.float64, device=self._communicators.device)
        rows = row.new_empty(world.size * row.numel())
        with profiler_range("hier/block/status"):
            world.all_gather(rows, row, "status").wait()
        reports = [
            HealthReport(int(at), int(index), int(steps), squares, *map(int, rest))
            for at, index, steps, squares, *rest in rows.view(world.size, -1).tolist()
        ]
        self._parameters.require_same([report.digest for report in reports])
        self.signalled |= any(report.terminate for report in reports)
        return reports


def _common_point(reports: Sequence[HealthReport]) -> HealthReport | None:
    """Report of the ranks that have batches left in this epoch; None if there are none.

    Raises:
        OutOfStepError: they are at different points, or, while other ranks have no batches left,
            not at the end of a block.

    """
    active = [report for report in reports if report.point != SyncPoint.OUT_OF_DATA]
    points = {(report.point, report.optimizer, report.steps) for report in active}
    joined = 0 < len(active) < len(reports)
    if len(points) > 1 or (joined and active[0].point != SyncPoint.BLOCK):
        raise OutOfStepError(_out_of_step(reports))
    return active[0] if active else None


def _out_of_step(reports: Sequence[HealthReport]) -> str:
    ranks: defaultdict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    for rank, report in enumerate(reports):
        ranks[report.point, report.optimizer, report.steps, report.batches].append(rank)
    positions = "; ".join(
        f"rank{'s' * (len(members) > 1)} {span(members)} at {SyncPoint(point).text}"
        f"{f' of optimizer {optimizer}' if optimizer > 0 else ''} after {steps} steps"
        f"{f', with no batch left after {batches} in this epoch' if batches >= 0 else ''}"
        for (point, optimizer, steps, batches), members in ranks.items()
    )
    if any(report.point == SyncPoint.OUT_OF_DATA for report in reports):
        return (
            "some ranks wait at the end of their batches, and others come to something else than "
            f"a synchronisation of models: {positions}. With uneven_batches='join' validate and "
            "save at the ends of epochs, and end training there."
        )
    way_out = (
        " uneven_batches='join' has ranks that run out of batches wait for the others."
        if len({report.batches >= 0 for report in reports}) > 1
        else ""
    )
    return (
        f"the ranks are out of step: {positions}. All ranks must take the same number of steps: "
        "give every rank the same number of batches (drop_last, a DistributedSampler, or "
        f"limit_train_batches), and validate or save on all ranks at the same step.{way_out}"
    )
