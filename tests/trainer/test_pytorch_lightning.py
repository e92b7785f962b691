"""Tests that the strategies train under the Trainer of `pytorch_lightning` as under Lightning's."""

from __future__ import annotations

import os
import pickle
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import lightning_hier as lh
from lightning_hier.strategies.registry import PRESETS
from tests.docs.pages import Page
from tests.docs.running import run_code
from tests.ranks import run_ranks
from tests.resume.runs import AMID_ALL, shuffled, validation
from tests.trainer.fitting import all_equal, weights

OTHER = "pytorch_lightning"
DOOR = "lightning_hier.pytorch_lightning"
DOORS = {"lightning.pytorch": "lightning_hier", OTHER: DOOR}
pytest.importorskip(OTHER)


def _module(package: Any) -> Any:
    class Noisy(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(11)
            norm = nn.BatchNorm1d(8)
            self.layers = nn.Sequential(nn.Linear(4, 8), norm, nn.Dropout(0.3), nn.Linear(8, 2))
            self.validated: list[Tensor] = []

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return (self.layers(batch[0]) - batch[1]).square().mean()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.validated.append(weights(self))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.05)

    return Noisy()


def _divided(package: Any) -> Any:
    noisy: Any = type(_module(package))

    class Divided(noisy):
        def configure_model(self) -> None:
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.validated.append(self.layers(torch.ones(1, 4)))

    return Divided()


def _make(door: Any, *, name: str, **settings: Any) -> Any:
    return getattr(door, name)(**settings)


def _fit(name: str, make: Any, folder: Path, ckpt_path: Path | None = None) -> list[Tensor]:
    """Train under the Trainer of a package. What it has validated, and the last model."""
    package, ours = import_module(name), import_module(DOORS[name])
    callbacks: Any = import_module(f"{name}.callbacks")
    saver = callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=AMID_ALL, save_top_k=-1)
    strategy = make(ours)
    divided = isinstance(strategy, lh.HierarchicalModelParallelStrategy)
    trainer = package.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy=strategy,
        max_epochs=2,
        callbacks=[saver] if divided else [saver, callbacks.WeightAveraging()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    module = _divided(package) if divided else _module(package)
    trainer.fit(module, shuffled(5), validation(4), ckpt_path=ckpt_path)
    return [*module.validated, *([] if divided else [weights(module)])]


# Class and settings.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bmuf_gtc": ("BMUFGTCStrategy", {"group_size": 2, "block_size": 4, "density": 0.2}),
    "bmuf_adam_fsdp": ("BMUFAdamFSDPStrategy", {"group_size": 2, "block_size": 4}),
    "psp": ("PSPStrategy", {}),
}


def _compare(folder: Path) -> list[tuple[Any, ...]]:
    results = []
    for case, (name, settings) in CASES.items():
        make = partial(_make, name=name, warmup_steps=0, **settings)
        first, second = (_fit(package, make, folder / case / package) for package in DOORS)
        saved = folder / case / OTHER / f"step={AMID_ALL}.ckpt"
        resumed = [] if case == "psp" else _fit(OTHER, make, folder / case / "resumed", saved)
        results.append((first, second, resumed))
    return results


def test_both_packages_train_validate_and_resume_alike(tmp_path: Path) -> None:
    by_rank = run_ranks(_compare, 4, tmp_path)
    for case, *results in zip(CASES, *by_rank, strict=True):
        for first, second, resumed in results:
            assert len(first) == len(second) >= 2
            # Servers add gradients in the order in which they arrive.
            alike = torch.allclose if case == "psp" else torch.equal
            assert all(map(alike, first, second)), case
            # It was saved in the second epoch.
            assert all(map(torch.equal, resumed, second[-len(resumed) :] if resumed else [])), case
        assert all(all_equal(models) for models in zip(*(own[1] for own in results), strict=True))


@pytest.mark.parametrize("name", PRESETS)
def test_the_trainer_finds_names_and_the_classes_are_those_of_the_package(name: str) -> None:
    ours, package = import_module(DOOR), import_module(OTHER)
    for ending in ("", "_find_unused_parameters_true"):
        trainer = package.Trainer(strategy=name + ending, accelerator="cpu", devices=2)
        assert type(trainer.strategy) is getattr(ours, PRESETS[name].__name__)
        assert isinstance(trainer.strategy, PRESETS[name])
    made = pickle.loads(pickle.dumps(type(trainer.strategy)(warmup_steps=3)))
    assert made.warmup_steps == 3
    kinds = [kind.__module__.split(".")[0] for kind in type(made).__mro__]
    assert OTHER in kinds
    assert "lightning" not in kinds


def test_a_strategy_of_the_other_package_is_an_error_that_says_what_to_import() -> None:
    for package, door in DOORS.items():
        (other,) = set(DOORS.values()) - {door}
        strategy = import_module(other).BMUFStrategy()
        with pytest.raises((TypeError, ValueError), match=f"import it from {door} for that of"):
            import_module(package).Trainer(strategy=strategy, accelerator="cpu", devices=2)


def test_the_command_line_of_the_package_reads_settings(tmp_path: Path) -> None:
    cli: Any = import_module(f"{OTHER}.cli")
    module = import_module(f"{OTHER}.demos.boring_classes").BoringModel
    arguments = {"accelerator": "cpu", "devices": 2, "default_root_dir": str(tmp_path)}
    arguments["strategy"] = {
        "class_path": f"{DOOR}.BMUFGTCStrategy",
        "init_args": {"block_size": 3, "find_unused_parameters": True},
    }
    made = cli.LightningCLI(module, run=False, args={"trainer": arguments})
    assert made.trainer.strategy.block_sync.block_size == 3
    assert made.trainer.strategy.of_ddp["find_unused_parameters"] is True


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (OTHER, f"{OTHER}.__version__"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, DOOR, raising=False)
    with pytest.raises(ImportError, match=r"pip install 'pytorch-lightning>=2\.6"):
        import_module(DOOR)


def test_the_page() -> None:
    test = "tests/trainer/test_pytorch_lightning.py::test_the_page"
    run_code([block.text for block in Page.read("docs/basics.md").code(test)], {})
