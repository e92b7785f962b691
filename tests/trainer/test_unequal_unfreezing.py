"""Tests that ranks which unfreeze different parameters get one error before any synchronisation."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

import lightning_hier as lh
from tests.trainer.fitting import Net, fit, this_rank
from tests.trainer.mistakes import Mistakes, check_mistakes

# Groups have one rank or two. A single group of all ranks does not average models.
_AVERAGING = partial(lh.ModelAveragingStrategy, block_size=4)
STRATEGIES: dict[str, Any] = {
    "overlap": partial(_AVERAGING, overlap=True),
    "adam": partial(lh.BMUFAdamStrategy, block_size=4),
    "warm-up": partial(_AVERAGING, warmup_steps=100),
    "bmuf_gtc": partial(lh.BMUFGTCStrategy, block_size=4, group_size=2, dense_below=10),
    "gtc": partial(lh.GTCStrategy, dense_below=10),
}


class _Finetuned(Net):
    """Two frozen parameters, of equal or different sizes, and a head."""

    def __init__(self, sizes: tuple[int, int], optimizer: str) -> None:
        super().__init__(lr=0.01, optimizer=optimizer)
        self.first, self.second = (nn.Parameter(torch.full((size,), 0.1)) for size in sizes)

    def loss(self, batch: list[Tensor]) -> Tensor:
        return super().loss(batch) + self.first.sum() ** 2 + self.second.sum() ** 2

    def configure_optimizers(self) -> Any:
        return getattr(torch.optim, self.optimizer)(self.layers.parameters(), lr=self.lr)


class _Unfreeze(Callback):
    """Unfreezes one of two parameters, which depends on the rank, in the middle of an epoch."""

    def __init__(self, chosen: list[str | None]) -> None:
        self.chosen = chosen

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pl_module.first.requires_grad_(False)
        pl_module.second.requires_grad_(False)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        name = self.chosen[this_rank()]
        if batch_idx == 2 and name is not None:
            unfrozen = getattr(pl_module, name).requires_grad_(True)
            trainer.optimizers[0].add_param_group({"params": [unfrozen]})


def _fit(name: str, chosen: list[str | None], sizes: tuple[int, int]) -> None:
    model = _Finetuned(sizes, "Adam" if name == "adam" else "SGD")
    fit(STRATEGIES[name](), 6, model, callbacks=[_Unfreeze(chosen)])


_ALONE: list[str | None] = ["first", None, None, None]
_BY_GROUP: list[str | None] = ["first", "first", "second", "second"]
_FIRST = r"first \(3,\) torch.float32"
_ERROR = (
    f"{_FIRST} in optimizer 0 only on rank 0; {_FIRST} frozen only on ranks 1, 2, 3. "
    "Freeze and unfreeze the same parameters at the same step on all ranks"
)
MISTAKES: Mistakes = {
    **{name: (partial(_fit, name, _ALONE, (3, 5)), _ERROR) for name in STRATEGIES},
    # Parameters of equal sizes would be averaged with each other without an error.
    **{
        f"groups, second parameter of {size}": (
            partial(_fit, "bmuf_gtc", _BY_GROUP, (3, size)),
            rf"{_FIRST} in optimizer 0 only on ranks 0, 1;.*second \({size},\) torch.float32 in "
            "optimizer 0 only",
        )
        for size in (3, 70)
    },
}


def test_ranks_and_groups_that_unfreeze_different_parameters_get_one_error() -> None:
    check_mistakes(__name__, kind="OutOfStepError: the ranks train different parameters: ")
