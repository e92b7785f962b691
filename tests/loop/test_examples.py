"""Tests that the loops of the examples learn, end with one model on all ranks, and resume."""

from __future__ import annotations

import io
import random
import re
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from runpy import run_module
from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier
from examples.language import small_loop
from lightning_hier.fabric import hierarchical
from lightning_hier.loop.wrapping import without_ddp
from tests.conftest import REPOSITORY
from tests.ranks import run_ranks

# The first one makes the process group, which the others find.
LOOPS = {"plain_loop": ["--group_size=node"], "accelerate_loop": [], "fabric_loop": []}
# As `fabric run` sets them for the processes that it starts.
OF_FABRIC_RUN = {
    "LT_CLI_USED": "1", "LT_DEVICES": "2", "LT_NUM_NODES": "2", "LT_ACCELERATOR": "cpu"
}  # fmt: skip


def _write_text(folder: Path) -> None:
    """Write small Python files."""
    draw = random.Random(0)
    folder.mkdir()
    for number in range(60):
        words = draw.choices(["step", "block", "group", "rank", "model"], k=80)
        lines = (f"{name} = {value}\n" for name, value in zip(words[::2], words[1::2], strict=True))
        (folder / f"file{number}.py").write_text("".join(lines))


def test_loops_learn_and_resume(tmp_path: Path) -> None:
    """Runs on two hosts that go on in the middle of a block end as the first, bit for bit."""
    _write_text(tmp_path / "text")
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **OF_FABRIC_RUN}
    run = partial(run_ranks, _run_all, 4, tmp_path, env=env, ranks_per_node=2)
    first = run()
    assert "because the run has 20 steps and 2 groups" in first[0]["log"]
    for loop in ("plain_loop", "accelerate_loop"):
        shutil.rmtree(tmp_path / loop / "000020")
    (tmp_path / "fabric_loop" / "000020.ckpt").unlink()
    second = run()
    for loop in LOOPS:
        expected, losses = first[0][loop]
        assert losses[-1] < 0.9 * losses[0], loop
        assert second[0][loop][1] == losses[-1:], loop
        for rank, result in enumerate([*first, *second]):
            assert torch.equal(result[loop][0], expected), loop
            assert rank % 2 == 0 or result[loop][1] == [], loop  # that of a host may print
        saved = torch.load(tmp_path / loop / "model.pt")
        flat = torch.cat([saved[name].reshape(-1) for name in saved if name != "head.weight"])
        assert torch.equal(flat, expected), loop


def _run_all(folder: Path) -> dict[str, Any]:
    """Outcomes of all loops on this rank, and what they log."""
    arguments = ["--steps=20", "--save_every=10", f"--path={folder / 'text'}"]
    with redirect_stderr(io.StringIO()) as log:
        runs = {
            loop: _run(loop, [*arguments, f"--folder={folder / loop}", *more])
            for loop, more in LOOPS.items()
        }
    return {**runs, "log": log.getvalue()}


def _run(loop: str, arguments: list[str]) -> tuple[Tensor, list[float]]:
    """Weights of this rank at the end, and losses of the global model that it has printed."""
    attach, modules = lightning_hier.attach, []

    def noted(model: torch.nn.Module, *args: Any, **settings: Any) -> Any:
        modules.append(without_ddp(model))
        return attach(model, *args, **settings)

    # This process ends with the run.
    lightning_hier.attach = hierarchical.attach = noted
    _shorten_blocks()
    setattr(small_loop, "_VALIDATED_BATCHES", 3)  # noqa: B010
    sys.argv = [loop, *arguments]
    with redirect_stdout(io.StringIO()) as printed:
        run_module(f"examples.{loop}", run_name="__main__")
    losses = re.findall(r"global model ([\d.]+)", printed.getvalue())
    weights = torch.cat([p.detach().reshape(-1) for p in modules[0].parameters()])
    return weights, [float(loss) for loss in losses]


def _shorten_blocks() -> None:
    """Blocks of 5 steps after the warm-up, in this process, which ends then."""
    setattr(lightning_hier, "BMUFAdam", partial(lightning_hier.BMUFAdam, block_size=5))  # noqa: B010


def test_transformers_trainer_learns_and_resumes(tmp_path: Path) -> None:
    """The Trainer sees and saves the global model, and resumes in the middle of a block."""
    pytest.importorskip("transformers", reason="pip install '.[transformers]' on Python 3.11")
    arguments = [f"--output_dir={tmp_path}", "--use_cpu", "--disable_tqdm=true", "--max_steps=30"]
    arguments += ["--eval_steps=13", "--save_strategy=steps", "--save_steps=13"]
    first = run_ranks(_train, 4, arguments)
    resumed = f"--resume_from_checkpoint={tmp_path}/checkpoint-13"
    second = run_ranks(_train, 4, [*arguments, resumed])
    for weights, losses in [*first, *second]:
        assert torch.equal(weights, first[0][0])
        assert losses == first[0][1]
    losses = first[0][1]
    assert losses[-1] < 0.9 * losses[0], losses


def _train(arguments: list[str]) -> tuple[Tensor, list[float]]:
    """Weights of this rank at the end, and losses of the evaluations."""
    _shorten_blocks()
    sys.argv = ["transformers_trainer", *arguments]
    with redirect_stdout(io.StringIO()):
        names = run_module("examples.transformers_trainer", run_name="__main__")
    weights = torch.cat([p.detach().reshape(-1) for p in names["model"].parameters()])
    history = names["trainer"].state.log_history
    return weights, [entry["eval_loss"] for entry in history if "eval_loss" in entry]


@pytest.mark.parametrize("loop", [*LOOPS, "transformers_trainer"])
def test_loops_are_short(loop: str) -> None:
    assert len((REPOSITORY / "examples" / f"{loop}.py").read_text().splitlines()) <= 60
