"""Helpers that compare a resumed run with an uninterrupted one, to the last bit.

The module uses random numbers, BatchNorm and a scheduler, so that every forgotten state shows.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import BaseFinetuning, Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.ranks import run_ranks
from tests.trainer.fitting import Net, make_trainer, weights

ROWS = 2
# A step in the middle of a block of 4 steps, of an epoch of 5 and of a run of 3 epochs.
AMID_ALL = 7


class NoisyData(Dataset[tuple[Tensor, Tensor]]):
    """Adds noise of the global random generator to its rows, as augmentation does."""

    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(rows, 4, generator=generator)
        self.targets = torch.randn(rows, 2, generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index] + 0.1 * torch.randn(4), self.targets[index]


class DropoutNet(Net):
    """Has dropout, BatchNorm and a scheduler. `seen` holds the weights after every step."""

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

    # A checkpoint within an epoch is saved before this hook, so a resume would not be exact.
    on_train_batch_end = pl.LightningModule.on_train_batch_end

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.seen.append(weights(self))

    def forward(self, batch: Tensor) -> Tensor:
        return self.net(batch)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        torch.randn(3)  # must not change training
        super().validation_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def flat(state: Mapping[str, Tensor]) -> Tensor:
    """Flat parameters of a `DropoutNet` from its state dict, in the order of `weights`."""
    return torch.cat([state[name].reshape(-1) for name, _ in DropoutNet().named_parameters()])


def validation(rows: int) -> DataLoader[Any]:
    """Batches of two rows, from ``rows`` noisy rows."""
    return DataLoader(NoisyData(rows), batch_size=ROWS)


def shuffled(batches: int, **settings: Any) -> DataLoader[Any]:
    """``batches`` noisy, shuffled batches for each rank."""
    data = NoisyData(batches * ROWS * int(os.environ["WORLD_SIZE"]))
    return DataLoader(data, batch_size=ROWS, shuffle=True, **settings)


_EPOCH = partial(shuffled, 5)


class Unfreeze(BaseFinetuning):
    """Freezes the first layer until the second epoch."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.net[0])

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net[0], optimizer, lr=0.01)


class SaveAt(Callback):
    """Saves once, in the call with the given number of one hook."""

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
    """State that must be equal to the last bit in two runs, from step ``start`` on."""
    return {
        "seen": model.seen[start:],
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "optimizers": [
            [value for of_tensor in state["state"].values() for value in of_tensor.values()]
            for state in (optimizer.state_dict() for optimizer in trainer.optimizers)
        ],
        "steps": trainer.global_step,
        "epoch": trainer.current_epoch,
        "lr": [group["lr"] for group in trainer.optimizers[0].param_groups],
    }


def differences(one: Any, other: Any, name: str = "") -> list[str]:
    """Names of the values that are not equal to the last bit in two outcomes."""
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
    make_data: Callable[[], Any] = _EPOCH,
    make_model: Callable[..., Any] = DropoutNet,
    make_callbacks: Callable[[], list[Callback]] = list,
    first: dict[str, Any] | None = None,
    **settings: Any,
) -> list[str]:
    """Train and save on the way, then resume from the checkpoint with other random seeds.

    With settings of a ``first`` Trainer, its run is saved after ``fit``, and resumed instead.
    Returns the differences between the ends of the two runs.
    """
    rank = int(os.environ["RANK"])
    settings = {"max_epochs": 3, **settings}

    def train(
        model: Any, seed: int, path: Path | None, *callbacks: Callback, **more: Any
    ) -> tuple[pl.Trainer, dict[str, Any]]:
        callbacks = (*make_callbacks(), *callbacks)
        trainer = make_trainer(make_strategy(), callbacks=[*callbacks], **{**settings, **more})
        random.seed(seed + rank)
        np.random.seed(seed + rank)
        torch.manual_seed(seed + rank)
        data = make_data()
        module = isinstance(data, pl.LightningDataModule)
        trainer.fit(model, data, None if module else validation(8), ckpt_path=path)
        return trainer, outcome(trainer, model)

    path = folder / "stopped.ckpt"
    _, whole = train(make_model(optimizer), 1, None, SaveAt(hook, number, path))
    if first is not None:
        train(make_model(optimizer), 1, None, **first)[0].save_checkpoint(path)
    _, resumed = train(make_model(optimizer, seed=99), 50, path)
    assert 0 < len(resumed["seen"]) < len(whole["seen"])
    whole["seen"] = whole["seen"][-len(resumed["seen"]) :]
    return differences(whole, resumed)


def stop_each_in_the_middle(runs: Mapping[str, Sequence[Any]], folder: Path) -> dict[str, Any]:
    """Call :func:`stop_and_go_on` for several runs in turn, each stopped at step `AMID_ALL`.

    Args:
        runs: by name, a function that makes the strategy and the name of the optimizer.
        folder: folder of the checkpoints.

    Returns:
        The differences, by name.

    """
    by_name = {}
    for number, (name, (strategy, optimizer)) in enumerate(runs.items()):
        (subfolder := folder / str(number)).mkdir(exist_ok=True)
        stop = (strategy, "on_train_batch_end", AMID_ALL, subfolder)
        by_name[name] = stop_and_go_on(*stop, optimizer=optimizer, max_epochs=2)
    return by_name


def check_exact(
    ranks: int,
    make_strategy: Callable[[], Any],
    folder: Path,
    *,
    hook: str = "on_train_batch_end",
    number: int = AMID_ALL,
    **settings: Any,
) -> None:
    """Check that a resumed run ends on all ranks as the uninterrupted one, to the last bit."""
    by_rank = run_ranks(stop_and_go_on, ranks, make_strategy, hook, number, folder, **settings)
    assert by_rank == [[]] * ranks
