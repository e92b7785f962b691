"""Tests that configs of the examples parse, name their strategy and give models of their size."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
import torch
import yaml

from examples.acoustic.model import LSTMAcousticModel
from tests.examples.command_lines import EXAMPLES, printed_config, strategy_of


@dataclass(frozen=True)
class Expected:
    """Strategy of a config, number of parameters of its model, and sizes from its data."""

    strategy: str = "auto"
    parameters: int | None = None
    sizes: tuple[tuple[str, int], ...] = ()


def expected(strategy: str = "auto", parameters: int | None = None, **sizes: int) -> Expected:
    return Expected(strategy, parameters, tuple(sizes.items()))


BMUF_ADAM = "lightning_hier.BMUFAdamStrategy"
EXPECTED = {
    "acoustic/an4_bmuf_gtc": expected("lightning_hier.BMUFGTCStrategy"),
    "acoustic/an4_ddp": expected("ddp"),
    "acoustic/an4_lstm": expected(),
    "acoustic/synthetic_lstm": expected(),
    "image/digits": expected("auto", 19_706),
    "language/tiny_stdlib": expected(BMUF_ADAM, 230_016, vocabulary=257, context=128),
    # 3.2M and 3,839 more tokens
    "language/small": expected(BMUF_ADAM, 4_262_144, vocabulary=4096, context=256),
    "language/gpt2": expected("lightning_hier.HierarchicalStrategy", 123_587_328, context=1024),
    "language/1b": expected("lightning_hier.BMUFAdamFSDPStrategy", 1_013_786_624, context=2048),
    "ocr/oldbooks_adam": expected("auto", 127_384),
    "ocr/oldbooks_bmuf_adam": expected(BMUF_ADAM, 127_384),
    "ocr/oldbooks_small": expected("auto", 299_984),
    "ocr/rendered": expected("auto", 299_984),
}


def test_every_config_is_tested() -> None:
    names = {f"{p.parents[1].name}/{p.stem}" for p in EXAMPLES.glob("*/configs/*.yaml")}
    assert names == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_config_parses_and_has_its_size(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    example, _, stem = name.partition("/")
    path, entry = EXAMPLES / example / "configs" / f"{stem}.yaml", EXPECTED[name]
    printed = printed_config(path, capsys)
    assert strategy_of(printed) == entry.strategy
    if entry.parameters is None:
        return
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    module, _, kind = config["model"]["class_path"].rpartition(".")
    with torch.device("meta"):
        model = getattr(import_module(module), kind)(
            **{**dict(entry.sizes), **config["model"]["init_args"]}
        )
    assert sum(parameter.numel() for parameter in model.parameters()) == entry.parameters
    if example == "language":
        assert printed["trainer"]["gradient_clip_val"] == 1.0
    if example == "ocr":
        assert model.height == config["data"]["init_args"]["height"]


def test_error_names_sizes_that_are_not_given() -> None:
    with pytest.raises(ValueError, match="num_senones of LSTMAcousticModel must be given"):
        LSTMAcousticModel(feature_dim=4).configure_model()
