"""Several workers on a rank as a user meets them: what is logged, saved and counted."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer, weights

WORKERS = 4


def _per_rank() -> int:
    return WORKERS // int(os.environ["WORLD_SIZE"])


def _bmuf(**settings: Any) -> lh.BMUFStrategy:
    settings = {"warmup_steps": 0, "virtual_workers": _per_rank(), **settings}
    return lh.BMUFStrategy(block_size=3, **settings)


def _bmuf_gtc(group_size: Any = 2, warmup_steps: int = 0) -> lh.BMUFGTCStrategy:
    return lh.BMUFGTCStrategy(
        group_size=group_size,
        density=0.1,
        dense_below=0,
        block_size=3,
        warmup_steps=warmup_steps,
        virtual_workers=_per_rank(),
    )


def _gtc() -> lh.GTCStrategy:
    return lh.GTCStrategy(density=0.1, dense_below=0, virtual_workers=_per_rank(), warmup_steps=0)


STRATEGIES: dict[str, Any] = {
    "bmuf": _bmuf,
    "bmuf_warm": partial(_bmuf, warmup_steps=3),
    "bmuf_gtc": _bmuf_gtc,
    "bmuf_gtc_warm": partial(_bmuf_gtc, warmup_steps=3),
    "gtc": _gtc,
    "gtc_averaged": _gtc,
}


CLIPPED = {"precision": "64-true", "gradient_clip_val": 0.1}


class _Dropout(Net):
    """Draws random numbers in every step, asks how many there will be, validates, and logs."""

    def __init__(self, *, by_hand: bool = False) -> None:
        super().__init__()
        self.double()
        self.dropout = nn.Dropout(0.5)
        self.automatic_optimization = not by_hand
        self.losses: list[float] = []

    def forward(self, batch: Tensor) -> Tensor:
        result: Tensor = self.dropout(self.layers(batch))
        return result

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss.detach(), on_step=False, on_epoch=True, sync_dist=True)
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            schedule: Any = self.lr_schedulers()
            schedule.step()
        return loss

    def configure_optimizers(self) -> Any:
        steps = int(self.trainer.estimated_stepping_batches)  # begins the data
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def on_train_epoch_end(self) -> None:
        self.losses.append(float(self.trainer.callback_metrics["loss"]))


def _doubles(batches: int) -> DataLoader[Any]:
    data = loader(batches, ranks=WORKERS)
    data.dataset.tensors = tuple(tensor.double() for tensor in data.dataset.tensors)
    return data


def _fit(name: str, settings: dict[str, Any], by_hand: bool) -> dict[str, Any]:
    pl.seed_everything(7, verbose=False)
    model = _Dropout(by_hand=by_hand)
    averages = [EMAWeightAveraging(decay=0.8)] if name == "gtc_averaged" else []
    trainer = make_trainer(STRATEGIES[name](), max_epochs=2, callbacks=averages, **settings)
    trainer.fit(model, _doubles(8), _doubles(2))
    return {
        "weights": weights(model),
        "losses": model.losses,
        "validated": float(trainer.callback_metrics["val_loss"]),
        "steps": trainer.global_step,
        "batches": trainer.num_training_batches,
    }


@pytest.mark.parametrize(
    ("name", "settings", "by_hand"),
    [
        ("bmuf", {"val_check_interval": 2}, False),
        pytest.param("bmuf", {"accumulate_grad_batches": 2}, False, marks=pytest.mark.slow),
        ("bmuf", {}, True),
        pytest.param("bmuf", CLIPPED, False, marks=pytest.mark.slow),
        pytest.param("bmuf_warm", {}, False, marks=pytest.mark.slow),
        ("bmuf_gtc_warm", {"accumulate_grad_batches": 2, "val_check_interval": 2}, False),
        pytest.param("bmuf_gtc", CLIPPED, False, marks=pytest.mark.slow),
        pytest.param("gtc", {"accumulate_grad_batches": 2}, False, marks=pytest.mark.slow),
        pytest.param("gtc_averaged", {"val_check_interval": 2}, False, marks=pytest.mark.slow),
    ],
)
def test_a_run_is_that_of_a_rank_for_each_worker(
    name: str, settings: dict[str, Any], by_hand: bool
) -> None:
    """With dropout: every worker draws what its rank would have drawn."""
    expected = run_ranks(_fit, WORKERS, name, settings, by_hand)[0]
    for ranks in (1, 2):
        for found in run_ranks(_fit, ranks, name, settings, by_hand):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def _describe() -> tuple[dict[str, Any], int]:
    strategy = _bmuf()
    trainer = make_trainer(strategy)
    trainer.fit(_Dropout(), _doubles(3))
    return strategy.describe(), strategy.world_size


def test_eta_follows_the_workers_and_not_the_ranks() -> None:
    ((described, ranks),) = run_ranks(_describe, 1)
    assert (described["virtual_workers"], ranks) == (WORKERS, 1)


class _DividesWhenMade(DistributedSampler[Any]):
    """Long items first, dealt out to the ranks when it is made, as samplers by length do."""

    def __init__(self, dataset: Any, rank: int, ranks: int) -> None:
        super().__init__(dataset, num_replicas=ranks, rank=rank)
        order = sorted(range(len(dataset)), key=lambda item: float(dataset[item][0].sum()))
        self.own = order[rank::ranks]

    def __iter__(self) -> Any:
        return iter(self.own[self.epoch :] + self.own[: self.epoch])

    def __len__(self) -> int:
        return len(self.own)


class _Data(pl.LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        trainer: Any = self.trainer
        dataset = _doubles(5).dataset
        sampler = _DividesWhenMade(dataset, trainer.global_rank, trainer.world_size)
        return DataLoader(dataset, batch_size=4, sampler=sampler)


def _with_own_sampler() -> Tensor:
    pl.seed_everything(7, verbose=False)
    model = _Dropout()
    trainer = make_trainer(_bmuf_gtc(), max_epochs=2, use_distributed_sampler=False)
    trainer.fit(model, _Data())
    return weights(model)


def test_a_sampler_that_divides_when_it_is_made_is_made_for_each_worker() -> None:
    expected = run_ranks(_with_own_sampler, WORKERS)[0]
    for ranks in (1, 2):
        for found in run_ranks(_with_own_sampler, ranks):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def _averaging_momentum() -> lh.BMUFGTCStrategy:
    return lh.BMUFGTCStrategy(
        group_size=2,
        density=0.1,
        dense_below=0,
        block_size=3,
        local_momentum="average",
        across="leader" if _per_rank() == 1 else "sharded",
        virtual_workers=_per_rank(),
        warmup_steps=0,
    )


GO_ON = {
    **STRATEGIES,
    "averaging_momentum": _averaging_momentum,
    "overlap": partial(_bmuf, overlap=True),
}


def _through(name: str, folder: Path) -> Tensor:
    saves = ModelCheckpoint(folder, every_n_train_steps=8, save_top_k=-1)
    settings: dict[str, Any] = {"enable_checkpointing": True, "callbacks": [saves]}
    pl.seed_everything(7, verbose=False)
    model = _Dropout()
    make_trainer(GO_ON[name](), max_epochs=2, **settings).fit(model, _doubles(6))
    return weights(model)


def _resumed(name: str, folder: Path) -> Tensor:
    pl.seed_everything(7, verbose=False)  # the sampler's
    torch.manual_seed(50)  # what a resume must not depend on
    model = _Dropout()
    path = folder / "epoch=1-step=8.ckpt"
    trainer = make_trainer(GO_ON[name](), max_epochs=2)
    trainer.fit(model, _doubles(6), ckpt_path=path, weights_only=True)
    return weights(model)


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(own, marks=pytest.mark.slow) for own in ("bmuf", "overlap", "bmuf_gtc")),
        "averaging_momentum",
    ],
)
@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
def test_a_run_goes_on_on_other_numbers_of_ranks(name: str, ranks: int, tmp_path: Path) -> None:
    """Exactly: a job goes on when half of the cluster is gone, or has come back."""
    through = run_ranks(_through, ranks, name, tmp_path)[0]
    for fewer_or_more in (1, 2, 4):
        for found in run_ranks(_resumed, fewer_or_more, name, tmp_path):
            torch.testing.assert_close(found, through, rtol=0, atol=1e-9)


class _Counting(Net):
    """An integer buffer, which synchronisations keep equal, that grows by what a worker sees."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.found: list[int] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.found.append(int(self.count))
        self.count += 1 + int(batch[0].abs().sum() * 1000)
        return super().training_step(batch, batch_idx)


def _count() -> tuple[list[int], int]:
    model = _Counting()
    strategy = lh.ModelAveragingStrategy(block_size=2, virtual_workers=_per_rank(), warmup_steps=0)
    make_trainer(strategy).fit(model, loader(5, ranks=WORKERS))
    return model.found, int(model.count)


def test_buffers_that_are_kept_equal_are_the_first_worker_s() -> None:
    """As among real ranks, those of the first worker of all."""
    (played,), real = run_ranks(_count, 1), run_ranks(_count, WORKERS)
    for worker, (found, last) in enumerate(real):
        assert played == (played[0], last)
        assert played[0][worker::WORKERS] == found
