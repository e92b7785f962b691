"""The engine of two-stage ASGD on real ranks: two optimizers, snapshots, loading and counts."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from lightning_hier.parameter_server.two_stage.engine import TwoStageASGD
from tests.distributed.two_stage_world import two_stage_world
from tests.ranks import run_ranks

STEPS = 12


def _two_optimizers() -> dict[str, Any]:
    module = nn.ModuleList([nn.Linear(4, 3), nn.Linear(3, 2)])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(1.0)
    module[1].bias.requires_grad_(False)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD(module[0].parameters(), lr=0.01, momentum=0.5),
        torch.optim.Adam(module[1].parameters(), lr=0.01),
    ]
    frozen, pointers = module[1].bias.clone(), [own.data_ptr() for own in module.parameters()]
    state = {0: {"step": torch.tensor(100.0), "exp_avg": torch.zeros(2, 3)}}
    state[0]["exp_avg_sq"] = torch.ones(2, 3)
    resume = partial(TwoStageASGD.load, optimizer=1, state=state)
    with two_stage_world(optimizers, 2, push_period=3, before=resume) as world:
        versions = []
        for step in range(STEPS):
            for index, optimizer in enumerate(optimizers):
                if step % 3 == 2 and index == 1:
                    continue  # the second optimizer steps less often
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        parameter.grad = parameter.detach().clone()
                world.engine.workers[index].step()
            if world.rank == 0:
                snapshot = world.engine.snapshot()
                versions.append([len(snapshot.values), len(snapshot.optimizer_states)])
        world.engine.rendezvous()
        result: dict[str, Any] = {
            "values": [own.detach().clone() for own in module.parameters()],
            "kept": [own.data_ptr() for own in module.parameters()] == pointers,
            "frozen": torch.equal(frozen, module[1].bias),
            "states": [len(optimizer.state) for optimizer in optimizers],
            "metrics": world.engine.metrics(),
            "bytes": world.traffic.total("across").payload_bytes,
            "shapes": versions,
        }
        if world.rank == 0:
            result["snapshot"] = world.engine.snapshot().optimizer_states
            saved = world.engine.snapshot().values
            result["saved"] = [saved[own] for own in module.parameters() if own.requires_grad]
        else:
            try:
                world.engine.snapshot()
            except RuntimeError as error:
                result["refusal"] = str(error)
        return result


def test_every_optimizer_has_its_own_replica_and_counts() -> None:
    results = run_ranks(_two_optimizers, 4)
    first = results[0]
    for result in results:
        for ours, theirs in zip(result["values"], first["values"], strict=True):
            assert torch.equal(ours, theirs)
        assert result["kept"] and result["frozen"] and result["states"] == [0, 0]
        counts = result["metrics"]
        assert counts["hier/two_stage/0/device/gradients"] == STEPS
        assert counts["hier/two_stage/1/device/gradients"] == STEPS * 2 / 3
        assert all(type(value) is float for value in counts.values())
    for saved, value in zip(first["saved"], first["values"], strict=False):
        assert torch.equal(saved, value)
    pushed = [results[node]["metrics"]["hier/two_stage/0/node/gradients"] for node in (0, 2)]
    assert pushed == [2 * STEPS, 2 * STEPS]
    momentum, moments = first["snapshot"]
    assert sorted(momentum) == [0, 1] and list(moments) == [0]
    updates = first["metrics"]["hier/two_stage/1/master/version"]
    assert moments[0]["step"] == 100 + updates  # the loaded state has 100 steps
    assert first["shapes"] == [[3, 2]] * STEPS
    assert all(
        "must be taken on rank 0, which holds the master's model" in one["refusal"]
        for one in results[1:]
    )
    # Only the first rank of the second node pushes to a master on another node.
    assert results[2]["bytes"] > 0
