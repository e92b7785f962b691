"""Settings for all tests: one thread, the data folder, and what this machine can run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported, so before it

import pytest
import torch
from hypothesis import settings

from benchmarks.hosts import missing_requirement

torch.set_num_threads(1)

# Examples on a busy machine take their time, and every run draws the same ones.
settings.register_profile("quiet", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("quiet")

REPOSITORY = Path(__file__).resolve().parents[1]


def _data_root() -> Path:
    return Path(os.environ.get("LIGHTNING_HIER_DATA", REPOSITORY.parent / "shared" / "data"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine lacks the means for, and say which."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if item.get_closest_marker("needs_data") and not _data_root().is_dir():
        pytest.skip(f"no data at {_data_root()}: set LIGHTNING_HIER_DATA")
    if item.get_closest_marker("needs_ray") and find_spec("ray") is None:
        pytest.skip("needs Ray Train: pip install -c constraints.txt '.[ray]'")
    if item.get_closest_marker("needs_netns") and (missing := missing_requirement()) is not None:
        pytest.skip(missing)


@pytest.fixture(autouse=True)
def environment_is_as_before() -> Iterator[None]:
    """Undo what a test leaves in the environment: `seed_everything` puts its seed there.

    Ranks inherit it, and what they draw must not depend on which tests ran before.
    """
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of recorded data; a test that asks for it is marked `needs_data`."""
    return _data_root()
