"""Refused connections and messages: counted by reason, and logged once by reason and peer."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Literal

Reason = Literal[
    "handshake", "unknown_key", "stranger", "impostor", "malformed", "truncated", "replayed"
]

_log = logging.getLogger(__name__)
# A stranger can use any number of names, which must not fill the log.
_MOST_LOGGED = 1000


class Refused(Exception):
    """A received message or a connection was refused."""

    def __init__(self, reason: Reason, peer: str, detail: str = "") -> None:
        """Refuse a message of ``peer`` for ``reason``."""
        super().__init__(f"{peer}: {reason}")
        self.reason: Reason = reason
        self.peer = peer
        self.detail = detail


class Refusals:
    """Counts of refusals on a rank. Thread-safe.

    Reasons: ``handshake`` (not ZeroMQ, or without the job's encryption), ``unknown_key`` (a CURVE
    key that belongs to no rank), ``stranger`` (without the token of a rank), ``impostor`` (the key
    of one rank with the name of another), ``malformed`` (see :mod:`.wire`), ``truncated`` (the last
    parts did not arrive) and ``replayed`` (a sequence number that does not increase).
    """

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._logged: set[tuple[str, str]] = set()

    def add(self, refused: Refused) -> None:
        """Count a refusal, and log the first one of its reason and peer."""
        reason, peer, detail = refused.reason, refused.peer, refused.detail
        with self._lock:
            self._counts[reason] += 1
            if (reason, peer) in self._logged or len(self._logged) >= _MOST_LOGGED:
                return
            self._logged.add((reason, peer))
        # Without the lock: a slow log must not stop the other threads.
        _log.warning("refused from %s: %s%s", peer, reason, f" ({detail})" if detail else "")

    def counts(self) -> dict[str, int]:
        """Number of refusals by reason."""
        with self._lock:
            return dict(self._counts)
