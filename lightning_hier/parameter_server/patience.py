"""When to ask somebody again who has not answered: a message may have been lost."""

from __future__ import annotations

import math

_LONGEST_S = 30.0
# An answer this late, compared with the one before, may have been lost on the way.
_LATE = 3.0


class Patience:
    """How long a request is left alone: at first as the last answer says, then longer and longer.

    On a slow line an answer takes its time; to ask for it again would only lengthen the queue.

    Args:
        least_s: seconds of silence after which a request may be put again.

    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._usual_s = least_s
        self._asked_at = 0.0
        self._silence_s = least_s
        self._again_at = math.inf

    def begin(self, now: float) -> None:
        """Something has been asked, at ``now`` seconds."""
        self._asked_at = now
        self._silence_s = self._usual_s
        self._again_at = now + self._silence_s

    def asks_again(self, now: float) -> bool:
        """Whether to put the request again now. If so, the next time is later."""
        if now < self._again_at:
            return False
        self._silence_s = min(2 * self._silence_s, _LONGEST_S)
        self._again_at = now + self._silence_s
        return True

    def heard(self, now: float) -> None:
        """Some of the answer has come: the rest may be on its way."""
        self._again_at = now + self._silence_s

    def answered(self, now: float) -> None:
        """The answer has come: the next one may take as long."""
        usual_s = _LATE * (now - self._asked_at)
        self._usual_s = min(max(self._least_s, usual_s), _LONGEST_S)
