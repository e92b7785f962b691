"""Virtual workers: the same workers on fewer ranks train the same model."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer, weights

WORKERS = 8

# All tensors are compressed, because those of Net are small.
_SPARSE = {"density": 0.1, "dense_below": 0}

# The gradient of a bias before BatchNorm is only rounding. A small eps would make it a full step.
_EPS = {"eps": 1e-4}

SYSTEMS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "averaging": ("ModelAveragingStrategy", {}, "SGD", {"momentum": 0.9}),
    "averaged_momentum": (
        "ModelAveragingStrategy", {"local_momentum": "average"}, "SGD", {"momentum": 0.9},
    ),
    "bmuf": ("BMUFStrategy", {}, "SGD", {"momentum": 0.9}),
    "bmuf_keep": ("BMUFStrategy", {"local_momentum": "keep"}, "SGD", {"momentum": 0.9}),
    "bmuf_adam": ("BMUFAdamStrategy", {}, "AdamW", _EPS),
    "bmuf_nadam": ("BMUFAdamStrategy", {"moments": "corrected"}, "NAdam", _EPS),
    "bmuf_warm": ("BMUFStrategy", {"warmup_steps": 4}, "SGD", {"momentum": 0.9}),
    "gtc": ("GTCStrategy", _SPARSE, "SGD", {"momentum": 0.9}),
    "gtc_warm": ("GTCStrategy", {**_SPARSE, "warmup_steps": 4}, "SGD", {"momentum": 0.9}),
    "gtc_fixed": ("GTCStrategy", {**_SPARSE, "threshold": 0.02}, "SGD", {"momentum": 0.9}),
    "bmuf_gtc": ("BMUFGTCStrategy", {**_SPARSE, "group_size": 2}, "SGD", {"momentum": 0.9}),
    "bmuf_gtc_four": (
        "BMUFGTCStrategy", {**_SPARSE, "group_size": 4, "warmup_steps": 2}, "AdamW", _EPS,
    ),
    "bmuf_overlap": ("BMUFStrategy", {"overlap": True}, "SGD", {"momentum": 0.9}),
    "bmuf_gtc_overlap": (
        "BMUFGTCStrategy", {**_SPARSE, "group_size": 2, "overlap": True}, "SGD", {"momentum": 0.9},
    ),
    "diloco_fragments": ("DiLoCoStrategy", {"group_size": 1, "fragments": 2}, "AdamW", _EPS),
    "diloco_streaming": (
        "DiLoCoStrategy", {"group_size": 2, "fragments": 2, "overlap": 2}, "AdamW", _EPS,
    ),
    "bmuf_adam_streaming": ("BMUFAdamStrategy", {"fragments": 2, "overlap": 2}, "AdamW", _EPS),
    "all_reduce": ("HierarchicalStrategy", {"group_size": 4}, "SGD", {"momentum": 0.9}),
}  # fmt: skip


# The largest elements are those of the sum of a rank's or host's workers, so that the result
# depends on the number of workers.
SPARSE = {"group_size": 1, "block_sync": lh.BMUF(block_size=3, across_density=0.3)}
_ALL = {**SYSTEMS, "sparse": ("HierarchicalStrategy", SPARSE, "SGD", {"momentum": 0.9})}


class _Net(Net):
    """A module with BatchNorm, a buffer that is assigned anew, and a learning-rate scheduler."""

    center: Tensor

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        super().__init__(batchnorm=True)
        self.kind, self.options = kind, options
        self.register_buffer("center", torch.zeros(4))

    def forward(self, batch: Tensor) -> Tensor:
        self.center = 0.7 * self.center + 0.3 * batch.mean(0)
        return super().forward(batch - self.center)

    def configure_optimizers(self) -> Any:
        optimizer = getattr(torch.optim, self.kind)(self.parameters(), lr=0.02, **self.options)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def _trained(system: str, **settings: Any) -> tuple[Tensor, int]:
    name, options, kind, optimizer_options = _ALL[system]
    ranks = int(os.environ["WORLD_SIZE"])
    block: dict[str, Any] = (
        {"block_sync": lh.BMUF(block_size=3)} if name == "HierarchicalStrategy" else {}
    )
    if not block and name != "GTCStrategy":
        block = {"block_size": 3}
    strategy = getattr(lh, name)(virtual_workers=WORKERS // ranks, **{**block, **options})
    model = _Net(kind, optimizer_options)
    data = loader(7, ranks=WORKERS)
    data.dataset.tensors = tuple(tensor.double() for tensor in data.dataset.tensors)
    trainer = make_trainer(strategy, precision="64-true", max_epochs=3, **settings)
    trainer.fit(model, data)
    buffers = [own.double().reshape(-1) for own in model.buffers()]
    return torch.cat([weights(model), *buffers]), trainer.global_step


QUICK = ("bmuf_gtc", "diloco_streaming", "bmuf_adam_streaming")


@pytest.mark.parametrize(
    "system",
    [own if own in QUICK else pytest.param(own, marks=pytest.mark.slow) for own in SYSTEMS],
)
def test_workers_on_fewer_ranks_train_the_same_model(system: str) -> None:
    """Models are equal up to the order of additions in float64. Blocks end within epochs."""
    expected, steps = run_ranks(_trained, WORKERS, system)[0]
    assert steps == 21
    for ranks in (1, 2, 4):
        for model, taken in run_ranks(_trained, ranks, system):
            assert taken == steps
            torch.testing.assert_close(model, expected, rtol=0, atol=1e-9)


def test_a_rank_sends_the_largest_elements_of_the_sum_of_its_workers() -> None:
    """A host sends the largest elements of the sum of its ranks in the same way."""
    expected, _ = run_ranks(_trained, WORKERS, "sparse", ranks_per_node=4)[0]
    for model, _ in run_ranks(_trained, 2, "sparse", ranks_per_node=1):
        torch.testing.assert_close(model, expected, rtol=0, atol=1e-9)
