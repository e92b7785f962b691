"""Checkpoints of Fabric: exact with the same groups, from the global model elsewhere."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision
from torch import Tensor, nn

import lightning_hier as lh
from tests.fabric.loops import FabricLoop
from tests.loop.loops import flat, network, normed
from tests.ranks import run_ranks

ADAM = {"block_sync": lh.BMUFAdam(block_size=4), "warmup_steps": 2}
GTC = lh.GTC(density=0.2, dense_below=10)


def state_of(run: FabricLoop, step: int = 0) -> dict[str, Any]:
    return {"model": run.model, "optimizer": run.optimizer, "step": step}


def after_steps(run: FabricLoop, steps: int) -> Tensor:
    rows = []
    for _ in range(steps):
        run.train(1)
        rows.append(run.weights())
    return torch.stack(rows)


def continued(path: str, group_size: int, **settings: Any) -> tuple[Tensor, Tensor]:
    """Weights after each step of the uninterrupted and of the resumed run."""
    run = FabricLoop(group_size, make_module=normed, **settings)
    run.train(7)
    run.fabric.save(path, state_of(run, 7))
    uninterrupted = after_steps(run, 6)
    again = FabricLoop(group_size, make_module=normed, **settings)
    state = state_of(again)
    assert again.fabric.load(path, state) == {}
    again.done = state["step"]
    return uninterrupted, after_steps(again, 6)


def test_a_loaded_run_continues_bit_for_bit(tmp_path: Path) -> None:
    """In the middle of a block."""
    path = tmp_path / "a.ckpt"
    path.with_name("a.ckpt.ranks").joinpath("older").mkdir(parents=True)
    sync = lh.BMUF(block_size=3)
    settings: dict[str, Any] = {"block_sync": sync, "gradient_sync": GTC, "warmup_steps": 2}
    for uninterrupted, resumed in run_ranks(continued, 4, str(path), 2, **settings):
        assert torch.equal(uninterrupted, resumed)
    assert len(os.listdir(tmp_path / "a.ckpt.ranks")) == 1


def scaled(path: str) -> list[Any]:
    """State of the loss scale when the run was saved, and when it has resumed."""

    def new() -> FabricLoop:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        plugins = [MixedPrecision("16-mixed", "cpu", scaler)]
        return FabricLoop(1, fabric={"plugins": plugins}, **ADAM)

    run = new()
    run.train(3)
    if run.rank == 1:  # this group alone skips a step
        run.fabric.backward(run.model(torch.ones(6, 4)).sum() * torch.inf)
        run.optimizer.step()
        run.optimizer.zero_grad()
    else:
        run.train(1)
    run.fabric.save(path, state_of(run))
    again = new()
    again.fabric.load(path, state_of(again))
    strategies: Any = [each.fabric.strategy for each in (run, again)]
    return [strategy.precision.state_dict() for strategy in strategies]


def test_loss_scale_of_each_group_is_that_of_its_ranks(tmp_path: Path) -> None:
    outcomes = run_ranks(scaled, 2, str(tmp_path / "a.ckpt"))
    assert [saved["scale"] for saved, _ in outcomes] == [1024.0, 512.0]
    for saved, resumed in outcomes:
        assert resumed == saved


def saved(path: str) -> Tensor:
    run = FabricLoop(2, **ADAM)
    run.train(7)
    run.fabric.save(path, state_of(run, 7))
    strategy: Any = run.fabric.strategy
    with strategy.global_model():
        return run.weights()


def saved_in_evaluation(path: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    run = FabricLoop(1, **ADAM)
    run.train(3)
    strategy: Any = run.fabric.strategy
    before = run.weights()
    with strategy.global_model():
        seen = run.weights()
        run.fabric.save(path, state_of(run))
        return before, seen, run.weights(), torch.load(path, weights_only=True)["model"]["0.weight"]


def test_save_in_evaluation_leaves_the_global_model_in_place(tmp_path: Path) -> None:
    for local, seen, after, saved in run_ranks(saved_in_evaluation, 2, str(tmp_path / "a.ckpt")):
        assert torch.equal(after, seen) and not torch.equal(after, local)
        assert torch.equal(saved.reshape(-1), seen[: saved.numel()])


def elsewhere(path: str) -> tuple[Tensor, list[str]]:
    run = FabricLoop(1, **ADAM)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.fabric.load(path, state_of(run))
    strategy: Any = run.fabric.strategy
    with strategy.global_model():
        return run.weights(), [str(warning.message) for warning in caught]


def by_plain_fabric(path: str) -> tuple[int, Tensor]:
    """Load without a strategy of this package, also into an optimizer."""
    fabric = Fabric(accelerator="cpu", devices=1)
    module = network()
    model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters()))
    state = {"model": model, "optimizer": optimizer, "step": 0}
    fabric.load(path, state)
    return state["step"], flat(module)


def test_other_ranks_and_plain_fabric_start_from_the_global_model(tmp_path: Path) -> None:
    path = str(tmp_path / "a.ckpt")
    [expected, *_] = run_ranks(saved, 4, path)
    outcomes = run_ranks(elsewhere, 2, path)
    for loaded, _ in outcomes:
        torch.testing.assert_close(loaded, expected, rtol=1e-6, atol=1e-7)
    assert "2 groups of 1 rank instead of 2 of 2. Therefore" in " ".join(outcomes[0][1])
    [(step, loaded)] = run_ranks(by_plain_fabric, 1, path)
    assert step == 7 and torch.equal(loaded, expected)


def from_weights(path: str, folder: str) -> Tensor:
    """Start from a checkpoint of a Trainer, and refuse it after steps."""
    run = FabricLoop(1, **ADAM)
    run.fabric.load(path, {"model": run.model})
    loaded = run.weights()
    run.train(1)
    with pytest.raises(RuntimeError, match="load it before training"):
        run.fabric.load(path, {"model": run.model})
    run.fabric.save(f"{folder}/b.ckpt", state_of(run))
    return loaded


def without_folder(path: str) -> None:
    run = FabricLoop(1, **ADAM)
    run.fabric.load(path, state_of(run))


def test_checkpoints_of_others_and_incomplete_ones(tmp_path: Path) -> None:
    torch.manual_seed(1)
    weights = {name: torch.randn_like(value) for name, value in network().state_dict().items()}
    of_trainer = {"format": 1, "save": "1"}
    torch.save({"model": weights, "lightning_hier": of_trainer}, tmp_path / "a.ckpt")
    expected = torch.cat([value.reshape(-1) for value in weights.values()])
    for loaded in run_ranks(from_weights, 2, str(tmp_path / "a.ckpt"), str(tmp_path)):
        assert torch.equal(loaded, expected)
    (tmp_path / "b.ckpt.ranks").rename(tmp_path / "elsewhere")
    for error in run_ranks(without_folder, 2, str(tmp_path / "b.ckpt"), expect_failure=True):
        assert "DamagedFileError" in error and "is incomplete" in error


def half_frozen() -> nn.Module:
    module = network()
    module[0].requires_grad_(False)
    return module


def bytes_of_run(path: str) -> list[float]:
    """Bytes across groups, without and with a checkpoint of plain Fabric."""
    sync, sent = lh.BMUF(block_size=2), list[float]()
    for loaded in ("", path):
        run = FabricLoop(1, make_module=half_frozen, block_sync=sync, warmup_steps=0)
        if loaded:
            run.fabric.load(loaded, {"model": run.model})
        run.train(4)
        strategy: Any = run.fabric.strategy
        sent.append(strategy.blocks[0].traffic.total("across").payload_bytes)
    return sent


def test_frozen_parameters_of_a_checkpoint_are_not_sent(tmp_path: Path) -> None:
    weights = {name: torch.randn_like(value) for name, value in network().state_dict().items()}
    torch.save({"model": weights}, tmp_path / "a.ckpt")
    for without, loaded in run_ranks(bytes_of_run, 2, str(tmp_path / "a.ckpt")):
        assert without == loaded
