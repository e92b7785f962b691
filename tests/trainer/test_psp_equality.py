"""PSP-SGD through the Trainer: equal to synchronous SGD where it must be, and resumed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.nn import functional as F

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer, weights

RANKS = 4
BATCHES = 6
LIMIT = timedelta(seconds=60)


class _Net64(Net):
    """In float64, with an optimizer by name and a scheduler that acts at every step."""

    def __init__(self, kind: str = "SGD", **options: Any) -> None:
        super().__init__()
        self.double()
        self.kind, self.options = kind, options

    def configure_optimizers(self) -> Any:
        optimizer = getattr(torch.optim, self.kind)(self.parameters(), **self.options)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def _psp(**settings: Any) -> lh.PSPStrategy:
    return lh.PSPStrategy(timeout=LIMIT, **settings)


def _doubles(batches: int, ranks: int | None = None) -> Any:
    data = loader(batches, ranks=ranks)
    data.dataset.tensors = tuple(tensor.double() for tensor in data.dataset.tensors)
    return data


def _fit64(strategy: Any, model: _Net64, batches: int = BATCHES, **settings: Any) -> Tensor:
    trainer = make_trainer(strategy, **settings)
    trainer.fit(model, _doubles(batches))
    return weights(model)


def _twin(model: _Net64, *, rate: float, scale_eps: float = 1.0) -> Tensor:
    """One optimizer on the mean gradient of all ranks' batches, in this process."""
    options = {**model.options, "lr": model.options["lr"] * rate}
    if "eps" in options:
        options["eps"] *= scale_eps
    optimizer = getattr(torch.optim, model.kind)(model.parameters(), **options)
    inputs, targets = _doubles(BATCHES, RANKS).dataset.tensors
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0)).tolist()
    for step in range(BATCHES):
        for group in optimizer.param_groups:
            group["lr"] = options["lr"] / (1 + step)
        losses = []
        for rank in range(RANKS):
            # The sampler shuffles by its seed, 0, and deals rows out in turn.
            rows = [order[rank + RANKS * (2 * step + row)] for row in range(2)]
            losses.append(F.mse_loss(model(inputs[rows]), targets[rows]))
        optimizer.zero_grad()
        (sum(losses) / RANKS).backward()
        optimizer.step()
    return weights(model)


def _all_kinds() -> list[Tensor]:
    sgd = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}
    adam = {"lr": 0.01, "eps": 1e-4}
    return [
        _fit64(_psp(), _Net64("SGD", **sgd)),
        _fit64(_psp(linear_scaling=False), _Net64("SGD", **sgd)),
        _fit64(_psp(), _Net64("Adam", **adam)),
        _fit64(_psp(linear_scaling=False), _Net64("AdamW", **adam)),
    ]


def test_all_pushes_and_all_pulls_are_synchronous_sgd_at_the_rate_times_the_workers() -> None:
    results = run_ranks(_all_kinds, RANKS, env={"PL_GLOBAL_SEED": "0"})
    sgd = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}
    adam = {"lr": 0.01, "eps": 1e-4}
    twins = [
        _twin(_Net64("SGD", **sgd), rate=RANKS),
        _twin(_Net64("SGD", **sgd), rate=1),
        _twin(_Net64("Adam", **adam), rate=RANKS),
        _twin(_Net64("AdamW", **adam), rate=1),
    ]
    for found in results:
        for weight, twin in zip(found, twins, strict=True):
            torch.testing.assert_close(weight, twin, rtol=0, atol=1e-10)


def _accumulated() -> tuple[Tensor, Tensor]:
    options = {"lr": 0.02, "momentum": 0.9}
    psp = _psp(linear_scaling=False)
    return (
        _fit64(psp, _Net64("SGD", **options), accumulate_grad_batches=2, gradient_clip_val=10.0),
        _fit64("ddp", _Net64("SGD", **options), accumulate_grad_batches=2, gradient_clip_val=10.0),
    )


def test_accumulated_gradients_are_those_of_ddp() -> None:
    for psp, ddp in run_ranks(_accumulated, 2):
        torch.testing.assert_close(psp, ddp, rtol=0, atol=1e-10)


def _saved(folder: str) -> Tensor:
    model = _Net64("SGD", lr=0.02, momentum=0.9)
    saving = ModelCheckpoint(folder, save_last=True, every_n_epochs=1, save_top_k=-1)
    _fit64(_psp(), model, max_epochs=2, callbacks=[saving], enable_checkpointing=True)
    return weights(model)


def _resumed(folder: str) -> tuple[Tensor, Tensor]:
    path = next(Path(folder).glob("epoch=0*.ckpt"))
    model = _Net64("SGD", lr=0.02, momentum=0.9)
    trainer = make_trainer(_psp(), max_epochs=2)
    trainer.fit(model, _doubles(BATCHES), ckpt_path=path, weights_only=True)
    state = torch.load(path, weights_only=True)["state_dict"]
    loaded = _Net64("SGD", lr=0.02, momentum=0.9)
    loaded.load_state_dict(state)
    return weights(model), weights(loaded)


def test_resumed_from_the_servers_parameters_and_optimizer_state(tmp_path: Path) -> None:
    whole = run_ranks(_saved, 3, str(tmp_path))
    halves = run_ranks(_resumed, 3, str(tmp_path))
    for full, (resumed, at_the_middle) in zip(whole, halves, strict=True):
        torch.testing.assert_close(resumed, full, rtol=0, atol=1e-12)
        assert not torch.equal(at_the_middle, full)
