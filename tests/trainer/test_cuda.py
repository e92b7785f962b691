"""The same on CUDA: bit-equal codings, and training over NCCL. Skipped where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from lightning_hier.algorithms.coding import add_bitmap_signs_, words_to_bitmap
from lightning_hier.algorithms.threshold import add_signs_, select_words
from tests.ranks import run_ranks
from tests.signs import dense_signs, subtract_sent_
from tests.trainer.fitting import Net, fit, weights

pytestmark = pytest.mark.gpu


def _exchange(values: Tensor) -> list[Tensor]:
    words, largest = select_words(values, 0.7)
    residual = values.clone()
    subtract_sent_(residual, words, 0.7)
    by_words, by_bitmap = torch.zeros_like(values), torch.zeros_like(values)
    add_signs_(by_words, words)
    add_bitmap_signs_(by_bitmap, words_to_bitmap(words, values.numel()))
    dense = dense_signs(words, values.numel(), torch.int8)
    return [words, torch.tensor(largest), residual, by_words, by_bitmap, dense]


def test_codings_are_those_of_the_cpu_bit_for_bit() -> None:
    values = torch.randn(200_003, generator=torch.Generator().manual_seed(0))
    for on_gpu, on_cpu in zip(_exchange(values.cuda()), _exchange(values), strict=True):
        assert torch.equal(on_gpu.cpu(), on_cpu)


def _final(strategy: str) -> tuple[Tensor, float]:
    model = Net()
    trainer = fit(
        getattr(lh, strategy)(block_size=3), 6, model, accelerator="gpu", precision="32-true"
    )
    assert isinstance(trainer.strategy, lh.HierarchicalStrategy)
    return weights(model).cpu(), trainer.strategy.traffic.total("across").payload_bytes


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs a GPU for each rank")
@pytest.mark.parametrize("strategy", ["BMUFStrategy", "BMUFGTCStrategy"])
def test_two_gpus_end_with_one_model(strategy: str) -> None:
    (first, sent), (second, _) = run_ranks(_final, 2, strategy)
    assert torch.equal(first, second)
    assert first.isfinite().all()
    assert sent > 0 or strategy == "BMUFGTCStrategy"
