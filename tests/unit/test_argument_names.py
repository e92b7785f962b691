"""The error of an unknown argument suggests the right name, or lists those there are."""

from __future__ import annotations

from typing import Any, cast

import pytest

import lightning_hier as lh
from lightning_hier.comm.gradients.gradient_sync import GradientSync

UNKNOWN: list[tuple[Any, str, str]] = [
    (lh.BMUF, "blok_size", "'blok_size': did you mean 'block_size'.*It takes "),
    (lh.GTC, "denisty", "'denisty': did you mean 'density'.*It takes "),
    (lh.CommHook, "byte_per_element", "did you mean 'bytes_per_element'"),
    (lh.DiLoCoStrategy, "merge", r"'merge'\. It takes group_size.*DiLoCo\(merge=0\.5\)\)"),
    (lh.BMUF, "group_size", "'group_size': it is an argument of the strategy\\. It takes "),
    (lh.HierarchicalModelParallelStrategy, "gradient_sync", "of HierarchicalStrategy.*across_dtyp"),
    (lh.DiLoCo, "sync_every", "'sync_every'\\. It takes block_size"),
    (lh.DiLoCoStrategy, "membrship", "'membrship': did you mean 'membership'"),
    (lh.PSPStrategy, "membership", r"It takes .*DistributedDataParallel\.$"),
    (lh.BMUFStrategy, "proces_group", r"did you mean 'process_group'( or '(?!process_group')|\?)"),
    (lh.TorchFT, "min_group", "'min_group': did you mean 'min_groups'"),
]


@pytest.mark.parametrize(("kind", "given", "error"), UNKNOWN)
def test_error_of_an_unknown_name_suggests_one_or_lists_them(
    kind: Any, given: str, error: str
) -> None:
    with pytest.raises(TypeError, match=f"^{kind.__name__} has no argument .*{error}"):
        kind(**{given: 3})


def test_settings_without_arguments_take_none() -> None:
    for settings in (lh.AllReduce, GradientSync):
        with pytest.raises(TypeError, match=r"has no argument 'block'\. It takes none"):
            cast(Any, settings)(block=3)


@pytest.mark.parametrize("preset", [lh.BMUFAdamStrategy, lh.GTCStrategy, lh.BMUFGTCStrategy])
def test_synchronisation_that_a_preset_sets_is_refused(preset: Any) -> None:
    for name, value in (("gradient_sync", lh.GTC()), ("block_sync", lh.BMUF())):
        with pytest.raises(ValueError, match=f"{preset.__name__} sets {name} itself.*Hierarchical"):
            preset(**{name: value})


def test_groups_that_a_preset_sets_are_refused() -> None:
    with pytest.raises(ValueError, match="BMUFStrategy sets group_size itself, got group_size=2"):
        lh.BMUFStrategy(group_size=2)
