"""Tests of the files in docs/launch: syntax, numbers that must agree, commands that parse."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_hier.cli.main import main
from tests.conftest import REPOSITORY

LAUNCH = REPOSITORY / "docs" / "launch"
SBATCH = LAUNCH / "train.sbatch"


def printed(command: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Arguments of the Trainer that the command line derives from a command."""
    with pytest.raises(SystemExit) as stop:
        main([*command, "--print_config"])
    assert stop.value.code == 0
    config: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)["trainer"]
    return config


def sbatch_options() -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", SBATCH.read_text(), re.MULTILINE))


def test_sbatch_file_is_bash_and_has_what_a_requeue_needs() -> None:
    subprocess.run(["bash", "-n", str(SBATCH)], check=True)
    options = sbatch_options()
    assert options["signal"] == "SIGUSR1@120"
    assert re.fullmatch(r"\d+:\d\d:\d\d", options["time"])
    assert "#SBATCH --requeue\n" in SBATCH.read_text()
    assert options["gpus-per-node"] == options["ntasks-per-node"]


def test_sbatch_file_starts_as_many_ranks_as_the_trainer_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replacement of `srun` prints its arguments, one per line."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/bash\nprintf "%s\\n" "$GLOO_SOCKET_IFNAME" "$@"\n')
    srun.chmod(0o755)
    options = sbatch_options()
    slurm = {
        "SLURM_JOB_NUM_NODES": options["nodes"],
        "SLURM_NTASKS_PER_NODE": options["ntasks-per-node"],
        "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
        "SLURM_JOB_ID": "17",
    }
    done = subprocess.run(
        ["bash", str(SBATCH)],
        env={**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    interface, *args = done.stdout.splitlines()
    assert interface
    command = args[args.index("lightning-hier") + 1 :]
    trainer = printed(command, capsys)
    ranks = (trainer["num_nodes"], int(trainer["devices"]))
    assert ranks == (int(options["nodes"]), int(options["ntasks-per-node"]))
    assert trainer["default_root_dir"] == "runs/17"


def test_pytorchjob_has_what_its_api_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    """kubeflow.org/v1: one Master, containers named pytorch with an image, the job's port."""
    job = yaml.safe_load((LAUNCH / "pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"])
    assert isinstance(job["spec"]["nprocPerNode"], str)
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert set(replicas) == {"Master", "Worker"}
    assert replicas["Master"]["replicas"] == 1
    for each in replicas.values():
        assert each["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        (container,) = each["template"]["spec"]["containers"]
        assert container["name"] == "pytorch" and container["image"]
        assert container["ports"] == [{"name": "pytorchjob-port", "containerPort": 23456}]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in each["template"]["spec"]["volumes"]}
        launcher, command = container["command"][:3], container["command"][3:]
        assert launcher == ["torchrun", "-m", "lightning_hier"]
        trainer = printed(command, capsys)
        assert trainer["num_nodes"] == sum(each["replicas"] for each in replicas.values())
        assert str(trainer["devices"]) == job["spec"]["nprocPerNode"]
        gpus = container["resources"]["limits"]["nvidia.com/gpu"]
        assert str(gpus) == job["spec"]["nprocPerNode"]


def test_torchrun_command_of_the_docs_parses(capsys: pytest.CaptureFixture[str]) -> None:
    text = (REPOSITORY / "docs" / "running.md").read_text()
    arguments = re.search(r"^torchrun (.*?)(?=\n```)", text, re.MULTILINE | re.DOTALL)
    assert arguments is not None
    args = shlex.split(arguments[1].replace("\\\n", " "))
    config = REPOSITORY / "examples" / "image" / "configs" / "digits.yaml"
    command = [str(config) if each == "my.yaml" else each for each in args]
    trainer = printed(command[command.index("lightning_hier") + 1 :], capsys)
    assert f"--nnodes={trainer['num_nodes']}" in args
    assert f"--nproc-per-node={trainer['devices']}" in args
