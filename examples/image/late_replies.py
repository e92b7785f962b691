"""Servers whose replies are sometimes late, as in the simulation of psp_sgd 4.2."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import override

from lightning_hier import PSPStrategy
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.engine import PSPEngine
from lightning_hier.parameter_server.server_loop import Handler, Replies

if TYPE_CHECKING:
    from lightning_hier.parameter_server.engine import Engine
    from lightning_hier.parameter_server.open_ports import Ports
    from lightning_hier.parameter_server.request_channel import RequestChannel


class _Held(NamedTuple):
    due: float
    address: bytes
    message: Message


class LateReplies:
    """Holds back a share of a server's replies to pulls by a constant.

    It stands before the server's port (``Replies``) and is a server_loop's ``Handler``.

    Nothing sleeps: the server goes on, and replies to others pass by the one that is held.

    Args:
        port: of the rank's server, without delay.
        share: of the replies that are late, from 0 to 1.
        seconds: by which they are late.
        draw: decides which.
        clock: in seconds.

    Attributes:
        replies: to pulls.
        late: those of them that were held.

    Raises:
        ValueError: a number is out of range.
    """

    kinds: frozenset[Kind] = frozenset()

    def __init__(
        self,
        port: Replies,
        *,
        share: float,
        seconds: float,
        draw: np.random.Generator,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"share must be from 0 to 1, got {share}")
        if seconds < 0.0:
            raise ValueError(f"seconds must be at least 0, got {seconds}")
        self.replies = 0
        self.late = 0
        self._port = port
        self._share = share
        self._seconds = seconds
        self._draw = draw
        self._clock = clock
        self._held: deque[_Held] = deque()

    def send(self, address: bytes, message: Message) -> bool:
        """Send, or keep a reply until its time."""
        if message.kind != Kind.BLOCK:
            return self._port.send(address, message)
        self.replies += 1
        if self._draw.random() >= self._share:
            return self._port.send(address, message)
        self.late += 1
        self._held.append(_Held(self._clock() + self._seconds, address, message))
        return True

    def is_sending(self, address: bytes, kind: Kind, block: int) -> bool:
        """Whether such a message has not left yet; one that is held is not in anybody's way."""
        return self._port.is_sending(address, kind, block)

    def handle(self, received: Received, now: float) -> None:
        """Nothing comes: there are no ``kinds``."""

    def deadline(self) -> float:
        """When the next reply is due."""
        return self._held[0].due if self._held else math.inf

    def tick(self, now: float) -> None:
        """Send what is due."""
        while self._held and self._held[0].due <= now:
            _, address, message = self._held.popleft()
            self._port.send(address, message)

    def peer_gone(self, rank: int, now: float) -> None:
        """What is sent to a rank that is gone is lost."""


class _LateEngine(PSPEngine):
    """PSP-SGD with one more handler."""

    def __init__(self, replies: LateReplies, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._replies = replies

    @property
    def handlers(self) -> Sequence[Handler]:
        return [*super().handlers, self._replies]

    def metrics(self) -> dict[str, float]:
        counted = {
            "late_replies/replies": float(self._replies.replies),
            "late_replies/late": float(self._replies.late),
        }
        return super().metrics() | counted


class LateRepliesPSPStrategy(PSPStrategy):
    """PSP-SGD on servers whose replies to pulls are sometimes late.

    Args:
        late_share: of the replies of every server.
        late_seconds: by which they are late.
        late_seed: with the rank it decides which.
        **psp: arguments of ``PSPStrategy``.
    """

    def __init__(
        self, *, late_share: float, late_seconds: float, late_seed: int = 0, **psp: Any
    ) -> None:
        super().__init__(**psp)
        self.late_share = late_share
        self.late_seconds = late_seconds
        self.late_seed = late_seed

    @override
    def _build_engine(self, ports: Ports, channel: RequestChannel) -> Engine:
        replies = LateReplies(
            ports.server,
            share=self.late_share,
            seconds=self.late_seconds,
            draw=np.random.default_rng([self.late_seed, self.global_rank]),
        )
        return _LateEngine(
            replies,
            self.global_rank,
            self.optimizers,
            channel,
            replies,
            self._psp_settings(),
            self.pull_rule,
        )
