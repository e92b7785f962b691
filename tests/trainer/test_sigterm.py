"""SIGTERM on one rank stops all of them together, at their next synchronisation."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit


class _Signalled(Net):
    """One rank receives the signal in the middle of its first block."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if int(os.environ["RANK"]) == 2 and batch_idx == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(batch, batch_idx)


def _signalled(group_size: int) -> tuple[int, torch.Tensor, bool]:
    strategy = lh.BMUFGTCStrategy(group_size=group_size, block_size=4, nesterov=False)
    model = _Signalled()
    raised = False
    try:
        fit(strategy, 20, model)
    except SIGTERMException:
        raised = True
    return len(model.seen), model.seen[-1], raised


@pytest.mark.parametrize("group_size", [1, 2])
def test_all_ranks_stop_at_the_next_synchronisation(group_size: int) -> None:
    results = run_ranks(_signalled, 4, group_size)
    assert [steps for steps, _, _ in results] == [4] * 4
    assert all(torch.equal(weights, results[0][1]) for _, weights, _ in results)
    assert len({raised for _, _, raised in results}) == 1
