"""A host without a usable C compiler is served by the chunks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch

from lightning_hier.algorithms import compiled


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    compiled.compiled_library.cache_clear()
    yield
    compiled.compiled_library.cache_clear()


@pytest.mark.parametrize(
    ("name", "value"),
    [("LIGHTNING_HIER_COMPILE", "0"), ("CC", "no-such-compiler"), ("CC", "false")],
    ids=["forbidden", "none", "fails"],
)
def test_nothing_is_compiled_and_nothing_is_wrong(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert compiled.library_for(torch.empty(compiled.SMALLEST)) is None


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_only_large_tensors_of_float32_wait_for_the_compiler() -> None:
    large = torch.empty(compiled.SMALLEST)
    assert compiled.library_for(large[1:]) is None
    assert compiled.library_for(large.double()) is None
    assert compiled.library_for(large, large.double()) is None
    assert compiled.library_for(torch.empty(2 * compiled.SMALLEST)[::2]) is None
    assert compiled.compiled_library.cache_info().currsize == 0
    assert compiled.library_for(large) is not None
