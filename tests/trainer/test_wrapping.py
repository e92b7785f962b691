"""Which ranks DDP spans: all in the warm-up, then the group, and nothing in a group of one."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as default
from torch.nn.parallel import DistributedDataParallel

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, weights

BATCHES = 6


class _Adversaries(Net):
    """A GAN as they are written: each loss passes through both parts, gradients go first."""

    def __init__(self, *, adam: bool = False) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.adam = adam
        self.generator, self.discriminator = nn.Linear(4, 2), nn.Linear(2, 1)
        del self.layers
        self.double()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        noise, real = (own.double() for own in batch)
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
        parts = (self.generator, self.discriminator)
        if self.adam:
            return [torch.optim.Adam(part.parameters(), lr=0.02) for part in parts]
        return [torch.optim.SGD(part.parameters(), lr=0.2) for part in parts]


def _strategies(block_size: int, warmup_steps: int = 0) -> dict[str, Any]:
    """One step of every optimizer a block, then what each makes of models is their mean."""
    settings: dict[str, Any] = {
        "block_size": block_size,
        "warmup_steps": warmup_steps,
        "find_unused_parameters": True,
    }
    return {
        "model_averaging": lh.ModelAveragingStrategy(local_momentum="keep", **settings),
        "bmuf": lh.BMUFStrategy(block_momentum=0.0, **settings),
        "bmuf_adam": lh.BMUFAdamStrategy(block_momentum=0.0, **settings),
    }


def _trained(strategy: Any, name: str) -> Tensor:
    model = _Adversaries(adam=name == "bmuf_adam")
    fit(strategy, BATCHES, model)
    return weights(model)


def _adversaries() -> dict[str, list[Tensor]]:
    ddp = DDPStrategy(find_unused_parameters=True)
    found = {"ddp": [_trained(ddp, "ddp")]}
    for name in _strategies(1):
        found[name] = [_trained(_strategies(1, steps)[name], name) for steps in (0, 2)]
    return found


def test_two_optimizers_by_hand_train_in_groups_of_one() -> None:
    """With plain SGD the mean of models after every step is that of one step by mean gradients."""
    first, second = run_ranks(_adversaries, 2)
    (ddp,) = first.pop("ddp")
    for name, found in first.items():
        for own, other in zip(found, second[name], strict=True):
            assert torch.equal(own, other) and bool(own.isfinite().all())
            if name != "bmuf_adam":
                assert torch.allclose(own, ddp, rtol=1e-12, atol=1e-14), name


class _Wrapped(Net):
    """Notes over how many ranks the module is wrapped at each batch, and who is still wrapped."""

    def __init__(self) -> None:
        super().__init__(batchnorm=True)
        self.double()
        self.over: list[int | None] = []
        self.wrappers: list[weakref.ref[DistributedDataParallel]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        model: Any = self.trainer.model
        if isinstance(model, DistributedDataParallel):
            self.over.append(dist.get_world_size(model.process_group))
            if not any(own() is model for own in self.wrappers):
                self.wrappers.append(weakref.ref(model))
        else:
            self.over.append(None)
        return self.loss([own.double() for own in batch])


def _wrapped(**settings: Any) -> tuple[list[int | None], int]:
    model = _Wrapped()
    settings = {"warmup_steps": 0, **settings}
    fit(lh.HierarchicalStrategy(block_sync=lh.ModelAveraging(block_size=2), **settings), 5, model)
    gc.collect()
    return model.over, sum(own() is not None for own in model.wrappers)


def _all_wrapped() -> list[tuple[list[int | None], int]]:
    return [
        _wrapped(group_size=1, warmup_steps=2),
        _wrapped(group_size=1),
        _wrapped(group_size=2, warmup_steps=2),
        _wrapped(group_size=1, gradient_sync=lh.CommHook(default.fp16_compress_hook)),
    ]


def test_ddp_spans_the_world_then_the_group_and_none_in_a_group_of_one() -> None:
    """Those that are replaced are gone, with their buckets."""
    for found in run_ranks(_all_wrapped, 4):
        assert found == [
            ([4, 4, None, None, None], 0),
            ([None] * 5, 0),
            ([4, 4, 2, 2, 2], 0),
            ([1] * 5, 0),
        ]


class _Branches(Net):
    """Each group uses branches of its own, one is used by nobody and one by all."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(4, 2) for _ in range(4)).double()
        self.without: list[str] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        data, target = (own.double() for own in batch)
        found = self.branches[3](data) + self.branches[dist.get_rank() // 2](data)
        return (found - target).square().mean()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        named = self.branches.named_parameters()
        self.without = [name for name, own in named if own.grad is None]

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.branches.parameters(), lr=0.05)


def _branches() -> list[tuple[Tensor, list[str]]]:
    found = []
    for views in (False, True):
        settings: dict[str, Any] = {
            "find_unused_parameters": True,
            "gradient_as_bucket_view": views,
        }
        groups = [
            lh.HierarchicalStrategy(
                group_size=size,
                block_sync=lh.ModelAveraging(block_size=1),
                warmup_steps=BATCHES,
                **settings,
            )
            for size in (1, 2)
        ]
        for strategy in (DDPStrategy(**settings), *groups):
            model = _Branches()
            fit(strategy, BATCHES, model)
            found.append((weights(model), model.without))
    return found


def test_warm_up_of_groups_that_use_different_parameters_is_ddp() -> None:
    """To the last bit, and what no rank uses has no gradient."""
    for (ddp, without), *others in run_ranks(_branches, 4):
        assert without == ["2.weight", "2.bias"]
        for own, own_without in others:
            assert torch.equal(own, ddp) and own_without == without
