"""What people are told who resume a run on other groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.fabric.plugins import TorchCheckpointIO

from lightning_hier.comm.tiers import RankLayout
from lightning_hier.strategies.checkpoints.rank_files import RankFiles
from lightning_hier.strategies.checkpoints.resume import what_changes
from lightning_hier.strategies.checkpoints.saved_run import SavedRun


@pytest.mark.parametrize(
    ("devices", "groups", "kept"), [(8, 2, True), (8, 1, False), (4, 2, False), (2, 8, True)]
)
def test_as_many_workers_in_other_groups_learn_how_to_keep_theirs(
    devices: int, groups: int, kept: bool
) -> None:
    """As those of half of the hosts with twice as many workers, where "node" counts them."""
    section: dict[str, Any] = {
        "sizes": (4, 4),
        "steps": [{"in_block": 0}],
        "counts": None,
        "kinds": {"inter_host_ranks": None, "mesh": None},
    }
    files = RankFiles(Path("run.ckpt"), "id")
    saved = SavedRun(section, files, TorchCheckpointIO(), weights_only=True)
    layout = RankLayout.two_tiers(devices, devices * groups)
    said = what_changes(
        saved, layout, section["kinds"], automatic=["block_momentum"], keeps_residuals=True
    )
    assert f"{groups} groups of {devices} ranks instead of 4 of 4" in said
    assert said.endswith("group_size=4 keeps their groups.") == kept
