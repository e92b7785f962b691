"""Settings of all tests: number of threads, skips for missing requirements."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when it is imported

import pytest
import torch
from hypothesis import settings

from benchmarks.hosts import missing_requirement

torch.set_num_threads(1)

# No deadline, because a busy machine is slow. Every run draws the same examples.
settings.register_profile("quiet", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("quiet")

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose requirement is not met. The reason names the requirement."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if item.get_closest_marker("needs_ray") and find_spec("ray") is None:
        pytest.skip("needs Ray Train: pip install -c constraints.txt '.[ray]'")
    if item.get_closest_marker("needs_netns") and (missing := missing_requirement()) is not None:
        pytest.skip(missing)


@pytest.fixture(autouse=True)
def environment_is_as_before() -> Iterator[None]:
    """Restore the environment variables after each test, because `seed_everything` sets some.

    Ranks inherit the environment. Their random numbers must not depend on earlier tests.
    """
    with mock.patch.dict(os.environ):
        yield
