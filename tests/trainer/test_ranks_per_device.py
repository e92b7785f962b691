"""Tests several ranks for each device: a run must equal one with as many devices, bit for bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.sharded.nets import Divided, gathered
from tests.trainer.fitting import (
    BMUF_GTC,
    Fitted,
    Net,
    Untrained,
    errors_on_ranks,
    fitted,
    loader,
    make_trainer,
)

SHARED = {"devices": 1, "ranks_per_node": 2}  # settings of a fit on two hosts of one device each
STRATEGIES: dict[str, Any] = {
    "bmuf_gtc": partial(BMUF_GTC, group_size="node"),
    "psp": lh.PSPStrategy,
}


class _Dropout(Net):
    """Notes the first batch of each epoch, and draws random numbers in every step."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.dropout = nn.Dropout(0.5)

    def forward(self, batch: Tensor) -> Tensor:
        result: Tensor = self.dropout(self.layers(batch))
        return result

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.notes.append((float(batch[0].sum()), float(torch.rand(()))))
        return super().training_step(batch, batch_idx)


def _fit(name: str, ranks_per_device: int = 1, **settings: Any) -> tuple[Fitted, dict[str, Any]]:
    pl.seed_everything(7, verbose=False)
    strategy = STRATEGIES[name](ranks_per_device=ranks_per_device)
    return fitted(lambda: strategy, _Dropout, **settings), strategy.describe()


def _fit_each(ranks_per_device: int, folder: Path, **settings: Any) -> Any:
    """Train with every strategy, and a divided module. Save in mid-epoch on shared devices."""
    seen = _fit_divided(ranks_per_device, **settings)
    servers = _fit("psp", ranks_per_device, **settings)
    saves = ModelCheckpoint(folder, filename="middle", every_n_train_steps=5)
    settings |= {"enable_checkpointing": True, "callbacks": [saves]} if ranks_per_device > 1 else {}
    return seen, servers, _fit("bmuf_gtc", ranks_per_device, **settings)


def test_ranks_that_share_devices_are_those_of_as_many_devices(tmp_path: Path) -> None:
    """This covers samplers, seeds, random states, the groups of a host, and their description.

    A run that shared devices resumes exactly on as many devices.
    """
    expected = run_ranks(_fit_each, 4, 1, tmp_path, ranks_per_node=2)
    shared = run_ranks(_fit_each, 4, 2, tmp_path, **SHARED)
    for (seen, *runs), (of_plain_seen, *of_plain) in zip(shared, expected, strict=True):
        assert torch.equal(torch.stack(seen), torch.stack(of_plain_seen))
        for (run, described), (plain, of_devices) in zip(runs, of_plain, strict=True):
            assert run.notes == plain.notes
            assert run.steps == plain.steps == 6
            assert described == of_devices | {"ranks_per_device": 2}
            assert (described["ranks"], described["hosts"]) == (4, 2)
        (servers, _), (tiers, _) = runs
        (plain_servers, _), (plain_tiers, _) = of_plain
        # Gradients are added in the order in which they arrive.
        torch.testing.assert_close(servers.weights, plain_servers.weights, rtol=0, atol=1e-6)
        assert torch.equal(torch.stack(tiers.seen), torch.stack(plain_tiers.seen))
        assert torch.equal(tiers.weights, plain_tiers.weights)
    path = tmp_path / "middle.ckpt"
    resumed = run_ranks(_fit, 4, "bmuf_gtc", ranks_per_node=2, ckpt_path=path)
    for (run, _), (*_, (plain, _)) in zip(resumed, expected, strict=True):
        assert torch.equal(run.weights, plain.weights)


def _fit_divided(ranks_per_device: int, **settings: Any) -> list[Tensor]:
    strategy = lh.BMUFAdamFSDPStrategy(
        block_size=2, warmup_steps=0, local_beta1="keep", ranks_per_device=ranks_per_device
    )
    model = Divided("Adam")
    make_trainer(strategy, **settings).fit(model, _doubles())
    return model.seen


def _doubles() -> Any:
    data = torch.Generator().manual_seed(5)
    rows = torch.randn(32, 5, generator=data).double(), torch.randn(32, 2, generator=data).double()
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows), batch_size=2)


@pytest.mark.parametrize("number", [0, 1.5, True])
def test_number_of_ranks_is_whole_and_positive(number: Any) -> None:
    for preset in (lh.BMUFStrategy, lh.PSPStrategy, lh.DiLoCoFSDPStrategy):
        with pytest.raises(ValueError, match="ranks_per_device"):
            preset(ranks_per_device=number)


def test_ranks_of_a_device_communicate_by_gloo() -> None:
    assert lh.BMUFStrategy(ranks_per_device=2).process_group_backend == "gloo"
    assert lh.DiLoCoFSDPStrategy(ranks_per_device=2).process_group_backend == "gloo"
    assert lh.BMUFStrategy(process_group_backend="nccl").process_group_backend == "nccl"
    with pytest.raises(ValueError, match="NCCL needs a device for each rank. Leave it out"):
        lh.BMUFStrategy(ranks_per_device=2, process_group_backend="cpu:gloo,cuda:nccl")


def test_launcher_that_starts_a_rank_for_each_device_is_an_error() -> None:
    errors = errors_on_ranks(2, partial(lh.BMUFStrategy, ranks_per_device=2), Untrained)
    for error in errors:
        assert error == (
            "ValueError: ranks_per_device=2 makes 4 ranks on each of 1 hosts, 4 in all, but 2 "
            "processes were started: start 4 on each host (torchrun --nproc-per-node 4, srun "
            "--ntasks-per-node 4), or set ranks_per_device, devices and num_nodes of the Trainer "
            "accordingly"
        )


def _fit_on_a_gpu(preset: Any, model: Any, data: Any) -> Tensor:
    strategy = preset(ranks_per_device=2, warmup_steps=0, block_size=2)
    trainer = make_trainer(strategy, devices=1, accelerator="gpu")
    module = model()
    trainer.fit(module, data())
    assert (trainer.world_size, strategy.process_group_backend) == (2, "gloo")
    return gathered(module).cpu()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("preset", "model", "data"),
    [
        (lh.BMUFGTCStrategy, Net, partial(loader, 6)),
        (lh.DiLoCoFSDPStrategy, partial(Divided, "Adam"), _doubles),
    ],
)
def test_ranks_share_a_gpu(preset: Any, model: Any, data: Any) -> None:
    """In a group of both ranks, over gloo."""
    first, second = run_ranks(_fit_on_a_gpu, 2, preset, model, data)
    assert torch.equal(first, second)
