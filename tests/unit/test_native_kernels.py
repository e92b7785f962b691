"""A host without a usable C compiler takes the reference, and so do other tensors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch

from lightning_hier.algorithms.kernels import SMALLEST, kernels_for
from lightning_hier.algorithms.kernels.native import NativeKernels, native_kernels
from lightning_hier.algorithms.kernels.reference import TorchKernels


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    native_kernels.cache_clear()
    yield
    native_kernels.cache_clear()


@pytest.mark.parametrize(
    ("name", "value"),
    [("LIGHTNING_HIER_COMPILE", "0"), ("CC", "no-such-compiler"), ("CC", "false")],
    ids=["forbidden", "none", "fails"],
)
def test_nothing_is_compiled_and_nothing_is_wrong(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert type(kernels_for(torch.empty(SMALLEST))) is TorchKernels


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_only_large_tensors_of_float32_wait_for_the_compiler() -> None:
    large = torch.empty(SMALLEST)
    strided = torch.empty(2 * SMALLEST)[::2]
    for others in [(large[1:],), (large.double(),), (large, large.double()), (strided,)]:
        assert type(kernels_for(*others)) is TorchKernels
    assert native_kernels.cache_info().currsize == 0
    assert type(kernels_for(large)) is type(kernels_for(large, None)) is NativeKernels
