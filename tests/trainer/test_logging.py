"""What is counted reaches the Trainer's loggers under documented names."""

from __future__ import annotations

import csv
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, loader, make_trainer, weights


def _logged() -> dict[str, float]:
    strategy = lh.BMUFGTCStrategy(
        group_size=2, block_size=3, dense_below=9, density=0.2, warmup_steps=0
    )
    fit(
        strategy,
        10,
        logger=CSVLogger(os.environ["FOLDER"], name="run", version=0),
        log_every_n_steps=2,
    )
    return strategy.metrics()


def test_columns_of_a_run(tmp_path: Path) -> None:
    metrics = run_ranks(_logged, 4, env={"FOLDER": str(tmp_path)})
    with (tmp_path / "run" / "version_0" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("hier/group/payload_bytes")]
    names = {
        "hier/group/payload_bytes",
        "hier/group/seconds",
        "hier/group/gradients/payload_bytes",
        "hier/group/gradients/seconds",
        "hier/group/gradients/calls",
        "hier/across/payload_bytes",
        "hier/across/seconds",
        "hier/across/models/payload_bytes",
        "hier/gtc/density",
        "hier/gtc/residual_norm",
        "hier/block/update_norm",
        "hier/block/model_distance",
        "hier/block/blocks",
        "hier/payload_bytes",
        "hier/elapsed_seconds",
        "hier/waited_seconds",
    }
    assert names <= set(rows[-1])
    # Nothing was sent since the reading at the last step, so there is no density to tell.
    last = {name: float(rows[-1][name]) for name in names - {"hier/gtc/density"}}
    assert last["hier/group/gradients/calls"] > 0
    assert last["hier/across/models/payload_bytes"] > 0
    assert last["hier/block/update_norm"] > 0
    assert last["hier/block/model_distance"] > 0
    assert last["hier/gtc/residual_norm"] > 0
    assert last["hier/block/blocks"] == 3
    # The total holds what the end of training sent, too, and is that of rank 0.
    assert last["hier/across/payload_bytes"] == metrics[0]["hier/across/payload_bytes"]
    within_blocks = [float(row["hier/across/models/payload_bytes"] or 0) for row in rows]
    assert within_blocks == sorted(within_blocks)
    densities = [float(row["hier/gtc/density"]) for row in rows[:-1]]
    assert all(0.0 < density < 1.0 for density in densities)
    assert rows[-1]["hier/gtc/density"] == ""
    elapsed = [float(row["hier/elapsed_seconds"]) for row in rows]
    waited = [float(row["hier/waited_seconds"]) for row in rows]
    assert 0 < elapsed[0] and elapsed == sorted(elapsed)
    assert all(0 < w < e for w, e in zip(waited, elapsed, strict=True))
    # Columns that come with the first block do not move what was logged before it.
    assert rows[0]["hier/block/blocks"] == "" and int(rows[0]["hier/group/gradients/calls"]) > 0
    steps = [int(row["step"]) for row in rows]
    assert steps == sorted(steps) and steps[-1] == 10


def test_settings_lie_beside_what_is_logged(tmp_path: Path) -> None:
    run_ranks(_logged, 4, env={"FOLDER": str(tmp_path)}, ranks_per_node=2)
    written = json.loads((tmp_path / "run" / "version_0" / "lightning_hier.json").read_text())
    expected = {
        "strategy": "bmuf_gtc",
        "ranks": 4,
        "hosts": 2,
        "groups": 2,
        "ranks_per_group": 2,
        "gradient_sync": "GTC",
        "density": 0.2,
        "block_sync": "BMUF",
        "block_size": 3,
    }
    assert expected.items() <= written.items()


class _Remembers(CSVLogger):
    """Keeps what it is given."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, name="run", version=0)
        self.given: list[dict[str, float]] = []

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.given.append({k: v for k, v in metrics.items() if k.startswith("hier/")})


def _two_loggers() -> list[list[dict[str, float]]]:
    loggers = [_Remembers(os.environ["FOLDER"]), _Remembers(os.environ["FOLDER"])]
    strategy = lh.GTCStrategy(dense_below=9, density=0.2, warmup_steps=0)
    fit(strategy, 6, logger=loggers, log_every_n_steps=2)
    return [logger.given for logger in loggers]


def test_every_logger_gets_the_same_numbers(tmp_path: Path) -> None:
    (first, second), (other, _) = run_ranks(_two_loggers, 2, env={"FOLDER": str(tmp_path)})
    assert first == second
    assert len(first) == 4
    assert all(value == value for metrics in first for value in metrics.values())  # no NaN
    assert any("hier/gtc/density" in metrics for metrics in first)
    assert other == []  # rank 0 alone logs


def _checkpoint(folder: Path) -> dict[str, Any]:
    strategy = lh.BMUFGTCStrategy(
        group_size=2, block_size=4, dense_below=9, density=0.2, warmup_steps=0
    )
    model = Net()
    fit(
        strategy,
        6,
        model,
        enable_checkpointing=True,
        callbacks=[ModelCheckpoint(dirpath=folder, every_n_train_steps=3, save_top_k=-1)],
    )
    return {"seen": model.seen, "end": weights(model)}


def _resume(path: str) -> tuple[int, torch.Tensor]:
    model = Net()
    strategy = lh.BMUFGTCStrategy(
        group_size=2, block_size=4, dense_below=9, density=0.2, warmup_steps=0
    )
    trainer = make_trainer(strategy, max_epochs=2)
    trainer.fit(model, loader(6), ckpt_path=path)
    return trainer.global_step, weights(model)


def test_checkpoint_holds_one_model_loads_plainly_and_trains_on(tmp_path: Path) -> None:
    results = run_ranks(_checkpoint, 4, tmp_path)
    assert all(torch.equal(result["end"], results[0]["end"]) for result in results)
    early, late = sorted(tmp_path.glob("*.ckpt"))
    state = torch.load(late, weights_only=True)["state_dict"]
    plain = torch.cat([value.reshape(-1) for value in state.values()])
    assert plain.isfinite().all()
    # Step 6 is the middle of a block: what was saved is no rank's own model.
    assert not any(torch.equal(plain, result["seen"][5]) for result in results)
    torch.testing.assert_close(plain, results[0]["end"], rtol=0, atol=0)
    assert isinstance(Net.load_from_checkpoint(late, weights_only=True), Net)
    resumed = run_ranks(_resume, 4, str(early))
    assert {steps for steps, _ in resumed} == {12}
    assert all(torch.equal(end, resumed[0][1]) for _, end in resumed)


def _described() -> list[dict[str, Any]]:
    limit = timedelta(seconds=60)
    found = []
    for strategy in (
        lh.PSPStrategy(min_pushes=0.5, push_timeout_s=0.25, pull_timeout_s=0.5, timeout=limit),
        lh.TwoStageASGDStrategy(group_size=2, push_period=3, timeout=limit),
    ):
        fit(strategy, 2)
        found.append(strategy.describe())
    return found


def test_servers_are_described_by_what_the_user_has_set() -> None:
    psp, two_stage = run_ranks(_described, 2)[0]
    assert {
        "strategy": "psp",
        "groups": 2,
        "min_pushes": 0.5,
        "push_timeout_s": 0.25,
        "min_pulled": 1.0,
        "pull_timeout_s": 0.5,
    }.items() <= psp.items()
    assert {"groups": 1, "push_period": 3, "order_locking": True}.items() <= two_stage.items()
