"""Tests that strategies record profiler ranges with the names in docs/watching.md."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.profiler import ProfilerActivity, _ExperimentalConfig, profile

import lightning_hier as lh
from lightning_hier.comm.profiling import profiler_range
from tests.ranks import run_ranks
from tests.trainer.fitting import BMUF, BMUF_GTC, Net, loader, make_trainer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "watching.md"
TIMEOUT = timedelta(seconds=120)
STRATEGIES: dict[str, Any] = {
    "bmuf_gtc": partial(BMUF_GTC, block_size=3),
    "overlap": partial(BMUF, block_size=2, overlap=True),
    "psp": partial(lh.PSPStrategy, timeout=TIMEOUT),
    "two_stage_asgd": partial(
        lh.TwoStageASGDStrategy, group_size=2, push_period=1, warmup_steps=0, timeout=TIMEOUT
    ),
}
ALWAYS = {"hier/wait", "hier/global_model/swap_in"}
BLOCK = {
    "hier/block/synchronisation",
    "hier/block/status",
    "hier/block/optimizer_state",
    "hier/block/models",
    "hier/block/outer_step",
    "hier/global_model/swap_back",
}
GTC = {"hier/gradients/exchange", "hier/updates/exchange", "hier/gtc/encode", "hier/gtc/decode"}
SHOWN: dict[str, set[str]] = {
    "bmuf_gtc": {*GTC, *BLOCK},
    "overlap": {"hier/block/overlap", *BLOCK},
    "psp": {"hier/psp/push", "hier/psp/pull", "hier/parameter_server/update"},
    "two_stage_asgd": {
        "hier/two_stage/accumulate",
        "hier/two_stage/refresh",
        "hier/two_stage/push",
        "hier/two_stage/pull",
        "hier/parameter_server/update",
    },
}


def _ranges_of_all_threads() -> dict[str, set[str]]:
    """Names of the ranges on this rank, by strategy."""
    ranges = {}
    for name, build in STRATEGIES.items():
        trainer = make_trainer(build())
        all_threads = _ExperimentalConfig(profile_all_threads=True)
        with profile(activities=[ProfilerActivity.CPU], experimental_config=all_threads) as trace:
            trainer.fit(Net(batchnorm=True), loader(6), loader(2))
        shown = {event.name for event in trace.events() or ()}
        ranges[name] = {range_ for range_ in shown if range_.startswith("hier/")}
    return ranges


@pytest.fixture(scope="module")
def first_rank() -> dict[str, set[str]]:
    """Ranges on the first of four ranks, which is the master and the first rank of its node."""
    ranks: list[dict[str, set[str]]] = run_ranks(_ranges_of_all_threads, 4, ranks_per_node=2)
    return ranks[0]


@pytest.mark.parametrize("name", STRATEGIES)
def test_profiler_shows_the_ranges_of_a_strategy(
    first_rank: dict[str, set[str]], name: str
) -> None:
    assert first_rank[name] == SHOWN[name] | ALWAYS


def test_the_page_names_all_ranges() -> None:
    section = PAGE.read_text().split("## In a profiler's trace")[1].split("\n## ")[0]
    assert set(re.findall(r"`(hier/[a-z_/]+)`", section)) == (
        set().union(*SHOWN.values()) | ALWAYS | {"hier/waited_seconds"}
    )


def test_without_a_profiler_nothing_is_recorded() -> None:
    assert profiler_range("hier/wait") is profiler_range("hier/block/models")
