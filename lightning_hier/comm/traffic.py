"""Bytes that this rank has sent, by tier and kind, and time in which it has waited."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Literal, get_args

Tier = Literal["group", "across"]
TIERS: tuple[Tier, ...] = get_args(Tier)


@dataclass
class Count:
    """Totals of one kind of message since the start of the run.

    Attributes:
        payload_bytes: bytes that this rank sends, by the bandwidth-optimal algorithm of each
            collective, without headers of the transport.
        seconds: time in flight, from the call to its completion, including time in which the rank
            also computes.
        calls: number of collectives.

    """

    payload_bytes: int = 0
    seconds: float = 0.0
    calls: int = 0

    def __add__(self, other: Count) -> Count:
        """Sum of both."""
        return Count(
            self.payload_bytes + other.payload_bytes,
            self.seconds + other.seconds,
            self.calls + other.calls,
        )


class Traffic:
    """Counts of one rank, keyed by tier (``group`` or ``across``) and kind (``gradients``, ...)."""

    def __init__(self) -> None:
        """Start at zero."""
        self._counts: defaultdict[tuple[Tier, str], Count] = defaultdict(Count)
        self._waited_s: dict[Tier, float] = dict.fromkeys(TIERS, 0.0)
        # Collectives that overlap with the backward pass are counted by other threads.
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        """State without the lock, for launchers that pickle the strategy before training."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the counts with a new lock."""
        self.__dict__.update(state)
        self._lock = Lock()

    def add(
        self,
        tier: Tier,
        kind: str,
        *,
        payload_bytes: float,
        seconds: float,
        waited_s: float = 0.0,
    ) -> None:
        """Count a collective or message that completes now.

        Args:
            tier: tier of its ranks.
            kind: kind under which it is counted.
            payload_bytes: bytes that this rank sends.
            seconds: time in flight.
            waited_s: seconds of it in which training waited.

        """
        with self._lock:
            self._waited_s[tier] += waited_s
            count = self._counts[tier, kind]
            # Shares of a ring are fractions. Whole bytes add up exactly in a long run.
            count.payload_bytes += round(payload_bytes)
            count.seconds += seconds
            count.calls += 1

    def add_wait(self, tier: Tier, seconds: float) -> None:
        """Count ``seconds`` until now in which training waited for ranks of ``tier``."""
        with self._lock:
            self._waited_s[tier] += seconds

    def waited_seconds(self, tier: Tier) -> float:
        """Seconds in which training waited for ranks of ``tier`` without computing."""
        # Without the lock: reading one float is atomic, and the metric may be a moment old.
        return self._waited_s[tier]

    def total(self, tier: Tier) -> Count:
        """Sum over the kinds of one tier."""
        return sum((c for (t, _), c in self._present() if t == tier), Count())

    def of(self, tier: Tier, kind: str) -> Count:
        """Totals of one kind, or zeros if nothing was sent."""
        return dict(self._present()).get((tier, kind), Count())

    def _present(self) -> list[tuple[tuple[Tier, str], Count]]:
        # Copies, because other threads change the counts after the lock is released.
        with self._lock:
            return sorted((key, replace(count)) for key, count in self._counts.items())

    def metrics(self) -> dict[str, float]:
        """All totals by the names under which they are logged."""
        named: dict[str, float] = {}
        for (tier, kind), count in self._present():
            named[f"hier/{tier}/{kind}/payload_bytes"] = count.payload_bytes
            named[f"hier/{tier}/{kind}/seconds"] = count.seconds
            named[f"hier/{tier}/{kind}/calls"] = count.calls
        for tier in TIERS:
            total = self.total(tier)
            named[f"hier/{tier}/payload_bytes"] = total.payload_bytes
            named[f"hier/{tier}/seconds"] = total.seconds
            named[f"hier/{tier}/waited_seconds"] = self.waited_seconds(tier)
        for total_of in ("payload_bytes", "waited_seconds"):
            named[f"hier/{total_of}"] = sum(named[f"hier/{tier}/{total_of}"] for tier in TIERS)
        return named
