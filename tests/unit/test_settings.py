"""Settings and strategies refuse bad values. The message has the name, the rule and the value."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from datetime import timedelta
from typing import Any, cast

import pytest
import torch

import lightning_hier as lh
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.gradients.gradient_sync import GradientSync


class _Decaying(torch.optim.SGD):
    """Keeps a state in its settings, which would start anew at every step of a range."""

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["lr"] *= 0.5
        return super().step(closure)


BAD_VALUES: list[tuple[type, str, list[Any], str]] = [
    (lh.GTC, "threshold", [0, -1.0, math.nan, math.inf, "big", None], "'auto' or a finite number"),
    (lh.GTC, "density", [0.0, 1.0, -0.1, 2, math.nan, "few"], "between 0 and 1"),
    (lh.GTC, "dense_below", [-1, 1.5, "none"], "a whole number of at least 0"),
    (lh.BMUF, "block_size", [0, -5, 2.5, "10"], "a whole number of at least 1"),
    (lh.BMUF, "block_momentum", [-0.1, 1.0, 1, math.nan, "high", None], r"'auto' or lie in \[0, 1"),
    (lh.BMUF, "block_lr", [0, -1.0, math.inf, math.nan, "fast"], "a finite number above 0"),
    (lh.BMUF, "c", [0.5, math.inf, math.nan, "one"], "a finite number of at least 1"),
    (lh.BMUF, "local_momentum", ["drop", None], "one of 'auto', 'reset', 'keep', 'average'"),
    (lh.BMUF, "across", ["ring", None], "one of 'auto', 'leader', 'sharded'"),
    (lh.BMUF, "across_dtype", ["float8", None], "one of 'same', 'bfloat16', 'int8', 'int4'"),
    (lh.BMUF, "across_density", [0, 1.5, "few", None], "above 0 and at most 1"),
    (lh.BMUF, "overlap", [-1, 2.5, "yes", None], "a whole number of at least 0"),
    (lh.BMUF, "fragments", [0, 1.5, True], "a whole number of at least 1"),
    (lh.BMUF, "merge", [-0.1, 1.5, "mean", None, True], r"'progress' or a number in \[0, 1\]"),
    (lh.BMUF, "weighting", ["tokens", None, True], "one of 'equal', 'samples'"),
    (lh.BMUFAdam, "moments_every", [0, None], "a whole number of at least 1"),
    (lh.BMUFAdam, "local_beta1", [1.0, -0.1, True, "lower", None], "'auto', 'keep' or lie in"),
    (lh.BMUF, "update_from", ["mean"], "one of 'global', 'start'"),
    (lh.BMUFAdam, "moments", ["drop", None], "one of 'corrected', 'average'"),
    (lh.DiLoCo, "outer_lr", [0, -0.7, math.nan, "fast"], "a finite number above 0"),
    (lh.DiLoCo, "outer_momentum", [-0.1, 1.0, "high", None], r"'auto' or lie in \[0, 1"),
    (lh.DiLoCo, "nesterov", [1, None], "True or False"),
    (lh.DiLoCo, "outer_optimizer", [torch.optim.LBFGS, torch.optim.Muon], "make an optimizer"),
    (lh.DiLoCo, "outer_optimizer", [0.7], "be callable with parameters"),
    (lh.DiLoCo, "outer_optimizer", [torch.optim.Adafactor], "treat each element by itself"),
    (lh.DiLoCo, "outer_optimizer", [_Decaying], "keep all its state in `state`"),
    (lh.CommHook, "hook", [None, "allreduce_hook"], "callable"),
]


@pytest.mark.parametrize(("settings", "name", "values", "rule"), BAD_VALUES)
def test_bad_value_is_refused(settings: type, name: str, values: list[Any], rule: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=rf"{name} must .*{rule}") as caught:
            settings(**{name: value})
        assert repr(value) in str(caught.value)


def test_arguments_of_the_outer_sgd_have_no_effect_on_another_optimizer() -> None:
    for name, value in (("outer_lr", 0.3), ("outer_momentum", 0.5), ("nesterov", False)):
        settings: dict[str, Any] = {"outer_optimizer": torch.optim.AdamW, name: value}
        with pytest.raises(ValueError, match=f"{name} has no effect.*got {name}={value}"):
            lh.DiLoCo(**settings)


def test_automatic_outer_momentum_needs_a_small_rate() -> None:
    with pytest.raises(ValueError, match=r"outer_momentum='auto' gives .* -1 .*at most 4, or set"):
        lh.DiLoCo(outer_momentum="auto", outer_lr=8.0).check_models(4)


CLASSES = [
    *[lh.GTC, lh.CommHook, lh.ModelAveraging, lh.BMUF, lh.BMUFAdam, lh.HierarchicalStrategy],
    *[lh.GTCStrategy, lh.ModelAveragingStrategy, lh.BMUFStrategy, lh.BMUFAdamStrategy],
    *[lh.DiLoCo, lh.DiLoCoStrategy, lh.BMUFGTCStrategy, lh.TwoStageASGDStrategy, lh.PSPStrategy],
]


def _annotated(kind: Any, *types: str) -> list[str]:
    """Arguments whose annotation names one of the types."""
    parameters = inspect.signature(kind).parameters.values()
    return [own.name for own in parameters if {*re.findall(r"\w+", str(own.annotation))} & {*types}]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_booleans_are_no_numbers_and_numbers_no_booleans(kind: Any) -> None:
    """Every argument of every class checks its type."""
    needed = {"hook": print} if kind is lh.CommHook else {}
    numbers = _annotated(kind, "int", "float", "GroupSize")
    assert numbers
    for name in numbers:
        for truth in (True, False) if name != "overlap" else ():
            with pytest.raises(ValueError, match=rf"{name}.* must .*, got {truth}(;|$)"):
                kind(**needed, **{name: truth})
    for name in _annotated(kind, "bool"):
        for no_flag in (1, 0, "false", None) if name != "overlap" else ():
            with pytest.raises(ValueError, match=f"{name} must be True or False, got {no_flag!r}$"):
                kind(**{name: no_flag})


STRATEGIES = [kind for kind in CLASSES if kind.__name__.endswith("Strategy")]


@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.__name__)
def test_timeout_is_a_timedelta_above_zero(kind: Any) -> None:
    for value in (60, 60.0, "60", True, timedelta(0), timedelta(seconds=-1)):
        with pytest.raises(ValueError, match=r"timeout must .*timedelta\(seconds=60\)") as caught:
            kind(timeout=value)
        assert str(caught.value).endswith(f"got {value!r}")
    kind(timeout=None)
    kind(timeout=timedelta(seconds=60))


@pytest.mark.parametrize("name", ["fragments", "overlap"])
def test_a_block_is_long_enough_for_its_fragments_and_its_delay(name: str) -> None:
    message = f"{name} must be at most block_size, got {name}=5 and block_size=4"
    with pytest.raises(ValueError, match=message):
        lh.DiLoCo(block_size=4, **{name: 5})
    automatic = lh.DiLoCo(block_size="auto", **{name: 5})
    assert automatic.resolved(80, 4).steps == 5
    assert automatic.resolved(1000, 4).steps == 12


def test_what_an_overlap_of_a_whole_block_rules_out() -> None:
    for overlap in (True, 4):
        with pytest.raises(ValueError, match="would give up every step: pass a shorter overlap"):
            lh.DiLoCo(block_size=4, overlap=overlap, merge=0.0)
    for settings in (lh.BMUF, lh.ModelAveraging):
        with pytest.raises(ValueError, match="overlap=True can't be combined.*'reset' or 'keep'"):
            settings(overlap=True, local_momentum="average")


@pytest.mark.parametrize(
    "settings",
    [lh.AllReduce(), lh.GTC(), lh.ModelAveraging(), lh.BMUF(), lh.BMUFAdam(), lh.DiLoCo()],
    ids=lambda settings: type(settings).__name__,
)
def test_settings_are_frozen_and_have_only_keyword_arguments(settings: Any) -> None:
    assert isinstance(settings, (GradientSync, BlockSync))
    for field in dataclasses.fields(settings):
        assert field.kw_only
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, field.name, 1)
    with pytest.raises(TypeError):
        cast(Any, type(settings))(1)


BAD_ARGUMENTS: list[tuple[str, Any, str]] = [
    ("group_size", 0, "'node', 'world' or a whole number of at least 1, got 0"),
    ("group_size", 2.0, "'node', 'world' or a whole number of at least 1, got 2.0"),
    ("warmup_steps", -1, "a whole number of at least 0, got -1"),
    ("gradient_sync", "gtc", "must be AllReduce.*got 'gtc'"),
    ("gradient_sync", lh.BMUF(), "must be AllReduce.*got BMUF"),
    ("block_sync", "bmuf", "must be None, ModelAveraging.*got 'bmuf'"),
    ("block_sync", lh.GTC(), "must be None, ModelAveraging.*got GTC"),
    ("block_sync", [lh.BMUF(), lh.DiLoCo()], "must be .*, one for all optimizers, got .BMUF"),
    ("process_group", object(), "can't be set.*use group_size"),
    ("ddp_comm_hook", print, "can't be set.*gradient_sync=CommHook"),
    ("ddp_comm_state", object(), "can't be set.*gradient_sync=CommHook"),
    ("model_averaging_period", 4, "can't be set, got 4.*block_sync=ModelAveraging"),
    ("static_graph", True, "can't be set.*Leave it out.*find_unused_parameters=True"),
    ("skip_all_reduce_unused_params", True, "can't be set.*Leave it out"),
]


@pytest.mark.parametrize(("name", "value", "rule"), BAD_ARGUMENTS)
def test_strategy_refuses_at_construction(name: str, value: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} .*{rule}|{name} {rule}"):
        lh.HierarchicalStrategy(**{name: value})


def test_gtc_refuses_bucket_views_with_unused_parameters() -> None:
    options = {"gradient_as_bucket_view": True, "find_unused_parameters": True}
    with pytest.raises(ValueError, match="gradient_as_bucket_view=True can't be.*Leave out"):
        lh.GTCStrategy(**options)
    lh.HierarchicalStrategy(**options)
    for name in options:
        lh.GTCStrategy(**{name: True})
