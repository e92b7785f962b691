"""Tests that the loops of the examples learn, end with one model on all ranks, and resume."""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from runpy import run_module
from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier
from examples.loopback import free_port, loopback_interface
from lightning_hier.fabric import hierarchical
from lightning_hier.loop.wrapping import without_ddp
from tests.conftest import REPOSITORY
from tests.ranks import run_ranks

LOOPS = ("plain_loop", "accelerate_loop", "fabric_loop")
# As `fabric run` sets them for the processes that it starts.
OF_FABRIC_RUN = {"LT_CLI_USED": "1", "LT_DEVICES": "4", "LT_ACCELERATOR": "cpu"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small Python files."""
    draw = random.Random(0)
    folder = tmp_path_factory.mktemp("text")
    for number in range(60):
        words = draw.choices(["step", "block", "group", "rank", "model"], k=80)
        lines = (f"{name} = {value}\n" for name, value in zip(words[::2], words[1::2], strict=True))
        (folder / f"file{number}.py").write_text("".join(lines))
    return folder


@pytest.mark.parametrize("loop", LOOPS)
def test_loop_learns_and_resumes(loop: str, text: Path, tmp_path: Path) -> None:
    """A run on two groups that goes on in the middle of a block ends as the first, bit for bit."""
    arguments = ["--steps", "30", "--save_every", "15", "--path", str(text)]
    arguments += ["--folder", str(tmp_path / "run")]
    cache = {"XDG_CACHE_HOME": str(text.parent / "cache"), **OF_FABRIC_RUN}
    first = run_ranks(_run, 4, loop, arguments, env=cache)
    losses = first[0][1]
    assert losses[-1] < 0.9 * losses[0], losses
    saved = torch.load(tmp_path / "run" / "model.pt")
    if loop == "fabric_loop":
        (tmp_path / "run" / "000030.ckpt").unlink()
    else:
        shutil.rmtree(tmp_path / "run" / "000030")
    second = run_ranks(_run, 4, loop, arguments, env=cache)
    assert second[0][1] == losses[-1:]
    for weights, _ in [*first, *second]:
        assert torch.equal(weights, first[0][0])
    flat = torch.cat([saved[name].reshape(-1) for name in saved if name != "head.weight"])
    assert torch.equal(flat, first[0][0])


def test_transformers_trainer_learns_and_resumes(tmp_path: Path) -> None:
    """The Trainer sees and saves the global model, and resumes in the middle of a block."""
    pytest.importorskip("transformers", reason="pip install '.[transformers]' on Python 3.11")
    arguments = [
        "--output_dir",
        str(tmp_path),
        "--use_cpu",
        "--disable_tqdm=true",
        "--max_steps=30",
    ]
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


def _shorten_blocks() -> None:
    """Blocks of 5 steps after the 3 steps of the warm-up, in this process, which ends then."""
    setattr(lightning_hier, "BMUFAdam", partial(lightning_hier.BMUFAdam, block_size=5))  # noqa: B010


def test_plain_loop_on_two_hosts(text: Path, tmp_path: Path) -> None:
    """Two agents of torchrun with a rank each, which are the groups of group_size="node"."""
    torchrun = ["torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    torchrun += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    loop = ["examples.plain_loop", "--group_size=node", "--steps=20", "--save_every=10"]
    loop += [f"--path={text}", f"--folder={tmp_path / 'run'}"]
    settings = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPOSITORY),
        "GLOO_SOCKET_IFNAME": loopback_interface(),
        "XDG_CACHE_HOME": str(text.parent / "cache"),
    }
    hosts = [
        subprocess.Popen(
            [sys.executable, "-m", *torchrun, f"--node-rank={host}", "-m", *loop],
            cwd=REPOSITORY,
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host in range(2)
    ]
    printed, errors = zip(*(host.communicate(timeout=280) for host in hosts), strict=True)
    assert [host.returncode for host in hosts] == [0, 0], errors
    assert re.search(r"step 10: .*\nstep 20: ", printed[0]), printed
    assert printed[1] == ""
    assert "because the run has 20 steps and 2 groups" in errors[0]


def _run(loop: str, arguments: list[str]) -> tuple[Tensor, list[float]]:
    """Weights of this rank at the end, and losses of the global model that it has printed."""
    attach, modules = lightning_hier.attach, []

    def noted(model: torch.nn.Module, *args: Any, **settings: Any) -> Any:
        modules.append(without_ddp(model))
        return attach(model, *args, **settings)

    # This process ends with the run.
    lightning_hier.attach = hierarchical.attach = noted
    _shorten_blocks()
    sys.argv = [loop, *arguments]
    with redirect_stdout(io.StringIO()) as printed:
        run_module(f"examples.{loop}", run_name="__main__")
    losses = re.findall(r"global model ([\d.]+)", printed.getvalue())
    weights = torch.cat([p.detach().reshape(-1) for p in modules[0].parameters()])
    return weights, [float(loss) for loss in losses]


@pytest.mark.parametrize("loop", [*LOOPS, "transformers_trainer"])
def test_loops_are_short(loop: str) -> None:
    assert len((REPOSITORY / "examples" / f"{loop}.py").read_text().splitlines()) <= 60
