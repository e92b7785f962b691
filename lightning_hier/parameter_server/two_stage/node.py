"""The thread of a group's first rank that exchanges gradients and models with the master."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lightning_hier.parameter_server.client import Client
from lightning_hier.parameter_server.message import Kind
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.server_loop import BackgroundThread
from lightning_hier.parameter_server.two_stage.exchange import Exchange
from lightning_hier.parameter_server.two_stage.replica import Replica

# Interval at which the devices' counters are read. Messages are handled at once.
_PAUSE_S = 0.003


class Node(BackgroundThread):
    """Runs the exchanges of all optimizers.

    Args:
        client: of the node's thread alone.
        exchanges: one for each optimizer, in their order.
        replicas: as many; they pass the text of a failure to the devices.

    """

    def __init__(
        self, client: Client, exchanges: Sequence[Exchange], replicas: Sequence[Replica]
    ) -> None:
        super().__init__("node")
        self.exchanges = list(exchanges)
        self._client = client
        self._replicas = list(replicas)
        for kind in (Kind.BLOCK, Kind.FINAL, Kind.ORDER):
            client.on(kind, self._handle)

    def _run_once(self) -> None:
        for exchange in self.exchanges:
            exchange.advance(time.monotonic())
        self._client.poll(_PAUSE_S)

    def _fail(self, error: Exception) -> None:
        super()._fail(error)
        for replica in self._replicas:
            replica.fail(str(error))

    def _handle(self, received: Received, now: float) -> None:
        if received.message.block < len(self.exchanges):
            self.exchanges[received.message.block].handle(received.message, now)
