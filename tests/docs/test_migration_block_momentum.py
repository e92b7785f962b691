"""Tests that `BlockMomentum` gives the start models of DiLoCo, SlowMo, fairseq and CNTK.

The recursions are implemented here from the sources that the pages name, in float64 on one
process, and compared with `BlockMomentum`: docs/migration/torchft_diloco.md,
docs/migration/diloco.md, docs/migration/slowmo.md, docs/migration/fairseq_bmuf.md and
docs/migration/cntk.md.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lightning_hier import BMUF
from tests.docs.pages import Page
from tests.docs.running import run_code
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, weights

NAMES = ("torchft_diloco", "diloco", "slowmo", "fairseq_bmuf", "cntk")
PAGES = tuple(f"docs/migration/{name}.md" for name in NAMES)
THIS = "tests/docs/test_migration_block_momentum.py::test_pages_train"
WORKERS, BLOCKS = 4, 6


def _updates() -> list[Tensor]:
    """Mean local update of each block, whatever the block-start weights."""
    generator = torch.Generator().manual_seed(3)
    return [*torch.randn(BLOCKS, 5, generator=generator, dtype=torch.float64)]


def _nothing() -> Tensor:
    return torch.zeros(5, dtype=torch.float64)


def _start_models(sync: BMUF) -> list[Tensor]:
    """Start model after every block (W_g), by `BlockMomentum`."""
    parameter = torch.nn.Parameter(_nothing())
    outer, models = sync.outer_of(WORKERS)([parameter]), []
    for update in _updates():
        parameter.grad = -update
        outer.step()
        models += outer.start_models()
    return models


def _torchft(nesterov: bool) -> list[Tensor]:
    """Start models by torch's SGD as outer optimizer, on the mean local update."""
    parameter, starts = torch.nn.Parameter(_nothing()), []
    outer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=nesterov)
    for update in _updates():
        parameter.grad = -update
        outer.step()
        starts.append(parameter.detach().clone())
    return starts


def _fairseq(nesterov: bool, rate: float = 1.0) -> list[Tensor]:
    """Start models of fairseq: momentum on the mean difference. The result is the next base."""
    base, smooth, bases = _nothing(), _nothing(), []
    for update in _updates():
        smooth = 0.875 * smooth - rate * update
        base = base - smooth - (0.875 * smooth if nesterov else 0.0)
        bases.append(base.clone())
    return bases


def _cntk(nesterov: bool) -> list[Tensor]:
    """Start models of CNTK: as fairseq, at 0.5 times 1 - eta, on the sum of differences."""
    return _fairseq(nesterov, rate=(1 - 0.875) * 0.5 * WORKERS)


def test_slowmo_is_classical_block_momentum() -> None:
    """SlowMo's Algorithm 1 with a constant learning rate, in which u is a gradient."""
    model, slow, models = _nothing(), _nothing(), []
    rate, alpha, beta = 0.05, 1.0, 0.5
    for update in _updates():
        slow = beta * slow - update / rate
        model = model - alpha * rate * slow
        models.append(model.clone())
    ours = torch.stack(_start_models(BMUF(nesterov=False, block_momentum=0.5)))
    torch.testing.assert_close(ours, torch.stack(models), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (_torchft, {"block_lr": 0.7, "block_momentum": 0.9}),
        (_fairseq, {"block_momentum": 0.875, "update_from": "start"}),
        (
            _cntk,
            {
                "block_lr": 0.5 * WORKERS * (1 - 0.875),
                "block_momentum": 0.875,
                "update_from": "start",
            },
        ),
    ],
)
def test_start_models_are_theirs(
    theirs: Callable[[bool], list[Tensor]], ours: dict[str, object], nesterov: bool
) -> None:
    expected = torch.stack(theirs(nesterov))
    models = torch.stack(_start_models(BMUF(nesterov=nesterov, **ours)))
    torch.testing.assert_close(models, expected, rtol=1e-12, atol=1e-12)
    if nesterov and "update_from" in ours:
        papers = ours | {"update_from": "global"}
        other = torch.stack(_start_models(BMUF(nesterov=True, **papers)))
        assert not torch.allclose(other, expected, rtol=0.1)


def _trained(blocks: dict[str, str]) -> dict[str, list[float]]:
    trained = {}
    for page, code in blocks.items():
        model = Net()
        run_code([code], {"model": model, "data": loader(4)})
        trained[page] = weights(model).tolist()
    return trained


def test_pages_train() -> None:
    blocks = {}
    for page in PAGES:
        for number, block in enumerate(Page.read(page).code(THIS)):
            blocks[f"{page} {number}"] = block.text
    first, second = run_ranks(_trained, 2, blocks, ranks_per_node=1)
    assert first == second
    start = weights(Net()).tolist()
    assert all(trained != start for trained in first.values())
