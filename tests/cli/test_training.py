"""Tests of commands that train, such as `fit`: strategies by name, file and class, and errors."""

from __future__ import annotations

import inspect
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import lightning_hier as lh
from lightning_hier import QSR, DiLoCo
from lightning_hier.cli import training
from lightning_hier.cli.lightning_cli import TrainingCLI
from lightning_hier.cli.main import main
from lightning_hier.strategies.registry import PRESETS
from tests.conftest import REPOSITORY
from tests.docs.pages import Page

THIS = "tests/cli/test_training.py"
STRATEGIES = REPOSITORY / "examples" / "strategies"
NET = ["--model=tests.trainer.fitting.Net", "--trainer.accelerator=cpu", "--trainer.devices=2"]


def printed(*args: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    with pytest.raises(SystemExit) as stop:
        main(["fit", *NET, *args, "--print_config"])
    assert stop.value.code == 0
    config: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return config


@pytest.mark.parametrize(
    "args",
    [
        ["--trainer.strategy=bmuf_gtc", "--trainer.strategy.block_size=20"],
        [
            "--trainer.strategy.class_path=lightning_hier.BMUFGTCStrategy",
            "--trainer.strategy.init_args.block_size=20",
        ],
        [f"--trainer.strategy={STRATEGIES}/bmuf_gtc.yaml", "--trainer.strategy.block_size=20"],
    ],
    ids=["name", "class", "file"],
)
def test_strategy_is_named_in_any_way(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    config = printed(*args, capsys=capsys)["trainer"]["strategy"]
    assert config["class_path"] == "lightning_hier.BMUFGTCStrategy"
    assert (config["init_args"]["block_size"], config["init_args"]["density"]) == (20, "auto")


@pytest.mark.parametrize(
    "args",
    [
        ["--config=my.yaml", "--trainer.strategy.block_size=20"],
        ["-c", "my.yaml", "--config=arguments.yaml"],
        ["--config=my.yaml", "--config=class.yaml", "--trainer.strategy.density=auto"],
    ],
    ids=["option", "config", "before_a_class"],
)
def test_strategy_is_named_in_a_config(
    args: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, strategy in {
        "my": "BMUF_GTC",
        "arguments": {"init_args": {"block_size": 20}},
        "class": {
            "class_path": "lightning_hier.BMUFGTCStrategy",
            "init_args": {"block_size": 20, "density": 0.5},
        },
    }.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"trainer": {"strategy": strategy}}))
    merged = printed(*args, capsys=capsys)["trainer"]["strategy"]
    assert merged["class_path"] == "lightning_hier.BMUFGTCStrategy"
    assert (merged["init_args"]["block_size"], merged["init_args"]["density"]) == (20, "auto")


def test_yaml_of_the_docs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = Page.read("docs/running.md").code(f"{THIS}::test_yaml_of_the_docs", "yaml")
    (tmp_path / "my.yaml").write_text(block.text)
    chosen = printed(f"--config={tmp_path}/my.yaml", capsys=capsys)["trainer"]["strategy"]
    assert chosen["class_path"] == "lightning_hier.BMUFGTCStrategy"
    assert chosen["init_args"]["block_size"] == 20


def test_arguments_of_a_strategy_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--trainer.strategy.help=bmuf"])
    assert "block_momentum BLOCK_MOMENTUM" in capsys.readouterr().out


def test_every_preset_has_a_file() -> None:
    composed = {"streaming_diloco"}
    assert {path.stem for path in STRATEGIES.glob("*.yaml")} == set(PRESETS) | composed


def test_file_of_components() -> None:
    path = f"--trainer.strategy={STRATEGIES}/streaming_diloco.yaml"
    rule = "{class_path: lightning_hier.QSR, init_args: {coefficient: 0.1, max_block_size: 500}}"
    sync = "--trainer.strategy.init_args.block_sync.init_args"
    cli = TrainingCLI(["fit", *NET, path, f"{sync}.block_rule={rule}", f"{sync}.weighting=samples"])
    assert cli.trainer.strategy.block_sync == DiLoCo(
        block_size=100,
        fragments=5,
        overlap=10,
        merge=0.5,
        across_dtype="int4",
        block_rule=QSR(coefficient=0.1, max_block_size=500),
        weighting="samples",
    )


OUTER = "{class_path: torch.optim.%s, init_args: {lr: 0.1}}"


def test_outer_optimizer_is_a_class_with_arguments() -> None:
    path, arguments = f"--trainer.strategy={STRATEGIES}/diloco.yaml", "--trainer.strategy.init_args"
    cli = TrainingCLI(["fit", *NET, path, f"{arguments}.outer_optimizer={OUTER % 'AdamW'}"])
    optimizer = cli.trainer.strategy.block_sync.outer_optimizer([torch.nn.Parameter(torch.ones(2))])
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["lr"] == 0.1


@pytest.mark.parametrize("name", PRESETS)
def test_file_has_all_arguments_of_its_preset_with_their_defaults(name: str) -> None:
    strategy = PRESETS[name]
    assert strategy.strategy_name == name
    written = yaml.safe_load((STRATEGIES / f"{name}.yaml").read_text())
    assert written["class_path"] == f"lightning_hier.{strategy.__name__}"
    parameters = list(inspect.signature(strategy.__init__).parameters.values())[1:]
    defaults = {each.name: each.default for each in parameters if each.kind != each.VAR_KEYWORD}
    # Presets pass these on.
    of_all = inspect.signature(lh.HierarchicalStrategy).parameters
    defaults |= {name: of_all[name].default for name in ("ranks_per_device", "timeout")}
    shown = {k: str(v) if isinstance(v, timedelta) else v for k, v in defaults.items()}
    assert written["init_args"] == shown


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--trainer.strategy=bmuf", "--trainer.strategy.block_size=0"], "block_size must be"),
        (["--trainer.strategy=bmuf", "--trainer.strategy.blok_size=3"], "'block_size'?"),
        (
            ["--trainer.strategy=diloco", "--trainer.strategy.init_args.sync_every=3"],
            "'sync_every' is not accepted. It takes group_size, block_size,",
        ),
        (["--trainer.strategy=bmff"], "strategy='bmff'"),
        (["--model=no_such.Net"], "no_such.Net"),
        (["--config=no_such.yaml"], "no_such.yaml"),
    ],
    ids=["value", "argument", "foreign", "strategy", "model", "config"],
)
def test_error_messages_fit_on_a_screen(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", *NET, *args])
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert words in message
    assert len([line for line in message.splitlines() if "Seed set" not in line]) <= 12
    assert "Traceback" not in message


def test_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        main(["fit", *NET])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "jsonargparse" in line and "pip install '.[cli]' in the folder of lightning_hier" in line


USERS_MODULE = """
import torch
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader

class Mine(LightningModule):
    def __init__(self, fails: str = ""):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.fails = fails

    def setup(self, stage):
        if self.fails == "setup":
            raise ValueError("no corpus there")

    def training_step(self, batch, batch_idx):
        if self.fails == "step":
            raise ValueError("shapes differ")
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader(torch.ones(8, 1), batch_size=2)
"""
QUIET = [
    *(f"--trainer.enable_{name}=false" for name in ("progress_bar", "model_summary")),
    *("--trainer.logger=false", "--trainer.enable_checkpointing=false"),
    *("--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.devices=1"),
]


@pytest.fixture
def users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of a user, which is not in the search path of a script."""
    (tmp_path / "mine.py").write_text(USERS_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def test_module_in_the_current_folder_trains(users_folder: Path) -> None:
    main(["fit", "--model=mine.Mine", *QUIET])
    assert Path(sys.modules["mine"].__file__ or "").parent == users_folder


@pytest.mark.usefixtures("users_folder")
def test_error_before_the_first_batch_has_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--model=mine.Mine", "--model.fails=setup", *QUIET])
    assert stop.value.code == 2
    assert "error: no corpus there\n" in capsys.readouterr().err


@pytest.mark.usefixtures("users_folder")
def test_crash_in_training_keeps_its_traceback() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        main(["fit", "--model=mine.Mine", "--model.fails=step", *QUIET])
