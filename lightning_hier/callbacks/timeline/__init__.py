"""A timeline of computation and traffic, one file for each rank, that Perfetto opens."""

from lightning_hier.callbacks.timeline.callback import Timeline
from lightning_hier.callbacks.timeline.merging import merge_timelines

__all__ = ["Timeline", "merge_timelines"]
