"""The error of an unknown argument suggests the right name, also for names of other packages."""

from __future__ import annotations

from typing import Any, cast

import pytest

import lightning_hier as lh
from lightning_hier.comm.gradients.gradient_sync import GradientSync


@pytest.mark.parametrize(
    ("settings", "given", "meant"),
    [
        (lh.BMUF, "blok_size", "block_size"),
        (lh.BMUFAdam, "moment", "moments"),
        (lh.ModelAveraging, "local_momentm", "local_momentum"),
        (lh.GTC, "denisty", "density"),
        (lh.CommHook, "byte_per_element", "bytes_per_element"),
    ],
)
def test_error_of_a_misspelt_name_suggests_the_right_one(
    settings: Any, given: str, meant: str
) -> None:
    expected = rf"{settings.__name__} has no argument {given!r}: did you mean {meant!r}.*It takes "
    with pytest.raises(TypeError, match=expected):
        settings(**{given: 3})


FOREIGN: list[tuple[Any, str, str]] = [
    *[(lh.DiLoCo, name, "'block_size' here") for name in ("sync_every", "H", "period")],
    (lh.DiLoCo, "tau", "'block_size' or 'overlap' here"),
    (lh.DiLoCo, "slowmo-momentum", "'outer_momentum' here"),
    (lh.DiLoCo, "block_lr", "'outer_lr' here"),
    (lh.DiLoCo, "num_fragments", "'fragments' here"),
    (lh.DiLoCo, "fragment_update_alpha", "'merge' here"),
    (lh.DiLoCoStrategy, "alpha", "'merge' here, and is an argument of Model.*DiLoCo"),
    (lh.DiLoCoStrategy, "merge", r"pass it as in .*block_sync=DiLoCo\(merge=\.\.\.\)\)"),
    (lh.BMUFStrategy, "merge", r"pass it as in .*block_sync=BMUF\(merge=\.\.\.\)\)"),
    (lh.BMUFAdam, "K_v", "'moments_every' here"),
    (lh.BMUF, "outer_lr", "'block_lr' here"),
    (lh.BMUFAdam, "diloco_outer_momentum", "'block_momentum' here"),
    (lh.ModelAveraging, "should_quantize", "'across_dtype' here"),
    (lh.ModelAveraging, "start_localSGD_iter", "'warmup_steps' here, and is .* of the strategy"),
    (lh.BMUF, "group_size", "an argument of the strategy"),
    (lh.DiLoCoStrategy, "diloco_sync_period", "'block_size' here"),
    (lh.BMUFStrategy, "fragment_sync_delay", "'overlap' here"),
    (lh.TwoStageASGDStrategy, "period", "'push_period' here"),
    (lh.HierarchicalStrategy, "block_momentum", "an argument of BMUF, BMUFAdam"),
    (lh.HierarchicalStrategy, "sync_every", "'block_size' here, and is an argument of Model.*DiL"),
    (lh.HierarchicalModelParallelStrategy, "gradient_sync", "of HierarchicalStrategy.*across_dtyp"),
    (lh.HierarchicalStrategy, "slowmo-base-algorithm", "'block_sync' here"),
]


@pytest.mark.parametrize(("kind", "given", "ours"), FOREIGN)
def test_error_of_a_name_of_another_package_suggests_ours(kind: Any, given: str, ours: str) -> None:
    expected = rf"^{kind.__name__} has no argument {given!r}: it is.*{ours}.*\. It takes "
    with pytest.raises(TypeError, match=expected):
        kind(**{given: 3})


def test_settings_without_arguments_take_none() -> None:
    for settings in (lh.AllReduce, GradientSync):
        with pytest.raises(TypeError, match=r"has no argument 'block'\. It takes none"):
            cast(Any, settings)(block=3)


@pytest.mark.parametrize(
    "preset",
    [
        lh.GTCStrategy,
        lh.ModelAveragingStrategy,
        lh.BMUFStrategy,
        lh.BMUFAdamStrategy,
        lh.BMUFGTCStrategy,
        lh.TwoStageASGDStrategy,
        lh.PSPStrategy,
    ],
)
def test_misspelt_argument_is_refused_at_construction(preset: Any) -> None:
    with pytest.raises(TypeError, match="no argument 'dens.*[?.] It takes .*warmup_steps"):
        preset(denses_below=3)
    with pytest.raises(TypeError, match="'warm_up_steps': did you mean 'warmup_steps'[?] It takes"):
        preset(warm_up_steps=3)
    with pytest.raises(TypeError, match="did you mean 'find_unused_parameters'"):
        preset(find_unused_parameter=True)
