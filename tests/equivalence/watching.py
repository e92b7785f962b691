"""Records of a run: models and moments of its ranks and of the workers of the reference."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from tests.equivalence.cases import (
    Case,
    Values,
    difference,
    make_module,
    make_reference,
    make_trainer,
    parameters_of,
    state_of,
    train_batch,
)
from tests.equivalence.tasks import loader, rank_number

KINDS = ("exp_avg", "exp_avg_sq", "counts")


@dataclass
class Seen:
    """Copies of one rank's network, keyed by the number of batches trained before.

    Attributes:
        local: network at the end of every batch, from which training continues.
        moments: m, v and k (with NAdam's product of mu) by name at the end of every batch, if the
            optimizer is of the Adam family.
        scheduled: network at every step of the learning-rate scheduler.
        validated: network in validation.
        epoch_ends: network in a callback's ``on_train_epoch_end``.
        module_epoch_ends: network in the module's ``on_train_epoch_end``.
        saved: network in the state that the strategy returns for a checkpoint.
        final: network after ``fit``.

    """

    local: dict[int, Values] = field(default_factory=dict)
    moments: dict[int, dict[str, Values]] = field(default_factory=dict)
    scheduled: list[Values] = field(default_factory=list)
    validated: dict[int, Values] = field(default_factory=dict)
    epoch_ends: dict[int, Values] = field(default_factory=dict)
    module_epoch_ends: dict[int, Values] = field(default_factory=dict)
    saved: dict[int, Values] = field(default_factory=dict)
    final: Values = field(default_factory=dict)


class Watcher(Callback):
    """Fills a :class:`Seen`, and saves a checkpoint after the given batches."""

    def __init__(self, seen: Seen, save_after: Sequence[int], folder: Path | None) -> None:
        self._seen, self._save_after, self._folder = seen, save_after, folder
        self._batches = 0

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any
    ) -> None:
        self._batches += 1
        if self._batches in self._save_after:
            self._save(trainer)
        self._seen.local[self._batches] = state_of(pl_module.net)
        self._seen.moments[self._batches] = _moments(trainer.optimizers, pl_module.net)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seen.validated[self._batches] = state_of(pl_module.net)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seen.epoch_ends[self._batches] = state_of(pl_module.net)

    def _save(self, trainer: pl.Trainer) -> None:
        state = trainer.strategy.lightning_module_state_dict()
        self._seen.saved[self._batches] = {
            name.removeprefix("net."): value.clone() for name, value in state.items()
        }
        if self._folder is not None:
            trainer.save_checkpoint(self._folder / f"{self._batches}.ckpt")


def _moments(
    optimizers: Sequence[torch.optim.Optimizer], net: torch.nn.Module
) -> dict[str, Values]:
    """Moments and counts by kind and name, zeros if there is no state yet.

    A frozen parameter must have no state.
    """
    names = {p: name for name, p in net.named_parameters()}
    moments: dict[str, Values] = {kind: {} for kind in KINDS}
    for optimizer in optimizers:
        if "betas" not in optimizer.defaults:
            return {}
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            state, name = optimizer.state.get(parameter, {}), names[parameter]
            if not parameter.requires_grad:
                assert not state, f"{name} is frozen and has state"
                continue
            for kind in ("exp_avg", "exp_avg_sq"):
                moments[kind][name] = state.get(kind, torch.zeros_like(parameter)).clone()
            product = (
                state.get("mu_product", 1.0) if "momentum_decay" in optimizer.defaults else 1.0
            )
            counts = [float(state.get("step", 0.0)), float(product)]
            moments["counts"][name] = torch.tensor(counts, dtype=torch.float64)
    return moments


def watch(
    case: Case,
    *,
    looking: bool = False,
    scheduled: bool = False,
    save_after: Sequence[int] = (),
    folder: Path | None = None,
) -> Seen:
    """Train on this rank, and return its records.

    Args:
        case: the run.
        looking: whether to validate, at the interval of the case's ``trainer``, and to save.
        scheduled: whether a learning-rate scheduler records the network.
        save_after: numbers of batches after which to save.
        folder: folder for checkpoints.

    """
    seen = Seen()
    pl.seed_everything(rank_number(), verbose=False)
    module = make_module(case, seed=rank_number())
    if scheduled:
        _add_scheduler(module, seen)
    module.on_train_epoch_end = lambda: seen.module_epoch_ends.update(  # type: ignore[method-assign]
        {max(seen.local): state_of(module.net)}
    )
    callbacks = [Watcher(seen, save_after if looking else (), folder)]
    never = {} if looking else {"limit_val_batches": 0}
    trainer = make_trainer(case, callbacks=callbacks, **never)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, loader(rank_number(), case.batches), loader(0, 2))
    seen.final = state_of(module.net)
    return seen


def _add_scheduler(module: pl.LightningModule, seen: Seen) -> None:
    """Add a scheduler to the module that records the network at every step and changes nothing."""
    if not module.automatic_optimization:
        return
    configure = module.configure_optimizers

    def note(step: int) -> float:
        seen.scheduled.append(state_of(module.net))
        return 1.0

    def with_scheduler() -> dict[str, Any]:
        optimizer = configure()
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, note)
        seen.scheduled.clear()  # a scheduler steps once in its constructor
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    module.configure_optimizers = with_scheduler  # type: ignore[assignment, method-assign]


def watch_both(cases: Sequence[Case], folder: Path | None = None) -> dict[str, tuple[Seen, Seen]]:
    """Train every case twice: with validation and saves, and without."""
    records = {}
    for case in cases:
        case_folder = None if folder is None else folder / case.name
        if case_folder is not None:
            case_folder.mkdir(parents=True, exist_ok=True)
        saves = () if case_folder is None else (1, 2, 4, 6)
        looking = watch(case, looking=True, save_after=saves, folder=case_folder)
        records[case.name] = looking, watch(case)
    return records


def watch_all(cases: Sequence[Case], **settings: bool) -> dict[str, Seen]:
    """Train every case, with settings of :func:`watch`."""
    return {case.name: watch(case, **settings) for case in cases}


def reference_seen(case: Case, *, looking: bool = False) -> list[Seen]:
    """Train the reference, and return the records of its workers, which have one global model."""
    training = make_reference(case)
    records = [Seen() for _ in training.workers]
    for number in range(case.epochs * case.batches):
        train_batch(case, training, number)
        global_model = training.global_model() if looking else {}
        for seen, worker in zip(records, training.workers, strict=True):
            seen.local[number + 1] = parameters_of(worker)
            seen.moments[number + 1] = _moments(worker.optimizers, worker.model)
            seen.validated[number + 1] = global_model
    for seen in records:
        seen.final = training.global_model()
    return records


def assert_like_reference(
    own: Seen, reference: Seen, *, tolerance: float, rank: int, noise: Sequence[str] = ()
) -> None:
    """Compare weights and moments after every batch, and the final weights.

    Args:
        own: records of a rank.
        reference: records of the worker of the reference.
        tolerance: largest difference.
        rank: number of the rank, for the message.
        noise: parameters whose moments are only rounding.

    """
    assert own.local.keys() == reference.local.keys()
    for batch, expected in reference.local.items():
        actual = {name: own.local[batch][name] for name in expected}
        assert difference(actual, expected) < tolerance, f"rank {rank}, batch {batch}"
        for kind, its in reference.moments[batch].items():
            names = [name for name in its if kind == "counts" or name not in noise]
            pair = [{name: one[name] for name in names} for one in (own.moments[batch][kind], its)]
            assert difference(*pair) < tolerance, f"{kind}, rank {rank}, {batch}"
    assert difference(own.final, reference.final) < tolerance
