"""Tests that examples of README.md and pages of docs train, or make what they say."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lightning_hier
from tests.docs.pages import Page
from tests.docs.running import run_code, small_trainer
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, weights

PAGES = ("README.md", "docs/checkpoints.md", "docs/faults.md")
THIS = "tests/docs/test_snippets.py"


def _trained(folder: str, blocks: dict[str, list[str]]) -> dict[str, tuple[list[float], int]]:
    """Weights and steps after the blocks of every page."""
    names = {
        "Trainer": small_trainer,
        "ModelCheckpoint": ModelCheckpoint,
        "lightning_hier": lightning_hier,
        "os": os,
        "timedelta": timedelta,
    }
    trained = {}
    for page, code in blocks.items():
        os.chdir(Path(folder) / Path(page).stem)
        namespace = run_code(code, names | {"model": Net(optimizer="AdamW"), "data": loader(4)})
        steps = namespace["trainer"].global_step
        trained[page] = (weights(namespace["model"]).tolist(), steps)
    return trained


def test_pages_train(tmp_path: Path) -> None:
    blocks = {
        page: [block.text for block in Page.read(page).code(f"{THIS}::test_pages_train")]
        for page in PAGES
    }
    assert [len(code) for code in blocks.values()] == [1, 1, 1]
    for page in PAGES:
        (tmp_path / Path(page).stem).mkdir()
    first, second = run_ranks(_trained, 2, str(tmp_path), blocks, ranks_per_node=1)
    assert first == second
    assert {steps for _, steps in first.values()} == {4}


def _looped(folder: str, code: str) -> list[float]:
    """Weights after the loop of a page, over three batches of this rank."""
    os.chdir(folder)
    model = Net()
    rows = TensorDataset(torch.randn(48, 4), torch.randn(48, 2))
    sampler: DistributedSampler[Any] | None = None
    if "fabric" not in code:  # Fabric creates the process group, and divides the data
        dist.init_process_group("gloo")
        sampler = DistributedSampler(rows)
    names = {
        "DistributedDataParallel": DistributedDataParallel,
        "lightning_hier": lightning_hier,
        "loader": DataLoader(rows, batch_size=8, sampler=sampler),
        "loss": torch.nn.functional.mse_loss,
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1),
        "torch": torch,
        "validate": lambda _: None,
    }
    run_code([code.replace("% 1000", "% 2")], names)
    return weights(model).tolist()


@pytest.mark.parametrize(
    ("page", "loops"), [("README.md", 2), ("docs/loop.md", 1), ("docs/fabric.md", 1)]
)
def test_loops(page: str, loops: int, tmp_path: Path) -> None:
    blocks = Page.read(page).code(f"{THIS}::test_loops")
    assert len(blocks) == loops
    for block in blocks:
        first, second = run_ranks(_looped, 2, str(tmp_path), block.text, ranks_per_node=1)
        assert first == second
    code = " ".join(block.text for block in blocks)
    assert (tmp_path / "checkpoints/2/.metadata").exists() == ("dcp" in code)
    assert (tmp_path / "checkpoints/2.ckpt").exists() == ("fabric.save" in code)


def _three_ways(ways: list[str]) -> list[list[float]]:
    """Weights of each way after an epoch."""
    found = []
    for code in ways:
        model = Net(optimizer="AdamW")
        data = loader(4)
        if "init_process_group" in code:  # the ways before have created it
            code = code.replace("torch.distributed.init_process_group()", "")
            sampler: DistributedSampler[Any] = DistributedSampler(data.dataset)
            data = DataLoader(data.dataset, batch_size=data.batch_size, sampler=sampler)
        names = {
            "data": data,
            "loss": lambda model, batch: model.loss(batch),
            "model": model,
            "optimizer": model.configure_optimizers(),
            "torch": torch,
        }
        run_code([code], names)
        found.append(weights(model).tolist())
    return found


def test_three_ways() -> None:
    ways = [block.text for block in Page.read("docs/basics.md").code(f"{THIS}::test_three_ways")]
    assert len(ways) == 3
    first, second = run_ranks(_three_ways, 2, ways, ranks_per_node=1)
    assert first == second
    assert first[0] != weights(Net()).tolist()


def test_registered_name() -> None:
    (block,) = Page.read("docs/compatibility.md").code(f"{THIS}::test_registered_name")
    strategy = run_code([block.text], {"Trainer": Trainer})["trainer"].strategy
    assert isinstance(strategy, lightning_hier.BMUFAdamStrategy)
    assert strategy.block_sync is not None and strategy.block_sync.block_size == 20


def _muon_trained(code: str) -> tuple[list[float], list[float]]:
    namespace = run_code([code], {"Net": Net, "torch": torch, "Trainer": small_trainer})
    model = namespace["Model"]()
    namespace["trainer"].fit(model, loader(4))
    return weights(Net()).tolist(), weights(model).tolist()


def test_muon() -> None:
    (block,) = Page.read("docs/basics.md").code(f"{THIS}::test_muon")
    first, second = run_ranks(_muon_trained, 2, block.text, ranks_per_node=1)
    assert first == second
    assert first[0] != first[1]


def test_yaml(tmp_path: Path) -> None:
    """The YAML gives the strategy with the settings that it names."""
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI

    (block,) = Page.read("docs/running.md").code(f"{THIS}::test_yaml", "yaml")
    settings: dict[str, Any] = yaml.safe_load(block.text)
    settings["trainer"] |= {"accelerator": "cpu", "devices": 4, "logger": False}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(settings))
    cli = LightningCLI(Net, save_config_callback=None, run=False, args=[f"--config={config}"])
    strategy = cli.trainer.strategy
    assert type(strategy) is lightning_hier.HierarchicalStrategy
    assert strategy.group_size == 4
    assert strategy.gradient_sync == lightning_hier.GTC(density=0.01)
    assert strategy.block_sync == lightning_hier.BMUF(block_size=50)
