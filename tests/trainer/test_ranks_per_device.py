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
    return fitted(lambda: strategy, _Dropout, **{"max_epochs": 2, **settings}), strategy.describe()


@pytest.mark.parametrize("name", ["bmuf_gtc", "psp"])
def test_ranks_that_share_devices_are_those_of_as_many_devices(name: str) -> None:
    """This covers samplers, seeds, random states, the groups of a host, and their description."""
    expected = run_ranks(_fit, 4, name, ranks_per_node=2)
    shared = run_ranks(_fit, 4, name, 2, **SHARED)
    for (run, described), (plain, of_plain) in zip(shared, expected, strict=True):
        assert run.notes == plain.notes
        assert run.steps == plain.steps == 12
        assert described == of_plain | {"ranks_per_device": 2}
        assert (described["ranks"], described["hosts"]) == (4, 2)
        if name == "psp":  # gradients are added in the order in which they arrive
            torch.testing.assert_close(run.weights, plain.weights, rtol=0, atol=1e-6)
        else:
            assert torch.equal(torch.stack(run.seen), torch.stack(plain.seen))
            assert torch.equal(run.weights, plain.weights)


def test_run_resumes_exactly_on_as_many_devices(tmp_path: Path) -> None:
    saves = ModelCheckpoint(tmp_path, every_n_train_steps=8, save_top_k=-1)
    settings = {"enable_checkpointing": True, "callbacks": [saves]}
    whole = run_ranks(_fit, 4, "bmuf_gtc", 2, **SHARED, **settings)
    path = tmp_path / "epoch=1-step=8.ckpt"
    resumed = run_ranks(_fit, 4, "bmuf_gtc", ranks_per_node=2, ckpt_path=path)
    for (run, _), (expected, _) in zip(resumed, whole, strict=True):
        assert torch.equal(run.weights, expected.weights)


def _fit_divided(**settings: Any) -> list[Tensor]:
    used = {name: settings.pop(name) for name in ("ranks_per_device",) if name in settings}
    strategy = lh.BMUFAdamFSDPStrategy(block_size=2, warmup_steps=0, local_beta1="keep", **used)
    model = Divided("Adam")
    make_trainer(strategy, **settings).fit(model, _doubles())
    return model.seen


def _doubles() -> Any:
    data = torch.Generator().manual_seed(5)
    rows = torch.randn(32, 5, generator=data).double(), torch.randn(32, 2, generator=data).double()
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows), batch_size=2)


def test_divided_modules_on_shared_devices() -> None:
    expected = run_ranks(_fit_divided, 4, ranks_per_node=2)
    for run, plain in zip(
        run_ranks(_fit_divided, 4, ranks_per_device=2, **SHARED), expected, strict=True
    ):
        assert torch.equal(torch.stack(run), torch.stack(plain))


@pytest.mark.parametrize("preset", [lh.BMUFStrategy, lh.PSPStrategy, lh.DiLoCoFSDPStrategy])
@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_number_of_ranks_is_whole_and_positive(preset: Any, number: Any) -> None:
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
