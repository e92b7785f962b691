"""What a run leaves behind, and what a rank that skips a step does to the others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_hier import BMUFStrategy, GTCStrategy
from tests.equivalence.cases import (
    case,
    difference,
    identical,
    make_module,
    make_net,
    make_trainer,
    make_twin,
    rank_number,
    state_of,
)
from tests.equivalence.tasks import Regression, batch_of, loader, loss_on
from tests.equivalence.twins import Values
from tests.ranks import run_ranks

SKIPPED = 1


def _leftovers() -> list[str]:
    """Fit twice with one Trainer; name what is still attached after each."""
    settings = {"threshold": 0.02, "find_unused_parameters": True}
    unused = case("unused", GTCStrategy, net="partly_used", **settings)
    module, trainer = make_module(unused), make_trainer(unused)
    found = []
    for epochs in (1, 2):
        trainer.fit_loop.max_epochs = epochs
        trainer.fit(module, loader(0, 3), loader(0, 1))
        found += [n for n, p in module.named_parameters() if p._post_accumulate_grad_hooks]
        found += [n for n in ("run",) if n in trainer.fit_loop.epoch_loop.val_loop.__dict__]
        found += [f"missing step {epochs}"] if trainer.global_step != 3 * epochs else []
    return found


def test_nothing_stays_attached() -> None:
    assert run_ranks(_leftovers, 1) == [[]]


class SkippingSgd(torch.optim.SGD):
    """Leaves out one update on rank 1, as loss scaling does after an overflow."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        if rank_number() == 1 and self.calls == SKIPPED + 1:
            return closure()
        return super().step(closure)


BLOCKS = {"block_size": 3, "block_momentum": 0.5}
SKIPPING = case("skipping", BMUFStrategy, world=2, batches=8, **BLOCKS)


def _fit_skipping() -> Values:
    module = Regression(make_net("mlp"), lambda net: SkippingSgd(net.parameters(), lr=SKIPPING.lr))
    make_trainer(SKIPPING).fit(module, loader(rank_number(), SKIPPING.batches))
    return state_of(module.net)


def test_a_skipped_step_counts() -> None:
    """Ranks count calls: the one that skips stays in step with the others."""
    first, second = run_ranks(_fit_skipping, 2)
    twin = make_twin(SKIPPING)
    for number in range(SKIPPING.batches):
        losses = [loss_on(batch_of(rank, number)) for rank in range(2)]
        if number == SKIPPED:
            losses[1] = _no_loss
        twin.backward(losses)
        twin.step()
    assert difference(first, twin.global_model()) < 1e-10
    assert identical(first, second)


def _no_loss(net: torch.nn.Module) -> Tensor:
    """Not a function of any parameter, but of something with a gradient."""
    return torch.zeros((), requires_grad=True)
