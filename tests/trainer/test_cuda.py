"""Tests encodings on CUDA, and training there over gloo and NCCL. Skipped without a GPU.

Ranks that share a GPU cannot use NCCL. These tests run them as hosts of one rank, over gloo.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from lightning_hier.algorithms.kernels.payload import add_bitmap_, add_words_, words_to_bitmap
from tests.ranks import run_ranks
from tests.signs import select_words, subtract_sent_
from tests.trainer.fitting import Net, loader, make_trainer, weights

pytestmark = pytest.mark.gpu

LIMIT = timedelta(seconds=60)


def _exchange(values: Tensor) -> list[Tensor]:
    words = select_words(values, 0.7)
    residual = values.clone()
    subtract_sent_(residual, words, 0.7)
    by_words, by_bitmap = torch.zeros_like(values), torch.zeros_like(values)
    add_words_(by_words, words)
    add_bitmap_(by_bitmap, words_to_bitmap(words, values.numel()))
    return [words, residual, by_words, by_bitmap]


def test_encodings_equal_those_of_the_cpu_bit_for_bit() -> None:
    values = torch.randn(200_003, generator=torch.Generator().manual_seed(0))
    for on_gpu, on_cpu in zip(_exchange(values.cuda()), _exchange(values), strict=True):
        assert torch.equal(on_gpu.cpu(), on_cpu)


class _Net(Net):
    """Trains with the optimizer of the given name."""

    def __init__(self, optimizer: str) -> None:
        super().__init__()
        self.kind = optimizer

    def configure_optimizers(self) -> Any:
        return getattr(torch.optim, self.kind)(self.parameters(), lr=0.05)


def _final(
    name: str, settings: dict[str, Any], optimizer: str, trainer_settings: dict[str, Any]
) -> Tensor:
    precision = trainer_settings.get("precision", "64-true")
    strategy = getattr(lh, name)(timeout=LIMIT, **settings)
    trainer = make_trainer(strategy, **{"precision": precision, **trainer_settings})
    model, data = _Net(optimizer), loader(12)
    if precision == "64-true":
        data.dataset.tensors = tuple(tensor.double() for tensor in data.dataset.tensors)
    trainer.fit(model, data)
    assert not any(p.is_cuda for p in model.parameters())  # after Lightning's teardown
    return weights(model).cpu()


_run = partial(run_ranks, _final, ranks_per_node=1)
_GLOO = {"process_group_backend": "gloo"}
_SMALL_GTC = {"density": 0.2, "dense_below": 9}
_GROUPS = {"group_size": 2, "block_size": 3}

SYSTEMS: dict[str, tuple[int, str, dict[str, Any], str]] = {
    "gtc": (2, "GTCStrategy", _SMALL_GTC, "SGD"),
    "bmuf": (3, "BMUFStrategy", {"block_size": 3}, "SGD"),
    "bmuf_overlap": (2, "BMUFStrategy", {"block_size": 3, "overlap": True}, "SGD"),
    "bmuf_bfloat16": (2, "BMUFStrategy", {"block_size": 3, "across_dtype": "bfloat16"}, "SGD"),
    "bmuf_int4": (2, "BMUFStrategy", {"block_size": 3, "across_dtype": "int4"}, "SGD"),
    "sparse": (
        2,
        "HierarchicalStrategy",
        {
            "group_size": 1,
            "block_sync": lh.BMUF(block_size=3, block_momentum=0.5, across_density=0.2),
        },
        "SGD",
    ),
    "bmuf_adam": (2, "BMUFAdamStrategy", {"block_size": 3}, "AdamW"),
    "bmuf_adam_overlap": (2, "BMUFAdamStrategy", {"block_size": 4, "overlap": 2}, "AdamW"),
    "diloco_fragments": (
        2,
        "DiLoCoStrategy",
        {"block_size": 4, "fragments": 2, "overlap": 1, "across_dtype": "int8"},
        "AdamW",
    ),
    "bmuf_gtc": (4, "BMUFGTCStrategy", {**_GROUPS, **_SMALL_GTC}, "SGD"),
    "bmuf_gtc_sharded": (
        4, "BMUFGTCStrategy", {**_GROUPS, **_SMALL_GTC, "across": "sharded"}, "SGD",
    ),
}  # fmt: skip


@pytest.mark.parametrize("system", SYSTEMS)
def test_ranks_on_one_gpu_train_as_on_the_cpu(system: str) -> None:
    """Models are bit-equal on all ranks, and equal those of the CPU up to the order of sums."""
    ranks, name, settings, optimizer = SYSTEMS[system]
    on_gpu = _run(ranks, name, {**settings, **_GLOO}, optimizer, {"accelerator": "gpu"})
    on_cpu = _run(ranks, name, settings, optimizer, {})
    for model in on_gpu:
        assert torch.equal(model, on_gpu[0])
    torch.testing.assert_close(on_gpu[0], on_cpu[0], rtol=0, atol=1e-11)


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
@pytest.mark.parametrize("system", ["bmuf_overlap", "bmuf_gtc", "bmuf_adam"])
def test_mixed_precision_trains_on_a_gpu(system: str, precision: str) -> None:
    ranks, name, settings, optimizer = SYSTEMS[system]
    trainer = {"accelerator": "gpu", "precision": precision}
    models = _run(ranks, name, {**settings, **_GLOO}, optimizer, trainer)
    for model in models:
        assert torch.equal(model, models[0])
    assert models[0].isfinite().all()
    assert not torch.equal(models[0], weights(Net()))


@pytest.mark.parametrize("name", ["PSPStrategy", "TwoStageASGDStrategy"])
def test_parameter_servers_train_on_a_gpu(name: str) -> None:
    """One worker that waits for every update is plain SGD. Two workers end with one model."""
    settings: dict[str, Any] = {}
    if name == "TwoStageASGDStrategy":
        settings = {"push_period": 1, "double_buffering": False}
    (alone,) = _run(1, name, {**settings, **_GLOO}, "SGD", {"accelerator": "gpu"})
    (expected,) = _run(1, name, settings, "SGD", {})
    torch.testing.assert_close(alone, expected, rtol=0, atol=1e-11)
    both = _run(2, name, {**settings, **_GLOO}, "SGD", {"accelerator": "gpu"})
    assert torch.equal(both[0], both[1])
    assert both[0].isfinite().all()


@pytest.mark.parametrize("name", ["BMUFStrategy", "BMUFGTCStrategy", "BMUFAdamStrategy"])
def test_one_rank_trains_over_nccl_as_over_gloo(name: str) -> None:
    optimizer = "AdamW" if name == "BMUFAdamStrategy" else "SGD"
    trainer = {"accelerator": "gpu"}
    (nccl,) = _run(1, name, {"block_size": 3}, optimizer, trainer)
    (gloo,) = _run(1, name, {"block_size": 3, **_GLOO}, optimizer, trainer)
    assert torch.equal(nccl, gloo)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs a GPU for each rank")
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_gpu_for_each_rank_gives_one_model(system: str) -> None:
    ranks, name, settings, optimizer = SYSTEMS[system]
    if ranks > torch.cuda.device_count():
        pytest.skip(f"{ranks} ranks need {ranks} GPUs")
    models = run_ranks(_final, ranks, name, settings, optimizer, {"accelerator": "gpu"})
    for model in models:
        assert torch.equal(model, models[0])
    assert models[0].isfinite().all()
