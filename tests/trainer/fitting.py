"""Helpers that train a small module on the ranks of `tests.ranks` and return the outcome."""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_hier as lh
from tests.ranks import run_ranks

# Strategies without warm-up, whose settings do not depend on the length of the run.
AVERAGING = partial(lh.ModelAveragingStrategy, block_size=4, warmup_steps=0)
# With momentum, because automatic values make such short runs model averaging.
BMUF = partial(lh.BMUFStrategy, block_size=4, block_momentum=0.75, warmup_steps=0)
BMUF_ADAM = partial(lh.BMUFAdamStrategy, block_size=4, warmup_steps=0, local_beta1="keep")
GTC = partial(lh.GTCStrategy, density=0.2, dense_below=10, warmup_steps=0)
BMUF_GTC = partial(
    lh.BMUFGTCStrategy,
    group_size=2,
    block_size=4,
    block_momentum=0.5,
    density=0.2,
    dense_below=10,
    warmup_steps=0,
)
HIERARCHICAL = partial(lh.HierarchicalStrategy, warmup_steps=0)


class Net(pl.LightningModule):
    """Two layers. `seen` holds the weights after every batch, and subclasses append to `notes`.

    `metrics` are those of the strategy at the end of training. `options` go to the optimizer.
    """

    def __init__(
        self,
        *,
        batchnorm: bool = False,
        lr: float = 0.05,
        optimizer: str = "SGD",
        by_hand: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.lr, self.optimizer, self.options = lr, optimizer, options
        self.automatic_optimization = not by_hand
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8) if batchnorm else nn.Tanh(), nn.Linear(8, 2)
        )
        self.seen: list[Tensor] = []
        self.notes: list[Any] = []
        self.metrics: dict[str, float] = {}

    def forward(self, batch: Tensor) -> Tensor:
        result: Tensor = self.layers(batch)
        return result

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        if self.automatic_optimization:
            return self.loss(batch)
        for optimizer in self.due(batch_idx):
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()
        return None

    def due(self, batch_idx: int) -> list[Any]:
        """Optimizers that step at a batch, in manual optimization."""
        optimizers: Any = self.optimizers()
        return optimizers if isinstance(optimizers, list) else [optimizers]

    def loss(self, batch: list[Tensor]) -> Tensor:
        return (self(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    test_step = validation_step

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(weights(self))

    def on_train_end(self) -> None:
        self.metrics = getattr(self.trainer.strategy, "metrics", dict)()

    def configure_optimizers(self) -> Any:
        options = self.options or ({"momentum": 0.9} if self.optimizer == "SGD" else {})
        return getattr(torch.optim, self.optimizer)(self.parameters(), lr=self.lr, **options)


class TwoOptimizers(Net):
    """Manual optimization with one SGD per layer. The second one steps every `every` batches."""

    def __init__(self, *, every: int = 1, lr: float = 0.05, **settings: Any) -> None:
        super().__init__(by_hand=True, lr=lr, **settings)
        self.every = every

    def due(self, batch_idx: int) -> list[Any]:
        return super().due(batch_idx)[: 1 + (batch_idx % self.every == self.every - 1)]

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(layer.parameters(), lr=self.lr) for layer in self.layers[::2]]


class Watched(Net):
    """Has BatchNorm, and notes all parameters and buffers in validation."""

    def __init__(self, **options: Any) -> None:
        super().__init__(batchnorm=True, **options)

    def on_validation_epoch_end(self) -> None:
        buffers = [b.double().reshape(-1) for b in self.buffers()]
        self.notes.append(torch.cat([weights(self).double(), *buffers]))


class Untrained(Net):
    """Fails at its first batch, because every mistake must be an error before training."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        raise AssertionError("training has begun")


def this_rank() -> int:
    """The number of this rank."""
    return int(os.environ["RANK"])


def weights(module: nn.Module) -> Tensor:
    """A flat copy of all parameters."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).clone()


def all_equal(tensors: Iterable[Tensor]) -> bool:
    """Whether all tensors are equal to the last bit."""
    first, *others = tensors
    return all(torch.equal(first, other) for other in others)


def steps_with_equal_models(seen_by_rank: Iterable[list[Tensor]]) -> list[int]:
    """Numbers, from 1, of the steps after which all ranks hold the same weights."""
    models = zip(*seen_by_rank, strict=True)
    return [step + 1 for step, of_ranks in enumerate(models) if all_equal(of_ranks)]


def loader(
    batches_per_rank: int,
    *,
    rows: int = 2,
    ranks: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> DataLoader[Any]:
    """A loader of `batches_per_rank` batches for each rank, if Lightning's sampler divides them."""
    generator = torch.Generator().manual_seed(5)
    count = batches_per_rank * rows * (ranks or int(os.environ["WORLD_SIZE"]))
    inputs, targets = (torch.randn(count, w, generator=generator).to(dtype) for w in (4, 2))
    return DataLoader(TensorDataset(inputs, targets), batch_size=rows)


def make_trainer(strategy: Any, **settings: Any) -> pl.Trainer:
    """A silent Trainer on the CPU, with the hosts and ranks that environment variables give."""
    return pl.Trainer(
        **{
            "accelerator": "cpu",
            "devices": int(os.environ["LOCAL_WORLD_SIZE"]),
            "num_nodes": int(os.environ["GROUP_WORLD_SIZE"]),
            "strategy": strategy,
            "max_epochs": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **settings,
        }
    )


def fit(strategy: Any, batches: int = 6, model: Any = None, **settings: Any) -> pl.Trainer:
    """Train a `Net`, or `model`, for an epoch of `batches` batches."""
    trainer = make_trainer(strategy, **settings)
    trainer.fit(model or Net(), loader(batches))
    return trainer


@dataclass
class Fitted:
    """Outcome of a fit on one rank.

    Attributes:
        weights: all parameters, flat.
        state: state dict of the module.
        seen: weights after every batch.
        notes: notes of the module.
        steps: steps that the Trainer has counted.
        metrics: metrics of the strategy, at the end of training and after it.
        logged: last values that the module has logged.
        warned: texts of all warnings.
        loss_scale: scale of the loss, with `scaled` precision.

    """

    weights: Tensor
    state: dict[str, Tensor]
    seen: list[Tensor]
    notes: Any
    steps: int
    metrics: dict[str, float]
    logged: dict[str, float]
    warned: list[str]
    loss_scale: float | None


def fitted(
    strategy: str | Callable[[], Any],
    model: Callable[[], Any] = Net,
    batches: int = 6,
    *,
    validate: int | DataLoader[Any] = 0,
    data: Any = None,
    ckpt_path: Any = None,
    weights_only: bool | None = None,
    save: Any = None,
    **settings: Any,
) -> Fitted:
    """Make a strategy and a module on this rank, train, and return the outcome.

    Args:
        strategy: name of the strategy, or function that makes it.
        model: function that makes the module.
        batches: number of batches for each rank.
        validate: number of validation batches for each rank, or their loader.
        data: training data instead of `batches`, or a function that makes it.
        ckpt_path: checkpoint to resume from.
        weights_only: argument of `fit` for reading the checkpoint.
        save: path of a checkpoint to save after training.
        settings: arguments of the Trainer.

    """
    trainer = make_trainer(strategy if isinstance(strategy, str) else strategy(), **settings)
    module = model()
    batches_of_all = loader(batches) if data is None else data() if callable(data) else data
    validation: Any = validate
    if isinstance(validate, int):
        validation = loader(validate) if validate else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(
            module, batches_of_all, validation, ckpt_path=ckpt_path, weights_only=weights_only
        )
        if save is not None:
            trainer.save_checkpoint(save)
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return Fitted(
        weights=weights(module),
        state={name: value.clone() for name, value in module.state_dict().items()},
        seen=module.seen,
        notes=module.notes,
        steps=trainer.global_step,
        metrics=module.metrics | getattr(trainer.strategy, "metrics", dict)(),
        logged={name: float(value) for name, value in trainer.callback_metrics.items()},
        warned=[str(warning.message) for warning in caught],
        loss_scale=scaler and scaler.get_scale(),
    )


def fit_on_ranks(
    ranks: int,
    strategy: str | Callable[[], Any],
    model: Callable[[], Any] = Net,
    batches: int = 6,
    **settings: Any,
) -> list[Fitted]:
    """Outcome of `fitted` on each rank. `settings` may include arguments of `run_ranks`."""
    return run_ranks(fitted, ranks, strategy, model, batches, **settings)


def fits_on_ranks(ranks: int, *fits: Callable[[], Any]) -> list[list[Any]]:
    """Outcomes of several fits in turn, each on every rank. The ranks start only once."""
    outcomes = run_ranks(_call_each, ranks, fits)
    return [list(of_ranks) for of_ranks in zip(*outcomes, strict=True)]


def _call_each(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    return [call() for call in calls]


def errors_on_ranks(
    ranks: int,
    strategy: str | Callable[[], Any],
    model: Callable[[], Any] = Net,
    batches: int = 6,
    **settings: Any,
) -> list[str]:
    """Errors of `fitted`. Every rank must raise one."""
    return run_ranks(fitted, ranks, strategy, model, batches, expect_failure=True, **settings)


def logging_to(folder: Path, every: int = 2) -> dict[str, Any]:
    """Settings of a Trainer that logs to a CSV file in the folder."""
    return {"logger": CSVLogger(folder, name="run", version=0), "log_every_n_steps": every}


def logged_rows(folder: Path, column: str) -> list[dict[str, str]]:
    """Rows of that CSV file in which ``column`` has a value."""
    with (folder / "run" / "version_0" / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row.get(column)]


def scaled(growth_interval: int = 1000) -> dict[str, Any]:
    """Settings of a Trainer in half precision, with a loss scale of 1024 at the start."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=growth_interval)
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler=scaler)]}
