"""The state of a server on its way through real sockets."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import optim
from torch.nn import Parameter

from lightning_hier.parameter_server.client import Client
from lightning_hier.parameter_server.message import Kind, Limits, Message
from lightning_hier.parameter_server.psp.engine import PSPEngine
from lightning_hier.parameter_server.psp.settings import PSPSettings, PullRule, PushRule
from lightning_hier.parameter_server.server_loop import ServerLoop
from tests.distributed.port_ranks import opened
from tests.waiting import WAIT_S, wait_until

NUMEL = 500_000


def test_state_that_is_larger_than_the_queue_is_saved() -> None:
    """Values and two moments of a block; the queue takes one of them at a time."""
    limits = Limits(queued_bytes=NUMEL)
    settings = PSPSettings(rule=PushRule(), world_size=2)
    moments = {"step": torch.tensor(3.0), "exp_avg": torch.ones(NUMEL), "exp_avg_sq": None}
    with opened(2, limits=limits) as ranks, ExitStack() as stack:
        engines = []
        for rank, ports in enumerate(ranks):
            own = [Parameter(torch.full((NUMEL,), float(at))) for at in range(2)]
            server_loop = ServerLoop(ports.server, ports.watch, [])
            client = Client(ports.open_client("main"), server_loop, timeout_s=WAIT_S)
            optimizer = optim.Adam(own)
            engine = PSPEngine(rank, [optimizer], client, ports.server, settings, PullRule())
            states = {at: {**moments, "exp_avg_sq": torch.full((NUMEL,), 2.0)} for at in range(2)}
            engine.load(0, states)
            server_loop.add(engine.handlers)
            server_loop.start()
            stack.callback(server_loop.stop)
            engines.append((engine, own))
        engine, own = engines[0]
        snapshot = engine.snapshot()
        for at, parameter in enumerate(own):
            assert torch.equal(snapshot.values[parameter], torch.full((NUMEL,), float(at)))
            state = snapshot.optimizer_states[0][at]
            assert torch.equal(state["exp_avg"], moments["exp_avg"])
            assert torch.equal(state["exp_avg_sq"], torch.full((NUMEL,), 2.0))


def test_what_is_queued_is_known_until_it_has_left() -> None:
    payload = torch.zeros(2_000_000)
    with opened(2) as [ports, other]:
        client = other.open_client("main")
        client.send(0, Message(Kind.STATE_REQUEST, block=7))
        received = ports.server.receive(WAIT_S)
        assert received is not None
        address = received.address

        def is_sending(kind: Kind, block: int) -> bool:
            return ports.server.is_sending(address, kind, block)

        ports.server.send(address, Message(Kind.STATE, 7, payload=payload))
        assert is_sending(Kind.STATE, 7)
        assert not is_sending(Kind.STATE, 6) and not is_sending(Kind.BLOCK, 7)
        assert client.receive(WAIT_S) is not None
        wait_until(lambda: not is_sending(Kind.STATE, 7), "the end of the queue")
