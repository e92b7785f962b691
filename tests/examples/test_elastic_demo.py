"""Tests of the log of the demo of groups that leave and join, and of the comparison of models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch

from examples.elastic.demo import different_models
from examples.elastic.step_log import Line, StepLog, digest_of, read_log


def step(number: int, time_s: float, loss: float = 1.0, pid: int = 7) -> Line:
    return Line("step", pid, number, time_s, loss)


def block(number: int, digest: str) -> Line:
    return Line("block", 7, number, 0.0, 1.0, digest)


def test_log_has_a_digest_at_the_end_of_each_block(tmp_path: Path) -> None:
    file = tmp_path / "group_0.jsonl"
    assert read_log(file) == []
    module = torch.nn.BatchNorm1d(2)
    log = StepLog(file, block_size=2, validate=lambda module: 0.25)
    for number in (1, 2):
        trainer = SimpleNamespace(global_step=number)
        log.on_train_batch_end(trainer, module, {"loss": torch.tensor(0.5)}, None, 0)
    with file.open("a") as out:
        out.write('{"event": "st')  # by a group that was killed during the write
    first, second = read_log(file)
    assert (first.event, first.loss, first.digest) == ("step", 0.5, None)
    assert (second.event, second.valid_loss) == ("block", 0.25)
    assert second.digest == digest_of(module)
    module.num_batches_tracked.add_(1)
    assert second.digest != digest_of(module)


def test_models_are_compared_where_groups_have_taken_part() -> None:
    lines = [block(20, "a"), block(40, "b"), Line("end", 7, 41, 1.0, digest="c")]
    assert different_models([lines, [lines[0], lines[2]]]) == []
    assert different_models([lines, [block(40, "x"), Line("end", 8, 41, 1.0, digest="y")]]) == [
        "block 40",
        "end 41",
    ]
