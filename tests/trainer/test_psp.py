"""PSP-SGD as a user meets it: looks, late ranks, bad gradients, precisions, stages."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torchmetrics import MeanSquaredError

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, loader, make_trainer, weights
from tests.waiting import leave_mark, wait_until

RANKS = 4
BATCHES = 6
LIMIT = timedelta(seconds=60)


def _rank() -> int:
    return int(os.environ["RANK"])


def _psp(**settings: Any) -> lh.PSPStrategy:
    return lh.PSPStrategy(timeout=LIMIT, **settings)


class _Watched(Net):
    """Remembers what validation saw, with BatchNorm."""

    def __init__(self) -> None:
        super().__init__(batchnorm=True)
        self.validated: list[Tensor] = []
        self.metrics: list[float] = []

    def on_validation_epoch_end(self) -> None:
        buffers = [b.double().reshape(-1) for b in self.buffers()]
        self.validated.append(torch.cat([weights(self).double(), *buffers]))

    def on_train_epoch_end(self) -> None:
        self.metrics.append(float(self.trainer.callback_metrics["val_loss"]))


def _validate_often(every: int) -> Any:
    model = _Watched()
    trainer = make_trainer(
        _psp(min_pushes=1.0), max_epochs=2, val_check_interval=every, num_sanity_val_steps=0
    )
    trainer.fit(model, loader(6), loader(2))
    return model.validated, model.metrics, weights(model), [b.clone() for b in model.buffers()]


def test_validation_sees_one_model_on_all_ranks_and_changes_nothing() -> None:
    often = run_ranks(_validate_often, RANKS, 2)
    seldom = run_ranks(_validate_often, RANKS, 6)
    assert len(often[0][0]) == 6
    assert len(seldom[0][0]) == 2
    for ranks in (often, seldom):
        first = ranks[0]
        for other in ranks[1:]:
            for mine, theirs in zip(first[0], other[0], strict=True):
                assert torch.equal(mine, theirs)
            assert other[1] == first[1]
            assert torch.equal(other[2], first[2])
        assert torch.equal(first[0][-1][: first[2].numel()], first[2].double())
    for mine, theirs in zip(often, seldom, strict=True):
        assert torch.equal(mine[2], theirs[2])
        for a, b in zip(mine[3], theirs[3], strict=True):
            assert torch.equal(a, b)


class _Late(Net):
    """The last rank is always five batches behind rank 0, as far as the epoch goes."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.done = Path(folder) / "done"
        self.computed = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.computed += 1
        if _rank() == RANKS - 1:
            last_of_epoch = (self.current_epoch + 1) * self.trainer.num_training_batches
            self._wait_for(min(self.global_step + 5, int(last_of_epoch)))
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if _rank() == 0:
            leave_mark(self.done.parent, self.done.name, str(self.global_step))

    def _wait_for(self, step: int) -> None:
        wait_until(
            lambda: self.done.exists() and int(self.done.read_text()) >= step,
            f"rank 0 to make {step} steps by itself",
        )


def _with_a_late_rank(folder: str) -> Any:
    model = _Late(folder)
    trainer = fit(_psp(min_pushes=RANKS - 1), 20, model, max_epochs=2)
    return weights(model), model.computed, trainer.global_step, trainer.strategy.metrics()


def test_late_rank_holds_up_nobody_and_leaves_out_what_the_others_have_done(
    tmp_path: Path,
) -> None:
    ranks = run_ranks(_with_a_late_rank, RANKS, str(tmp_path))
    for model, _, steps, _ in ranks:
        assert torch.equal(model, ranks[0][0])
        assert steps == 40
    assert [computed for _, computed, _, _ in ranks[:-1]] == [40] * (RANKS - 1)
    # Each batch costs it five; more, where the others were quicker than its way back, up to all.
    assert 2 <= ranks[-1][1] <= 2 * (20 // 5 + 1)
    dropped = sum(metrics["hier/psp/dropped"] for _, _, _, metrics in ranks)
    assert dropped > 0


class _Poisoned(Net):
    """One rank's gradient is not finite at one step."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * float("inf") if (_rank(), batch_idx) == (1, 2) else loss


def _poisoned() -> Tensor:
    model = _Poisoned()
    fit(_psp(), 6, model)
    return weights(model)


def test_gradient_that_is_not_finite_is_kept_out() -> None:
    results = run_ranks(_poisoned, 3)
    assert torch.isfinite(results[0]).all()
    for other in results[1:]:
        assert torch.equal(other, results[0])


class _Two(Net):
    """Manual optimisation of two optimizers, one for each layer, at different paces."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        first, second = self.optimizers()
        for optimizer in [first, second] if batch_idx % 2 else [first]:
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        front, back = self.layers[0].parameters(), self.layers[2].parameters()
        return torch.optim.SGD(front, lr=0.05), torch.optim.Adam(back, lr=0.01)


def _several_optimizers(strategy: str) -> Tensor:
    chosen: Any = "ddp" if strategy == "ddp" else _psp(linear_scaling=False)
    model = _Two()
    fit(chosen, 6, model)
    return weights(model)


def test_several_optimizers_by_hand_are_those_of_ddp() -> None:
    psp = run_ranks(_several_optimizers, 2, "psp")
    ddp = run_ranks(_several_optimizers, 2, "ddp")
    for mine, theirs in zip(psp, ddp, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "64-true"])
def test_precisions_train(precision: str) -> None:
    results = run_ranks(_in_precision, 2, precision)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], weights(Net()).to(results[0].dtype))


def _in_precision(precision: str) -> Tensor:
    model = Net()
    trainer = make_trainer(_psp(), precision=precision)
    data = loader(6)
    if precision == "64-true":
        data.dataset.tensors = tuple(tensor.double() for tensor in data.dataset.tensors)
    trainer.fit(model, data)
    return weights(model)


class _Tied(Net):
    """Input and output share a weight, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        self.layers[1].weight = self.layers[0].weight

    def forward(self, batch: Tensor) -> Tensor:
        result: Tensor = self.layers(batch)[:, :2]
        return result


def _saved_tied(path: str) -> bool:
    fit("psp", 3, _Tied(), callbacks=[_SaveAfterStep(path)])
    saved = torch.load(path, weights_only=True)["state_dict"]
    return torch.equal(saved["layers.0.weight"], saved["layers.1.weight"])


class _SaveAfterStep(Callback):
    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        if trainer.global_step == 2:
            if trainer.is_global_zero:
                with torch.no_grad():  # so that the module differs from the servers
                    pl_module.layers[0].weight.add_(1.0)
            trainer.save_checkpoint(self.path)


def test_tied_weight_is_saved_under_all_its_names(tmp_path: Path) -> None:
    assert all(run_ranks(_saved_tied, 2, str(tmp_path / "tied.ckpt")))


def _stages(name: str) -> Any:
    model = Net()
    trainer = make_trainer(name, num_sanity_val_steps=2)
    trainer.fit(model, loader(4), loader(2))
    first = weights(model)
    validated = float(trainer.validate(model, loader(2), verbose=False)[0]["val_loss"])
    tested = float(trainer.test(model, loader(2), verbose=False)[0]["val_loss"])
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, loader(4), loader(2))
    return first, validated, tested, weights(model)


@pytest.mark.parametrize("name", ["psp", "two_stage_asgd"])
def test_stages_follow_each_other_in_one_process(name: str) -> None:
    ranks = run_ranks(_stages, 2, name)
    for first, validated, tested, second in ranks:
        assert torch.equal(first, ranks[0][0])
        assert torch.equal(second, ranks[0][3])
        assert not torch.equal(first, second)
        assert validated == tested == ranks[0][1]


class _WithMetric(Net):
    """Validates by a metric of torchmetrics, which gathers its state by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.error = MeanSquaredError()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.error(self(batch[0]), batch[1])
        self.log("error", self.error)


def _validated_by_metric(name: str) -> float:
    trainer = make_trainer(name, num_sanity_val_steps=2)
    trainer.fit(_WithMetric(), loader(4), loader(3))
    return float(trainer.callback_metrics["error"])


@pytest.mark.parametrize("name", ["psp", "two_stage_asgd"])
def test_metric_is_gathered_in_the_sanity_check_and_in_validation(name: str) -> None:
    first, second = run_ranks(_validated_by_metric, 2, name)
    assert first == second > 0
