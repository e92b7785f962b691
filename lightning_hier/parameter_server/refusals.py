"""What was refused: counted by reason, and said once in the log for each reason and peer."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Literal

Reason = Literal[
    "handshake", "unknown_key", "stranger", "impostor", "malformed", "truncated", "replayed"
]

_log = logging.getLogger(__name__)
# Strangers can take any number of names; the log is not theirs to fill.
_MOST_SAID = 1000


class Refused(Exception):
    """Something that came in is not to be taken."""

    def __init__(self, reason: Reason, peer: str, detail: str = "") -> None:
        """Refuse something of ``peer`` for ``reason``."""
        super().__init__(f"{peer}: {reason}")
        self.reason: Reason = reason
        self.peer = peer
        self.detail = detail


class Refusals:
    """Counts of one rank. From any thread.

    The reasons: ``handshake`` (no ZeroMQ, or without the job's encryption), ``unknown_key`` (a
    CURVE key that is no rank's), ``stranger`` (without the token of a rank), ``impostor`` (one
    rank's key and another's name), ``malformed`` (see :mod:`.wire`), ``truncated`` (its last parts
    did not come) and ``replayed`` (a sequence number that does not increase).
    """

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._said: set[tuple[str, str]] = set()

    def add(self, reason: Reason, peer: str, detail: str = "") -> None:
        """Count one refusal of something that came from ``peer``."""
        with self._lock:
            self._counts[reason] += 1
            if (reason, peer) in self._said or len(self._said) >= _MOST_SAID:
                return
            self._said.add((reason, peer))
        _log.warning("refused from %s: %s%s", peer, reason, f" ({detail})" if detail else "")

    def note(self, refused: Refused) -> None:
        """Count what was refused."""
        self.add(refused.reason, refused.peer, refused.detail)

    def counts(self) -> dict[str, int]:
        """How many were refused, by reason."""
        with self._lock:
            return dict(self._counts)
