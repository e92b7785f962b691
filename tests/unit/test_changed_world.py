"""The message about changes when a run resumes with other groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lightning.fabric.plugins import TorchCheckpointIO

from lightning_hier.comm.tiers import RankLayout
from lightning_hier.strategies.checkpoints.rank_files import RankFiles
from lightning_hier.strategies.checkpoints.resume import what_changes
from lightning_hier.strategies.checkpoints.saved_run import SavedRun


def _saved(**kinds: Any) -> SavedRun:
    section: dict[str, Any] = {
        "sizes": (4, 4),
        "steps": [{"in_block": 0}],
        "counts": None,
        "kinds": {"inter_host_ranks": None, **kinds},
    }
    files = RankFiles(Path("run.ckpt"), "id")
    return SavedRun("run.ckpt", section, files, TorchCheckpointIO(), weights_only=True)


@pytest.mark.parametrize(
    ("devices", "groups", "keeps"), [(8, 2, True), (8, 1, False), (4, 2, False), (2, 8, True)]
)
def test_message_names_the_group_size_that_keeps_the_groups(
    devices: int, groups: int, keeps: bool
) -> None:
    """An example is half of the hosts with twice as many ranks each, and group_size="node"."""
    saved = _saved(mesh=None)
    layout = RankLayout.two_tiers(devices, devices * groups)
    message = what_changes(
        saved, layout, saved.section["kinds"], automatic=["block_momentum"], keeps_residuals=True
    )
    assert f"{groups} group{'s' * (groups > 1)} of {devices} ranks instead of 4 of 4" in message
    assert message.endswith("group_size=4 keeps their groups.") == keeps


@pytest.mark.parametrize(
    ("before", "now", "as_folder", "keeps"),
    [
        (None, None, False, True),
        ([4, 1], [2, 1], True, True),
        ([4, 1], [2, 1], False, False),
        ([4, 1], None, True, False),
        (None, [4, 1], False, False),
    ],
)
def test_lost_state_of_outer_steps_is_stated(
    before: Any, now: Any, as_folder: bool, keeps: bool
) -> None:
    """Only a checkpoint folder has the state of a sharded module for another mesh."""
    saved = _saved(mesh=before)
    if as_folder:
        saved = replace(saved, section={**saved.section, "outer_states": []})
    layout = RankLayout.two_tiers(4, 16)
    kinds = {**saved.section["kinds"], "mesh": now}
    message = what_changes(saved, layout, kinds, automatic=[], keeps_residuals=True)
    assert ("the state of outer steps, such as block momentum, is lost" in message) != keeps
