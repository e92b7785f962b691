"""Tests of the result of a run of the image example.

`.ci/run` runs the demo itself.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from examples.image.runs import Result, Settings, run
from tests.ranks import run_ranks

TINY = Settings(
    system="all_reduce",
    ranks=2,
    late_rank=1,
    late_seconds=0.02,
    epochs=2,
    batch_images=64,
)


def test_result_of_a_run() -> None:
    first, second = run_ranks(run, 2, TINY)
    assert first.settings == asdict(TINY)
    assert [accuracy for _, accuracy in first.curve] == [accuracy for _, accuracy in second.curve]
    assert [seconds for seconds, _ in first.curve] == sorted(seconds for seconds, _ in first.curve)
    assert 0.0 < first.test_accuracy == second.test_accuracy
    # 1197 images on 2 ranks: 10 steps in each of 2 epochs.
    assert first.slept_s == pytest.approx([0.0, 20 * 0.02])
    assert (first.dropped_gradients, first.used_share) == (0.0, 1.0)
    assert first.waited_s == second.waited_s
    assert first.sent_bytes > 0
    # The demo stores results as JSON.
    assert Result(**json.loads(json.dumps(asdict(first)))) == replace(
        first,
        curve=[list(point) for point in first.curve],
    )
