"""Tests resumed runs with other ranks, groups or settings: the kept state, and the warnings."""

from __future__ import annotations

import warnings
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, SaveAt, flat, shuffled
from tests.trainer.fitting import (
    AVERAGING,
    BMUF,
    BMUF_GTC,
    GTC,
    HIERARCHICAL,
    make_trainer,
    this_rank,
    weights,
)

ALL_SPARSE = partial(GTC, dense_below=0, of="gradient")


class Watched(DropoutNet):
    """Notes the state at the first batch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.start: dict[str, Any] = {}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if not self.start:
            strategy: Any = self.trainer.strategy
            session = strategy._session
            memory = session.worker.memory.state(session.state.names)
            blocks = session.synchroniser.blocks or []
            self.start = {
                "weights": weights(self),
                "residuals": {name: value.clone() for name, value in memory["residuals"].items()},
                "steps": [vars(count).copy() for count in session.worker.steps],
                "global": deepcopy([block.state()[0]["buckets"] for block in blocks]),
            }


def _only_bucket(blocks: Any) -> dict[str, Any]:
    """The only bucket of a run with one optimizer, one fragment and one dtype."""
    [part] = blocks[0][0]["buckets"]
    bucket: dict[str, Any] = part
    return bucket


def _train(strategy: Any, path: Path | None, save: Path | None, steps: int) -> dict[str, Any]:
    torch.manual_seed(this_rank())
    callbacks = [] if save is None else [SaveAt("on_train_batch_end", steps, save)]
    trainer = make_trainer(strategy(), callbacks=callbacks, max_epochs=-1, max_steps=steps)
    model = Watched()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, shuffled(20), ckpt_path=path)
    warned = [str(one.message) for one in caught if "Resuming" in str(one.message)]
    return {"start": model.start, "warned": warned, "end": weights(model)}


def _go_on(
    tmp_path: Path, before: tuple[int, Any], after: tuple[int, Any], steps: int = 7
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Checkpoint after ``steps`` steps, results of the ranks that saved it, and of the resumed."""
    path = tmp_path / "stopped.ckpt"
    stopped = run_ranks(_train, before[0], before[1], None, path, steps)
    resumed = run_ranks(_train, after[0], after[1], path, None, steps + 4)
    return torch.load(path, weights_only=True), stopped, resumed


def test_bmuf_on_another_number_of_ranks(tmp_path: Path) -> None:
    """The save is in the middle of a block, which ends there."""
    saved, _, resumed = _go_on(tmp_path, (2, BMUF), (3, BMUF))
    file = next(tmp_path.glob("*.ranks/*/rank_00000.pt"))
    part = _only_bucket(torch.load(file, weights_only=True)["blocks"])
    now = flat(saved["state_dict"])
    update = now - part["global_model"]
    eta = 0.75
    for result in resumed:
        start = result["start"]
        assert start["steps"] == [{"total": 7, "in_block": 0, "blocks": 1, "block_size": 0}]
        torch.testing.assert_close(start["weights"], now + eta * update, rtol=1e-6, atol=1e-7)
        assert torch.equal(start["weights"], resumed[0]["start"]["weights"])
        assert torch.equal(start["global"][0][0]["global_model"], now)
        assert start["global"][0][0]["block_momentum"]["block_momentum"] == pytest.approx(eta)
    assert len(resumed[0]["warned"]) == 1
    assert "3 groups of 1 rank instead of 2 of 1" in resumed[0]["warned"][0]
    assert all(not result["warned"] for result in resumed[1:])


def test_update_in_flight_is_applied_on_another_number_of_ranks(tmp_path: Path) -> None:
    """The save is after two blocks and three steps.

    The global model contains the first block. The update of the second block is in flight.
    """
    bmuf, before, after = partial(BMUF, overlap=True), 4, 2
    saved, _, resumed = _go_on(tmp_path, (before, bmuf), (after, bmuf), steps=11)
    file = next(tmp_path.glob("*.ranks/*/rank_00000.pt"))
    part = _only_bucket(torch.load(file, weights_only=True)["blocks"])
    now, eta = flat(saved["state_dict"]), 0.75
    delta = eta * part["update"] + part["in_flight"]
    update = now - (part["global_model"] + delta)
    for result in resumed:
        start = result["start"]
        assert start["steps"] == [{"total": 11, "in_block": 0, "blocks": 2, "block_size": 0}]
        expected = now + eta * update
        torch.testing.assert_close(start["weights"], expected, rtol=1e-6, atol=1e-6)
        assert torch.equal(start["weights"], resumed[0]["start"]["weights"])
        assert torch.equal(start["global"][0][0]["global_model"], now)
        assert start["global"][0][0]["in_flight"] is None
        # The local update is relative to the look-ahead, which already contains Delta.
        assert torch.equal(start["global"][0][0]["block_start"], start["weights"])
    assert "the current block ended after 3 steps" in resumed[0]["warned"][0]


def test_other_exchange_settings(tmp_path: Path) -> None:
    """With the same ranks, the current block ends, and one message names the changed setting."""
    saved, _, resumed = _go_on(tmp_path, (2, BMUF), (2, partial(BMUF, overlap=True)))
    assert "overlap is True instead of " in resumed[0]["warned"][0]
    for result in resumed:
        assert torch.equal(
            result["start"]["global"][0][0]["global_model"], flat(saved["state_dict"])
        )


def test_error_feedback_on_another_number_of_ranks(tmp_path: Path) -> None:
    """Error feedback is lost, because it belongs to the ranks and settings of the previous run."""
    sync = lh.BMUF(block_momentum=0.5, block_size=4, across_density=0.1)
    sparse = partial(HIERARCHICAL, group_size=1, block_sync=sync)
    saved, _, resumed = _go_on(tmp_path, (2, sparse), (3, sparse))
    warning = resumed[0]["warned"][0]
    assert "the error feedback of quantised or sparse updates is lost" in warning
    for result in resumed:
        [[part]] = result["start"]["global"]
        assert torch.equal(part["global_model"], flat(saved["state_dict"]))
        assert not part["error_feedback"]["own"].any()


def test_mean_residual_is_kept(tmp_path: Path) -> None:
    before, after = 2, 3
    _, _, resumed = _go_on(tmp_path, (before, ALL_SPARSE), (after, ALL_SPARSE))
    files = sorted(tmp_path.glob("*.ranks/*/rank_*.pt"))
    assert len(files) == before
    old = [torch.load(file, weights_only=True)["memory"] for file in files]
    for name in old[0]["residuals"]:
        mean = torch.stack([memory["residuals"][name] for memory in old]).double().mean(0)
        assert float(mean.abs().max()) > 0
        new = torch.stack([result["start"]["residuals"][name] for result in resumed])
        torch.testing.assert_close(new.double().mean(0), mean, rtol=1e-5, atol=1e-8)
    assert f"residuals of {before} ranks were redistributed to {after}" in resumed[0]["warned"][0]


def test_other_groups_and_another_placement(tmp_path: Path) -> None:
    """Two groups of two become four groups of one. The shards of a group are concatenated."""
    before = partial(BMUF_GTC, dense_below=0)
    after = partial(before, group_size=1)
    saved, _, resumed = _go_on(tmp_path, (4, before), (4, after), steps=8)
    now = flat(saved["state_dict"])
    for result in resumed:
        assert torch.equal(result["start"]["global"][0][0]["global_model"], now)
    assert "4 groups of 1 rank instead of 2 of 2" in resumed[0]["warned"][0]
    assert resumed[0]["warned"][0].endswith("group_size=2 keeps their groups.")


def test_another_kind_of_block_synchronisation(tmp_path: Path) -> None:
    saved, _, resumed = _go_on(tmp_path, (2, BMUF), (2, AVERAGING))
    for result in resumed:
        assert torch.equal(result["start"]["weights"], flat(saved["state_dict"]))
    assert "block_sync is ModelAveraging instead of BMUF" in resumed[0]["warned"][0]


def test_another_outer_optimizer(tmp_path: Path) -> None:
    """It starts without state."""
    before, after = (
        partial(HIERARCHICAL, group_size=1, block_sync=lh.DiLoCo(block_size=4, outer_optimizer=own))
        for own in (partial(torch.optim.SGD, lr=0.7, momentum=0.9), torch.optim.Adam)
    )
    saved, _, resumed = _go_on(tmp_path, (2, before), (2, after))
    for result in resumed:
        assert torch.equal(result["start"]["weights"], flat(saved["state_dict"]))
    assert "outer_optimizer is Adam instead of SGD" in resumed[0]["warned"][0]
