"""Native kernels: compilation, and the tensors for which the reference is used instead."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lightning_hier.algorithms.kernels import SMALLEST, kernels_for, native, prepare_kernels
from lightning_hier.algorithms.kernels.native import NativeKernels
from lightning_hier.algorithms.kernels.reference import TorchKernels


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    native._compiled.cache_clear()
    yield
    native._compiled.cache_clear()


@pytest.mark.parametrize(
    ("name", "value"),
    [("LIGHTNING_HIER_COMPILE", "0"), ("CC", "no-such-compiler"), ("CC", "false")],
    ids=["forbidden", "none", "fails"],
)
def test_reference_is_used_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert type(kernels_for(torch.empty(SMALLEST))) is TorchKernels


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_only_large_contiguous_float32_tensors_use_native_kernels() -> None:
    large = torch.empty(SMALLEST)
    strided = torch.empty(2 * SMALLEST)[::2]
    for others in [(large[1:],), (large.double(),), (large, large.double()), (strided,)]:
        assert type(kernels_for(*others)) is TorchKernels
    assert native._compiled.cache_info().currsize == 0
    assert type(kernels_for(large)) is type(kernels_for(large, None)) is NativeKernels


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_native_kernels_are_compiled_once_at_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    run = subprocess.run

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return run(*args, **kwargs)

    monkeypatch.setattr(subprocess, "run", counted)
    prepare_kernels([torch.empty(SMALLEST - 1)])
    prepare_kernels([torch.empty(SMALLEST, dtype=torch.float64)])
    assert not calls
    prepare_kernels([torch.empty(SMALLEST // 2), torch.empty(SMALLEST // 2)])
    assert type(kernels_for(torch.empty(SMALLEST))) is NativeKernels
    assert len(calls) == 1
