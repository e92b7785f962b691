"""Current block, share of waiting time and MB/s in the Trainer's progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable

from lightning_hier.comm.traffic import TIERS, Traffic
from lightning_hier.comm.worker import Worker

# A bar may be drawn at every batch. Values over a shorter time would change too quickly to read.
_SHORTEST_SPAN_S = 1.0


class Rates:
    """Recent communication of a rank, computed when a progress bar is drawn.

    Steps are not slowed down, because :class:`Traffic` counts in any case.

    Args:
        traffic: traffic of this rank.
        clock: function that returns seconds.

    """

    def __init__(self, traffic: Traffic, clock: Callable[[], float] = time.perf_counter) -> None:
        self._traffic = traffic
        self._clock = clock
        self._at_s, self._bytes, self._waited_s = self._totals()
        self._shown: dict[str, str] = {}

    def read(self) -> dict[str, str]:
        """Values by name, over the time since they last changed, which is at least one second.

        ``comm`` is the fraction of this time in which training waited for other ranks
        (``hier/waited_seconds``). It does not include overlapped communication. ``MB/s`` are the
        payload bytes of both tiers that this rank has sent, in 10^6 bytes per second.
        """
        now_s, nbytes, waited_s = self._totals()
        span_s = now_s - self._at_s
        if span_s >= _SHORTEST_SPAN_S:
            # A wait that began before the span counts in full when it ends.
            share = min(1.0, (waited_s - self._waited_s) / span_s)
            speed = (nbytes - self._bytes) / 1e6 / span_s
            self._shown = {"comm": f"{share:.0%}", "MB/s": f"{speed:.3g}"}
            self._at_s, self._bytes, self._waited_s = now_s, nbytes, waited_s
        return self._shown

    def _totals(self) -> tuple[float, int, float]:
        nbytes = sum(self._traffic.total(tier).payload_bytes for tier in TIERS)
        waited_s = sum(self._traffic.waited_seconds(tier) for tier in TIERS)
        return self._clock(), nbytes, waited_s


def place_in_block(worker: Worker, block_size: int | None, warmup_steps: int) -> str:
    """Number of the current block and of the steps in it, for example ``12 7/50``.

    Args:
        worker: worker of this rank. With several optimizers, each has its own block.
        block_size: steps of a block. None: there are no blocks.
        warmup_steps: steps before the first block.

    """
    places = []
    for count in worker.steps:
        if count.total < warmup_steps:
            places.append(f"warm-up {count.total}/{warmup_steps}")
        elif block_size is not None:
            size = count.block_size or block_size  # a rule may give every block another length
            places.append(f"{count.blocks + 1} {count.in_block}/{size}")
    return ", ".join(places)
