"""Snapshots of the state of servers, over real sockets and on real ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor, optim
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.parameter_server.open_ports import Ports
from lightning_hier.parameter_server.psp.engine import PSPEngine
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server_loop import ServerLoop
from tests.distributed.port_ranks import opened
from tests.distributed.server_world import World, server_world
from tests.equivalence.test_psp import loss_gradients, start
from tests.ranks import run_ranks
from tests.waiting import WAIT_S


def psp_world(
    optimizers: Sequence[Optimizer],
    *,
    timeout_s: float = 20.0,
    **settings: Any,
) -> AbstractContextManager[World[PSPEngine]]:
    """Start training with PSP-SGD on this rank, with settings of :class:`PSPSettings`."""
    world_size = int(os.environ["WORLD_SIZE"])
    chosen = PSPSettings(timeout_s=timeout_s, **settings)

    def build(rank: int, ports: Ports, channel: RequestChannel) -> PSPEngine:
        return PSPEngine(
            rank, optimizers, channel, ports.server, world_size=world_size, settings=chosen
        )

    return server_world(build, timeout_s=timeout_s)


NUMEL = 500_000


def test_snapshot_has_the_values_and_states_of_all_servers() -> None:
    moments = {"step": torch.tensor(3.0), "exp_avg": torch.ones(NUMEL), "exp_avg_sq": None}
    with opened(2) as ranks, ExitStack() as stack:
        engines = []
        for rank, ports in enumerate(ranks):
            own = [Parameter(torch.full((NUMEL,), float(at))) for at in range(2)]
            server_loop = ServerLoop(ports)
            channel = RequestChannel(ports.clients["main"], server_loop, timeout_s=WAIT_S)
            optimizer = optim.Adam(own)
            engine = PSPEngine(
                rank, [optimizer], channel, ports.server, world_size=2, settings=PSPSettings()
            )
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


def test_one_rank_takes_a_snapshot_while_the_others_train() -> None:
    (values, states, at), *_ = run_ranks(_snapshot, 4)
    assert all(torch.equal(one, other) for one, other in zip(values, at, strict=True))
    own = [Parameter(value) for value in values]
    plain = optim.SGD(own, lr=0.01, momentum=0.9)
    plain.load_state_dict({**plain.state_dict(), "state": states})
    assert all(plain.state[one]["momentum_buffer"].shape == one.shape for one in own)


def _snapshot() -> tuple[list[Tensor], dict[int, Any], list[Tensor]]:
    """Snapshot of rank 0, and its parameters then.

    Servers cannot apply an update without rank 0, so both must be equal.
    """
    rank = int(os.environ["RANK"])
    own = [Parameter(value) for value in start()]
    optimizer = optim.SGD(own, lr=0.01, momentum=0.9)
    result: tuple[list[Tensor], dict[int, Any], list[Tensor]] = ([], {}, [])
    with psp_world([optimizer]) as world:
        for step in range(8):
            if rank == 0 and step == 5:
                snapshot = world.engine.snapshot()
                values = [snapshot.values[one] for one in own]
                at = [one.detach().clone() for one in own]
                result = values, dict(snapshot.optimizer_states[0]), at
            for parameter, gradient in zip(own, loss_gradients(rank, step, own), strict=True):
                parameter.grad = gradient
            world.engine.workers[0].step()
        world.engine.rendezvous()
    return result
