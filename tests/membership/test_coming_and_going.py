"""A group dies and returns: the models of all groups follow the reference's outer step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

import lightning_hier as lh
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.reference import BlockMomentum, Method, Training, Worker
from tests.membership.groups import (
    BATCH,
    SAMPLES,
    Life,
    Module,
    Run,
    assert_equal_models,
    data,
    lighthouse,
    live_all,
    log,
    weights,
)

TAU = 4
# Group 1 dies in its third block. The others pause in it until group 1 has come back.
LIVES = [
    Life(0, stands_at=11, until="returning"),
    Life(1, dies_at=10),
    Life(2, stands_at=11, until="returning"),
    Life(1, after="died"),
]


@pytest.fixture
def address() -> Iterator[str]:
    with lighthouse() as url:
        yield url


def _lived(folder: Path, address: str, sync: BlockSync, **settings: Any) -> Run:
    run = Run(str(folder), address, sync, **settings)
    outcomes = live_all(run, LIVES)
    per = run.ranks
    assert all(outcome.died for outcome in outcomes[per : 2 * per])
    alive = [*outcomes[:per], *outcomes[2 * per :]]
    assert [outcome.error for outcome in alive] == [None] * len(alive)
    assert all(outcome.result == alive[0].result for outcome in alive)
    return run


def _reference(groups: int, **settings: Any) -> Training:
    """Groups, with eta for the number of those that take part."""
    workers = []
    for _ in range(groups):
        net = Module(Run("", "", lh.BMUF(block_size=TAU)), Life(0), 0).double()
        workers.append(Worker(net, [torch.optim.SGD(net.parameters(), lr=0.05)]))
    return Training(workers, Method(tau=TAU, outer=BlockMomentum, **settings))


def _train(training: Training, batches: dict[int, list[list[int]]]) -> None:
    """Train with the sample numbers of each group that takes part, for every step."""
    features, targets, _ = data().tensors
    for step in range(len(next(iter(batches.values())))):
        for group, worker in enumerate(training.workers):
            if group in batches:
                numbers = batches[group][step]
                net: Any = worker.model
                (net.net(features[numbers]) - targets[numbers]).square().mean().backward()
                net.count.add_(1)
        training.step(samples=[float(group in batches) for group in range(len(training.workers))])


def test_models_are_those_of_the_reference(tmp_path: Path, address: str) -> None:
    run = _lived(tmp_path, address, lh.BMUF(block_size=TAU, local_lr="keep"))
    logs = [log(run, number) for number in range(len(LIVES))]
    assert_equal_models(logs)
    for life, entries in zip(LIVES, logs, strict=True):  # also of a group that has joined
        assert {entry["seed"] for entry in entries} == {life.group}
    present = [entry["present"] for entry in logs[0]]
    assert present[:2] == [[0, 1, 2]] * 2
    assert present[2] == [0, 2]
    assert present[-1] == [0, 1, 2]
    training = _reference(3)
    for commit, entry in enumerate(logs[0]):
        _train(training, {group: _used(logs, group, commit + 1) for group in entry["present"]})
        model, expected = entry["model"], weights(training.workers[0].model)
        torch.testing.assert_close(model, expected, rtol=1e-12, atol=1e-12)
    _assert_data_go_on(logs)


def _used(logs: Sequence[Sequence[dict[str, Any]]], group: int, commit: int) -> list[list[int]]:
    """Batches of a group in a block. Exactly one of the lives of the group trained this block."""
    numbers = [number for number, life in enumerate(LIVES) if life.group == group]
    used = [e["used"] for number in numbers for e in logs[number] if e["commits"] == commit]
    assert len(used) == 1
    return used[0]


def _assert_data_go_on(logs: Sequence[Sequence[dict[str, Any]]]) -> None:
    """Check that a group that returns continues its data where it stopped.

    Its epochs end at the same steps as those of the other groups.
    """
    used: dict[int, list[int]] = {}
    for entry in (entry for entries in logs for entry in entries):
        used.setdefault(entry["epoch"], []).extend(n for batch in entry["used"] for n in batch)
    assert len(used) == 3
    assert all(len(set(numbers)) == len(numbers) for numbers in used.values())
    batches = SAMPLES // 3 // BATCH
    before = [b for entry in logs[1] for b in entry["used"]]
    back = [b for entry in logs[3] if entry["epoch"] == 0 for b in entry["used"]]
    sampler: DistributedSampler[Any] = DistributedSampler(data(), 3, 1, seed=1)
    order = list(sampler)
    expected = [order[BATCH * i : BATCH * (i + 1)] for i in range(batches)]
    assert [*before, *back] == expected[: len(before) + len(back)]
    assert [entry["step"] for entry in logs[3]][-1] == logs[0][-1]["step"]


@pytest.mark.parametrize(
    ("sync", "settings"),
    [
        pytest.param(
            lh.BMUFAdam(block_size=TAU, fragments=2, overlap=1, across_dtype="int8"),
            {"optimizer": "AdamW", "ranks": 2},
            id="fragments-delay-2-ranks",
        ),
        pytest.param(
            lh.BMUF(block_size=TAU, local_momentum="average"),
            {"optimizers": 2, "in_background": True},
            id="two-optimizers-background",
        ),
    ],
)
def test_groups_stay_equal(
    tmp_path: Path, address: str, sync: BlockSync, settings: dict[str, Any]
) -> None:
    run = _lived(tmp_path, address, sync, **settings)
    logs = [log(run, number) for number in range(len(LIVES) * run.ranks)]
    for position in range(run.ranks):  # ranks of a group may have parts of W
        assert_equal_models(logs[position :: run.ranks])
    assert logs[-1][-1]["present"] == [0, 1, 2]


def test_fragments_are_those_of_the_reference(tmp_path: Path, address: str) -> None:
    """Training ends in the middle of a block."""
    sync = lh.BMUF(block_size=TAU, local_lr="keep", fragments=2, overlap=1)
    run = Run(str(tmp_path), address, sync, groups=2, steps=10)
    outcomes = live_all(run, [Life(0), Life(1)])
    assert [outcome.error for outcome in outcomes] == [None, None]
    training = _reference(2, fragments=2, delay=1)
    logs = [log(run, group) for group in range(2)]
    _train(training, {g: [b for entry in logs[g] for b in entry["used"]] for g in range(2)})
    final = training.global_model()
    net = training.workers[0].model
    net.load_state_dict(final)
    for outcome in outcomes:
        torch.testing.assert_close(outcome.result, weights(net), rtol=1e-12, atol=1e-12)


def test_a_trained_model_is_not_replaced_by_a_run_that_was_started_anew(
    tmp_path: Path, address: str
) -> None:
    """The group that was started anew must restart. It then receives the trained model."""
    run = Run(str(tmp_path), address, lh.BMUF(block_size=TAU), groups=2, join_timeout_s=0.5)
    (tmp_path / "before").mkdir()
    before = replace(run, folder=str(tmp_path / "before"), steps=8)
    [trained] = live_all(before, [Life(0, saves="trained.ckpt")])
    assert trained.error is None
    lives = [
        Life(1, stands_at=6, until="starting-0"),
        Life(0, after="standing-1", resumes="before/trained.ckpt"),
        Life(1, after="restarts-1"),
    ]
    outcomes = live_all(replace(run, steps=24, groups=2), lives)
    assert "group 1 must restart: group 0 belongs to a run that started" in str(outcomes[0].error)
    assert [outcome.error for outcome in outcomes[1:]] == [None, None]
    assert outcomes[1].result == outcomes[2].result
    assert log(run, 2)[-1]["present"] == [0, 1]
