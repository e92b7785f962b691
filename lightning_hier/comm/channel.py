"""Collectives of a process group that are counted and whose errors name ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.traffic import Tier, Traffic

# torch 2.13 renamed it, and warns about the former name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def gather_rows(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the short 1-D ``own`` of every rank of the group as rows, in order of position.

    The first rank gathers the rows and broadcasts them, in 1 + log2 n messages one after the other.
    An all-gather of gloo or NCCL is a ring of n - 1. For rows of some bytes, the latency of these
    messages is all that counts (docs/reports/performance.md). Every rank of the group must call it.

    Args:
        own: row of this rank, equally long on all ranks.
        group: process group.

    """
    rows = own.new_empty((group.size(), own.numel()))
    places = list(rows.unbind()) if group.rank() == 0 else None
    # Waits are outside of torch's functions. These describe the group of an error in torch's log,
    # and for a group of membership, which torch does not know, raise a ValueError in its place.
    dist.gather(own, places, group=group, group_dst=0, async_op=True).wait()
    dist.broadcast(rows, group=group, group_src=0, async_op=True).wait()
    return rows


class ExplainsFailures(Protocol):
    """Raises errors that name the missing ranks or groups, such as a
    :class:`~lightning_hier.comm.progress_record.ProgressRecord`."""

    def explaining(self, ranks: Sequence[int], doing: str = "") -> AbstractContextManager[None]:
        """Context of a collective of ``ranks``, which ``doing`` describes."""


class Pending:
    """A collective in flight.

    Args:
        channel: channel of the collective.
        kind: kind under which the collective is counted.
        payload_bytes: bytes that this rank sends.

    Attributes:
        work: work handle of torch, after the collective has been started.

    """

    work: dist.Work

    def __init__(self, channel: Channel, kind: str, payload_bytes: float) -> None:
        self._channel = channel
        self._kind = kind
        self._payload_bytes = payload_bytes
        self._begun = time.perf_counter()

    def wait(self) -> None:
        """Block until the collective is complete.

        Raises:
            PeerError: a rank was lost or late. The error names the missing ranks.
            RuntimeError: the collective failed for another reason.

        """
        begun = time.perf_counter()
        with self._channel.explaining(self._kind), profiler_range("hier/wait"):
            self.work.wait()
        # Only this wait blocks training. The rest of the time in flight overlaps with computation.
        # With NCCL, the stream waits and not the host, so little is counted (docs/metrics.md).
        self._count(waiting_since=begun)

    def future(self, *, nothing_left: bool = False) -> torch.futures.Future[torch.Tensor]:
        """The result as a future for DDP's communication hooks.

        Args:
            nothing_left: whether no computation is left, so that this rank waits from now on.

        """
        begun = time.perf_counter()

        def finish(done: torch.futures.Future[list[Tensor]]) -> Tensor:
            with self._channel.explaining(self._kind):
                result = done.value()[0]
            # In the callback, because the backward pass still waits. Later would be a race.
            # Callbacks run in threads, in different orders on ranks, and start no collectives.
            self._count(waiting_since=begun if nothing_left else None)
            return result

        future: torch.futures.Future[torch.Tensor] = self.work.get_future().then(finish)
        return future

    def _count(self, *, waiting_since: float | None) -> None:
        """Count the collective, which is complete now, and the time that this rank has waited."""
        now = time.perf_counter()
        self._channel.traffic.add(
            self._channel.tier,
            self._kind,
            payload_bytes=self._payload_bytes,
            seconds=now - self._begun,
            waited_s=0.0 if waiting_since is None else now - waiting_since,
        )


class Channel:
    """A process group of this rank in one tier.

    Every method that starts a collective must be called by all ranks of the group, in the same
    order.
    """

    def __init__(
        self, group: dist.ProcessGroup, tier: Tier, traffic: Traffic, progress: ExplainsFailures
    ) -> None:
        """Use ``group``, count in ``traffic`` for ``tier``, explain failures by ``progress``."""
        self.tier: Tier = tier
        self.traffic = traffic
        self._progress = progress
        self.use(group, dist.get_process_group_ranks(group))

    def use(self, group: dist.ProcessGroup, ranks: Sequence[int]) -> None:
        """Communicate over ``group`` from now on, whose ranks have these numbers in errors."""
        # In place, because synchronisers and routes keep the channel when groups come and go.
        self.group = group
        self.size, self.position = group.size(), group.rank()
        self.ranks = list(ranks)
        # Bytes that a rank sends in a ring all-reduce, relative to the tensor.
        self._ring_share = 2 * (self.size - 1) / self.size

    def all_reduce_(self, tensor: Tensor, kind: str) -> Pending:
        """Sum ``tensor`` over the group, in place."""
        with self._starting(kind, self._ring_share * tensor.nbytes) as pending:
            pending.work = dist.all_reduce(tensor, group=self.group, async_op=True)
        return pending

    def all_gather(self, output: Tensor, own: Tensor, kind: str) -> Pending:
        """Concatenate ``own`` of every rank, in order of position, into ``output``."""
        with self._starting(kind, (self.size - 1) * own.nbytes) as pending:
            pending.work = _all_gather(output, own, group=self.group, async_op=True)
        return pending

    def gather_rows(self, own: Tensor, kind: str) -> Tensor:
        """:func:`gather_rows` over the group, counted as one collective. Waits for it."""
        begun = time.perf_counter()
        with self.explaining(kind), profiler_range("hier/wait"):
            rows = gather_rows(own, self.group)
        waited = time.perf_counter() - begun
        # What other ranks forward is not counted, as in a broadcast.
        sent = rows.nbytes if self.position == 0 else own.nbytes
        payload_bytes = sent if self.size > 1 else 0
        self.traffic.add(
            self.tier, kind, payload_bytes=payload_bytes, seconds=waited, waited_s=waited
        )
        return rows

    def gather_into(self, places: Sequence[Tensor], own: Tensor, kind: str) -> Pending:
        """Copy ``own`` of every rank into the place of its position. All have the same length."""
        with self._starting(kind, (self.size - 1) * own.nbytes) as pending:
            pending.work = dist.all_gather(list(places), own, group=self.group, async_op=True)
        return pending

    def all_to_all(self, output: Tensor, rows: Tensor, kind: str) -> Pending:
        """Send an equal part of ``rows`` to every rank, and receive their parts in ``output``."""
        with self._starting(kind, (self.size - 1) / self.size * rows.nbytes) as pending:
            pending.work = dist.all_to_all_single(output, rows, group=self.group, async_op=True)
        return pending

    def reduce_(self, tensor: Tensor, kind: str) -> Pending:
        """Sum ``tensor`` over the group, in place on the first rank. It is undefined on others."""
        with self._starting(kind, self._ring_share / 2 * tensor.nbytes) as pending:
            pending.work = dist.reduce(tensor, group=self.group, group_dst=0, async_op=True)
        return pending

    def broadcast_(self, tensor: Tensor, kind: str, source: int = 0) -> Pending:
        """Copy ``tensor`` of the rank at position ``source`` to the others, in place."""
        # The optimal broadcast sends it once. What other ranks forward is not counted.
        sends = self.size > 1 and self.position == source
        with self._starting(kind, tensor.nbytes if sends else 0) as pending:
            pending.work = dist.broadcast(tensor, group=self.group, group_src=source, async_op=True)
        return pending

    @contextmanager
    def _starting(self, kind: str, payload_bytes: float) -> Iterator[Pending]:
        """Context in which a collective is started."""
        # Before the start, so that the time in flight includes it.
        pending = Pending(self, kind, payload_bytes)
        with self.explaining(kind):
            yield pending

    def count_all_reduce(self, kind: str, payload_bytes: float, seconds: float) -> None:
        """Count an all-reduce of ``payload_bytes`` by a hook of the user."""
        payload_bytes *= self._ring_share
        self.traffic.add(self.tier, kind, payload_bytes=payload_bytes, seconds=seconds)

    def explaining(self, kind: str) -> AbstractContextManager[None]:
        """Context that names the missing ranks if a collective fails."""
        doing = f"the collective {kind!r} of ranks {self.ranks}"
        return self._progress.explaining(self.ranks, doing)
