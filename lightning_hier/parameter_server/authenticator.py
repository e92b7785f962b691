"""Who gets a connection between hosts: the holders of the ranks' CURVE keys (ZeroMQ's ZAP)."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping

import zmq
from zmq.utils import z85

from lightning_hier.parameter_server.refusals import Refusals

ZAP_DOMAIN = b"lightning_hier"
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
_MONITOR_ENDPOINT = "inproc://handshakes"
# Connections that come before the keys of the job are known wait for them so long.
_ADMISSION_LIMIT_S = 60.0
_FAILED_HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)  # the third, a key that was not admitted, is counted where it is refused


class Authenticator:
    """Answers the requests of a context for admission, in a thread of its own.

    The answer names the rank that the key belongs to, and every message of the connection then
    carries this name. The thread also counts failed handshakes of the server's socket, so that
    a flood of them is dealt with while the server is busy. It ends when the context does.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], refusals: Refusals) -> None:
        """Answer from now on; nobody is admitted before :meth:`admit`."""
        self._refusals = refusals
        self._ranks: Mapping[str, int] = {}
        self._known = threading.Event()
        self._requests = context.socket(zmq.REP)
        self._requests.linger = 0
        self._requests.bind(_ZAP_ENDPOINT)
        self._handshakes = context.socket(zmq.PAIR)
        self._handshakes.linger = 0
        self._thread = threading.Thread(target=self._run, name="authenticator", daemon=True)

    def start(self, server: zmq.Socket[bytes]) -> None:
        """Begin, before ``server`` is bound."""
        server.monitor(_MONITOR_ENDPOINT, _FAILED_HANDSHAKES)
        self._handshakes.connect(_MONITOR_ENDPOINT)
        self._thread.start()

    def admit(self, ranks_by_key: Mapping[str, int]) -> None:
        """Admit the holders of these public keys as these ranks."""
        self._ranks = ranks_by_key
        self._known.set()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._requests, zmq.POLLIN)
        poller.register(self._handshakes, zmq.POLLIN)
        try:
            while True:
                for socket, _ in poller.poll():
                    if socket is self._requests:
                        self._answer(self._requests.recv_multipart())
                    else:
                        self._count(self._handshakes.recv_multipart())
        except zmq.ContextTerminated:
            pass
        finally:
            self._requests.close()
            self._handshakes.close()

    def _answer(self, request: list[bytes]) -> None:
        version, number, _, address, _, mechanism, *proof = request
        rank = None
        if version == _ZAP_VERSION and mechanism == b"CURVE" and len(proof) == 1:
            self._known.wait(_ADMISSION_LIMIT_S)
            rank = self._ranks.get(z85.encode(proof[0]).decode())
        if rank is None:
            self._refusals.add("unknown_key", address.decode("latin-1"))
            verdict = [b"400", b"not a rank of this job", b"", b""]
        else:
            verdict = [b"200", b"OK", str(rank).encode(), b""]
        self._requests.send_multipart([_ZAP_VERSION, number, *verdict])

    def _count(self, event: list[bytes]) -> None:
        number, value = struct.unpack("=HI", event[0])
        endpoint = event[1].decode("latin-1")
        self._refusals.add("handshake", f"a peer of {endpoint}", f"event {number}, value {value}")
