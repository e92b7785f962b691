"""A run that would show every bit of state that a resume forgets, and one that goes on from it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import BaseFinetuning, Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.ranks import run_ranks
from tests.trainer.fitting import Net, make_trainer

ROWS = 2
# A step in the middle of a block of 4, of an epoch of 5 and of a run of 3 epochs.
AMID_ALL = 7


class NoisyData(Dataset[tuple[Tensor, Tensor]]):
    """Rows with noise of the global generator, as augmentation would add it."""

    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(rows, 4, generator=generator)
        self.targets = torch.randn(rows, 2, generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index] + 0.1 * torch.randn(4), self.targets[index]


class DropoutNet(Net):
    """Dropout, BatchNorm, a scheduler; notes the weights of every step."""

    def __init__(
        self, optimizer: str = "SGD", *, seed: int = 11, width: int = 8, **settings: Any
    ) -> None:
        super().__init__(optimizer=optimizer, **settings)
        torch.manual_seed(seed)
        del self.layers
        self.net = nn.Sequential(
            nn.Linear(4, width),
            nn.BatchNorm1d(width),
            nn.Tanh(),
            nn.Dropout(0.3),
            nn.Linear(width, 2),
        )

    def forward(self, batch: Tensor) -> Tensor:
        return self.net(batch)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        torch.randn(3)  # must not matter
        super().validation_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def flat(state: Mapping[str, Tensor]) -> Tensor:
    """The parameters of a `DropoutNet` in the state of one, as `weights` has them."""
    return torch.cat([state[name].reshape(-1) for name, _ in DropoutNet().named_parameters()])


def validation(rows: int) -> DataLoader[Any]:
    """Batches of two of so many noisy rows."""
    return DataLoader(NoisyData(rows), batch_size=ROWS)


def shuffled(batches: int, **settings: Any) -> DataLoader[Any]:
    """So many noisy, shuffled batches for each rank."""
    data = NoisyData(batches * ROWS * int(os.environ["WORLD_SIZE"]))
    return DataLoader(data, batch_size=ROWS, shuffle=True, **settings)


class Unfreeze(BaseFinetuning):
    """The first layer trains from the second epoch on."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.net[0])

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net[0], optimizer, lr=0.01)


class SaveAt(Callback):
    """Saves once, in the hook of the given name, when it is called for the n-th time."""

    def __init__(self, hook: str, number: int, path: Path) -> None:
        self._left = number
        self._path = path

        def save(trainer: pl.Trainer, *rest: Any) -> None:
            if trainer.sanity_checking:
                return
            self._left -= 1
            if self._left == 0:
                trainer.save_checkpoint(self._path)

        setattr(self, hook, save)


def outcome(trainer: pl.Trainer, model: Any, start: int = 0) -> dict[str, Any]:
    """What must be equal to the last bit between two runs, from step ``start`` on."""
    return {
        "seen": model.seen[start:],
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "optimizers": [
            [value for own in state["state"].values() for value in own.values()]
            for state in (optimizer.state_dict() for optimizer in trainer.optimizers)
        ],
        "steps": trainer.global_step,
        "epoch": trainer.current_epoch,
        "lr": [group["lr"] for group in trainer.optimizers[0].param_groups],
    }


def differences(one: Any, other: Any, name: str = "") -> list[str]:
    """Where two outcomes differ in a bit."""
    if isinstance(one, dict):
        return [d for key in one for d in differences(one[key], other[key], f"{name}/{key}")]
    if isinstance(one, list):
        if len(one) != len(other):
            return [f"{name}: {len(one)} against {len(other)}"]
        pairs = enumerate(zip(one, other, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{name}/{i}")]
    if isinstance(one, Tensor):
        if torch.equal(one, other):
            return []
        return [f"{name}: {float((one.double() - other.double()).abs().max()):.3g} apart"]
    return [] if one == other else [f"{name}: {one} against {other}"]


def stop_and_go_on(
    make_strategy: Callable[[], Any],
    hook: str,
    number: int,
    folder: Path,
    *,
    optimizer: str = "SGD",
    loader: dict[str, Any] | None = None,
    make_model: Callable[..., Any] = DropoutNet,
    make_callbacks: Callable[[], list[Callback]] = list,
    workers: int = 1,
    **settings: Any,
) -> list[str]:
    """Train once through, saving on the way; then go on from there elsewhere in random numbers.

    Returns where the two runs end differently.
    """
    rank = int(os.environ["RANK"])
    settings = {"max_epochs": 3, **settings}
    batches = 5 * workers  # of each rank
    looks = DataLoader(NoisyData(8), batch_size=4)

    def train(model: Any, seed: int, path: Path | None, *callbacks: Callback) -> dict[str, Any]:
        trainer = make_trainer(
            make_strategy(), callbacks=[*make_callbacks(), *callbacks], **settings
        )
        random.seed(seed + rank)
        np.random.seed(seed + rank)
        torch.manual_seed(seed + rank)
        data = shuffled(batches, **(loader or {}))
        trainer.fit(model, data, looks, ckpt_path=path)
        return outcome(trainer, model)

    path = folder / "stopped.ckpt"
    through = train(make_model(optimizer), 1, None, SaveAt(hook, number, path))
    resumed = train(make_model(optimizer, seed=99), 50, path)
    assert 0 < len(resumed["seen"]) < len(through["seen"])
    through["seen"] = through["seen"][-len(resumed["seen"]) :]
    return differences(through, resumed)


def stop_each_in_the_middle(runs: Mapping[str, Sequence[Any]], folder: Path) -> dict[str, Any]:
    """Where runs that are stopped amid all end differently, one after the other on these ranks.

    Args:
        runs: what makes the strategy, and the name of the optimizer, by name.
        folder: of the checkpoints.

    """
    found = {}
    for number, (name, (strategy, optimizer)) in enumerate(runs.items()):
        workers = strategy.keywords.get("virtual_workers", 1)
        (own := folder / str(number)).mkdir(exist_ok=True)
        stop = (strategy, "on_train_batch_end", AMID_ALL, own)
        found[name] = stop_and_go_on(*stop, optimizer=optimizer, workers=workers)
    return found


def check_exact(
    ranks: int,
    make_strategy: Callable[[], Any],
    folder: Path,
    *,
    hook: str = "on_train_batch_end",
    number: int = AMID_ALL,
    **settings: Any,
) -> None:
    """What goes on ends on all ranks as what was not stopped."""
    found = run_ranks(stop_and_go_on, ranks, make_strategy, hook, number, folder, **settings)
    assert found == [[]] * ranks
