"""What the synchronisations of the blocks have to log."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_hier.comm.blocks.block_report import BlockReport
from lightning_hier.comm.worker import StepCount


class BlockLog:
    """The last report of each optimizer's block, and how many groups were left out.

    Args:
        optimizers: their number.

    Attributes:
        reports: by the index of the optimizer.
        excluded_at_end: groups that the last, short block left out. They are not among the worker's
            counts, since a run that is resumed goes on in the middle of that block.

    """

    def __init__(self, optimizers: int) -> None:
        self._optimizers = optimizers
        self.reports: dict[int, BlockReport] = {}
        self.excluded_at_end: dict[int, int] = {}

    def metrics(self, steps: Sequence[StepCount]) -> dict[str, float]:
        """By name, with the counts of ``steps``."""
        found: dict[str, float] = {}
        for index, report in self.reports.items():
            prefix = "hier/block" if self._optimizers == 1 else f"hier/block/{index}"
            found[f"{prefix}/update_norm"] = report.update_norm
            found[f"{prefix}/model_distance"] = report.model_distance
            found[f"{prefix}/blocks"] = steps[index].blocks
            at_end = self.excluded_at_end.get(index, 0)
            found[f"{prefix}/excluded"] = steps[index].excluded + at_end
        return found
