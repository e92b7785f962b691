"""A run under observation: what its ranks, and the workers of its twin, get to see."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from tests.equivalence.adam_twins import AdamWorker
from tests.equivalence.cases import (
    Case,
    difference,
    make_module,
    make_trainer,
    make_twin,
    state_of,
    train_batch,
)
from tests.equivalence.tasks import loader, rank_number
from tests.equivalence.twins import Values, Worker
from tests.equivalence.uneven import batches_of

KINDS = ("exp_avg", "exp_avg_sq", "counts")


@dataclass
class Seen:
    """Copies of one rank's network, keyed by the number of batches trained until then.

    Attributes:
        local: at the end of every batch, as training goes on with it.
        moments: m, v and k (with NAdam's product of mu) then, each by name, with one of the Adams.
        scheduled: as a learning-rate scheduler saw it, one for each of its steps.
        validated: in validation.
        epoch_ends: in a callback's ``on_train_epoch_end``.
        module_epoch_ends: in the module's own hook of that name.
        saved: in the state that the strategy hands out for a checkpoint.
        steps: counted for each optimizer at the ends of epochs.
        blocks: synchronised by each optimizer at the end of the last epoch.
        excluded: groups that were left out.
        final: after ``fit``.

    """

    local: dict[int, Values] = field(default_factory=dict)
    moments: dict[int, dict[str, Values]] = field(default_factory=dict)
    scheduled: list[Values] = field(default_factory=list)
    validated: dict[int, Values] = field(default_factory=dict)
    epoch_ends: dict[int, Values] = field(default_factory=dict)
    module_epoch_ends: dict[int, Values] = field(default_factory=dict)
    saved: dict[int, Values] = field(default_factory=dict)
    steps: list[list[int]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    excluded: float = 0
    final: Values = field(default_factory=dict)


class Watcher(Callback):
    """Fills in a :class:`Seen`, and saves a checkpoint after the given batches."""

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
        self._seen.moments[self._batches] = _moments(trainer, pl_module.net)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seen.validated[self._batches] = state_of(pl_module.net)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seen.epoch_ends[self._batches] = state_of(pl_module.net)
        if hasattr(trainer.strategy, "_fit_session"):
            counts = trainer.strategy._fit_session.worker.steps
            self._seen.steps.append([count.total for count in counts])
            self._seen.blocks = [count.blocks for count in counts]

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        metrics: dict[str, float] = getattr(trainer.strategy, "metrics", dict)()
        self._seen.excluded = sum(v for name, v in metrics.items() if name.endswith("/excluded"))

    def _save(self, trainer: pl.Trainer) -> None:
        state = trainer.strategy.lightning_module_state_dict()
        self._seen.saved[self._batches] = {
            name.removeprefix("net."): value.clone() for name, value in state.items()
        }
        if self._folder is not None:
            trainer.save_checkpoint(self._folder / f"{self._batches}.ckpt")


def _moments(trainer: pl.Trainer, net: torch.nn.Module) -> dict[str, Values]:
    """Zeros where there is no state yet; a frozen parameter has none at any time."""
    names = {p: name for name, p in net.named_parameters()}
    found: dict[str, Values] = {kind: {} for kind in KINDS}
    for optimizer in trainer.optimizers:
        if "betas" not in optimizer.defaults:
            return {}
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            state, name = optimizer.state.get(parameter, {}), names[parameter]
            if not parameter.requires_grad:
                assert not state, f"{name} is frozen and has state"
                continue
            for kind in ("exp_avg", "exp_avg_sq"):
                found[kind][name] = state.get(kind, torch.zeros_like(parameter)).clone()
            counts = _counts(state.get("step", 0.0), state.get("mu_product", 1.0))
            found["counts"][name] = counts
    return found


def _counts(k: Any, product: Any) -> Tensor:
    return torch.tensor([float(k), float(product)], dtype=torch.float64)


def watch(
    case: Case,
    *,
    looking: bool = False,
    scheduled: bool = False,
    save_after: Sequence[int] = (),
    folder: Path | None = None,
    data_of: int | None = None,
) -> Seen:
    """Train on this rank, which may take the data of another one.

    With ``looking``, it validates as the case's ``trainer`` says, and saves on the way. With
    ``scheduled`` a scheduler notes what it sees.
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
        batches = batches_of(case, rank_number() if data_of is None else data_of)
        trainer.fit(module, batches, loader(0, 2))
    seen.final = state_of(module.net)
    return seen


def _add_scheduler(module: pl.LightningModule, seen: Seen) -> None:
    """Give the module a scheduler that changes nothing and notes the weights when it steps."""
    if not module.automatic_optimization:
        return
    configure = module.configure_optimizers

    def note(step: int) -> float:
        seen.scheduled.append(state_of(module.net))
        return 1.0

    def with_scheduler() -> dict[str, Any]:
        optimizer = configure()
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, note)
        seen.scheduled.clear()  # a scheduler steps once when it is made
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    module.configure_optimizers = with_scheduler  # type: ignore[assignment, method-assign]


def watch_both(cases: Sequence[Case], folder: Path | None = None) -> dict[str, tuple[Seen, Seen]]:
    """Every case twice: watched with looks on the way, and without."""
    found = {}
    for case in cases:
        own = None if folder is None else folder / case.name
        if own is not None:
            own.mkdir(parents=True, exist_ok=True)
        saves = () if own is None else (1, 2, 4, 6)
        looking = watch(case, looking=True, save_after=saves, folder=own)
        found[case.name] = looking, watch(case)
    return found


def watch_all(cases: Sequence[Case], **settings: bool) -> dict[str, Seen]:
    """Every case, with settings of `watch`."""
    return {case.name: watch(case, **settings) for case in cases}


def twin_seen(case: Case, *, looking: bool = False) -> list[Seen]:
    """What the twin's workers see; all have the same global model."""
    twin = make_twin(case)
    found = [Seen() for _ in twin.workers]
    for number in range(case.epochs * case.batches):
        train_batch(case, twin, number)
        shown = twin.global_model() if looking else {}
        for seen, worker in zip(found, twin.workers, strict=True):
            seen.local[number + 1] = {n: value.clone() for n, value in worker.values().items()}
            seen.moments[number + 1] = _twin_moments(worker)
            seen.validated[number + 1] = shown
    for seen in found:
        seen.final, seen.excluded = twin.global_model(), getattr(twin, "excluded", 0)
    return found


def assert_like_twin(
    own: Seen, twin: Seen, *, tolerance: float, rank: int, diverges: bool = False
) -> None:
    """Compare weights and moments after every batch, and the final weights, with those of the twin.

    Args:
        own: what a rank saw.
        twin: what the twin's worker saw.
        tolerance: largest difference.
        rank: number of the rank, for the message.
        diverges: whether batches after which the twin is not finite are skipped.

    """
    for batch, expected in twin.local.items():
        if diverges and not all(bool(value.isfinite().all()) for value in expected.values()):
            continue
        found = {name: own.local[batch][name] for name in expected}
        assert difference(found, expected) < tolerance, f"rank {rank}, batch {batch}"
        for kind, its in twin.moments[batch].items():
            mine = {name: own.moments[batch][kind][name] for name in its}
            assert difference(mine, its) < tolerance, f"{kind}, rank {rank}, {batch}"
    assert difference(own.final, twin.final) < tolerance


def _twin_moments(worker: Worker) -> dict[str, Values]:
    if not isinstance(worker, AdamWorker):
        return {}
    memory = worker.memory.items()
    return {
        "exp_avg": {name: own.m.clone() for name, own in memory},
        "exp_avg_sq": {name: own.v.clone() for name, own in memory},
        "counts": {name: _counts(own.k, own.product) for name, own in memory},
    }
