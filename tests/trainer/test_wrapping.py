"""Tests that steps by hand, and a warm-up of all ranks, are those of DDP."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn

import lightning_hier as lh
from tests.trainer.fitting import (
    AVERAGING,
    BMUF,
    Fitted,
    Net,
    all_equal,
    fits_on_ranks,
    fitted,
)


class _Adversaries(Net):
    """A GAN in manual optimization.

    Each loss passes through both networks. Gradients are set to zero before the forward pass.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(by_hand=True, **settings)
        self.generator, self.discriminator = nn.Linear(4, 2), nn.Linear(2, 1)
        del self.layers
        self.double()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        noise, real = (tensor.double() for tensor in batch)
        of_generator, of_discriminator = self.optimizers()
        of_generator.zero_grad()
        of_discriminator.zero_grad()
        fake = self.generator(noise)
        self._tell_apart(of_discriminator, fake, real)
        self.manual_backward(-self.discriminator(fake).tanh().mean())
        of_generator.step()  # the last step of the warm-up, in the middle of a batch
        of_discriminator.zero_grad()
        self._tell_apart(of_discriminator, fake, real)

    def _tell_apart(self, optimizer: Any, fake: Tensor, real: Tensor) -> None:
        apart = self.discriminator(fake.detach()).tanh() - self.discriminator(real).tanh()
        self.manual_backward(apart.mean())
        optimizer.step()

    def configure_optimizers(self) -> Any:
        kind, parts = getattr(torch.optim, self.optimizer), (self.generator, self.discriminator)
        return [kind(part.parameters(), lr=self.lr) for part in parts]


_UNUSED = {"find_unused_parameters": True}


_OF_ONE: dict[str, Any] = {
    "model_averaging": partial(AVERAGING, local_momentum="keep"),
    "bmuf": partial(BMUF, block_momentum=0.0),
    "bmuf_adam": partial(lh.BMUFAdamStrategy, block_momentum=0.0),
}


def _by_hand(name: str, warmup_steps: int) -> Fitted:
    rule = {"lr": 0.02, "optimizer": "Adam"} if name == "bmuf_adam" else {"lr": 0.2}
    settings = {"block_size": 1, "warmup_steps": warmup_steps, **_UNUSED}
    return fitted(partial(_OF_ONE[name], **settings), partial(_Adversaries, **rule))


def test_two_optimizers_by_hand_train_in_groups_of_one() -> None:
    """With plain SGD, the mean of models after every step equals a step with the mean gradient."""
    cases = [("model_averaging", 2), ("bmuf", 0), ("bmuf_adam", 2)]
    ddp = partial(fitted, partial(DDPStrategy, **_UNUSED), partial(_Adversaries, lr=0.2))
    (by_ddp, _), *results = fits_on_ranks(2, ddp, *(partial(_by_hand, *case) for case in cases))
    for case, (first, second) in zip(cases, results, strict=True):
        assert torch.equal(first.weights, second.weights), case
        assert first.weights.isfinite().all(), case
        if case[0] != "bmuf_adam":
            assert torch.allclose(first.weights, by_ddp.weights, rtol=1e-12, atol=1e-14), case


class _Branches(Net):
    """Each group uses another branch. One branch is used by all ranks, and one by none."""

    def __init__(self) -> None:
        super().__init__(lr=0.05, optimizer="Adam")
        self.layers = nn.Sequential(*(nn.Linear(4, 2) for _ in range(4))).double()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        data, target = (tensor.double() for tensor in batch)
        output = self.layers[3](data) + self.layers[dist.get_rank() // 2](data)
        return (output - target).square().mean()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.notes = [name for name, p in self.layers.named_parameters() if p.grad is None]


def _branched(groups: int | None, views: bool) -> Fitted:
    """Train with DDP, or in the warm-up of groups of this size."""
    settings: dict[str, Any] = {**_UNUSED, "gradient_as_bucket_view": views}
    if groups is None:
        return fitted(partial(DDPStrategy, **settings), _Branches)
    sync = lh.ModelAveraging(block_size=1)
    settings |= {"group_size": groups, "block_sync": sync, "warmup_steps": 6}
    return fitted(partial(lh.HierarchicalStrategy, **settings), _Branches)


def test_warm_up_of_groups_that_use_different_parameters_is_ddp() -> None:
    """Weights are equal to the last bit. Parameters that no rank uses have no gradient."""
    cases = [(None, False), (1, False), (2, True)]
    runs = fits_on_ranks(4, *(partial(_branched, *case) for case in cases))
    for rank in range(4):
        assert all_equal(run[rank].weights for run in runs)
        assert all(run[rank].notes == ["2.weight", "2.bias"] for run in runs)
