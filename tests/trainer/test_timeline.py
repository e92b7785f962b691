"""The Timeline callback: a trace of every rank that agrees with what is counted."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

import lightning_hier as lh
from lightning_hier.callbacks.timeline import Timeline, merge_timelines
from lightning_hier.comm.traffic import Traffic
from tests.ranks import rank_outcomes, run_ranks
from tests.trainer.fitting import Net, loader, make_trainer
from tests.trainer.traces import check_form, check_nesting, read_open_array

TIMEOUT = timedelta(seconds=120)
STRATEGIES: dict[str, Any] = {
    "bmuf_gtc": lambda: lh.BMUFGTCStrategy(
        group_size=2, block_size=3, dense_below=9, warmup_steps=0, density=0.01
    ),
    "overlap": lambda: lh.BMUFStrategy(block_size=2, overlap=True, warmup_steps=1),
    "psp": lambda: lh.PSPStrategy(timeout=TIMEOUT),
    "two_stage_asgd": lambda: lh.TwoStageASGDStrategy(group_size=2, timeout=TIMEOUT),
    "ddp": lambda: "ddp",
}
BATCHES = 5


def _fit(folder: str) -> dict[str, dict[str, float]]:
    counted = {}
    for name, build in STRATEGIES.items():
        path = Path(folder) / name
        saving = ModelCheckpoint(dirpath=path / "checkpoints", every_n_train_steps=4)
        callbacks = [Timeline(path), saving]
        trainer = make_trainer(build(), callbacks=callbacks, enable_checkpointing=True)
        trainer.fit(Net(batchnorm=True), loader(BATCHES), loader(2))
        traffic = getattr(trainer.strategy, "traffic", Traffic()).metrics()
        counted[name] = {key: traffic[key] for key in traffic if key.count("/") == 3}
        assert "save_checkpoint" not in vars(trainer)
    return counted


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """One run of each strategy on four ranks: the folder, and what each rank has counted."""
    folder = tmp_path_factory.mktemp("timelines")
    return folder, run_ranks(_fit, 4, str(folder), ranks_per_node=2)


def _traces(folder: Path) -> list[list[dict[str, Any]]]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*/rank_*.json"))]


@pytest.mark.parametrize("name", STRATEGIES)
def test_trace_is_well_formed_and_agrees_with_the_counts(
    runs: tuple[Path, list[Any]], name: str
) -> None:
    folder, counted = runs
    traces = _traces(folder / name)
    assert len(traces) == 4
    processes: set[int] = set()
    for rank, events in enumerate(traces):
        check_form(events)
        check_nesting(events)
        (process,) = {event["pid"] for event in events}
        (name_of,) = [event["args"]["name"] for event in events if event["name"] == "process_name"]
        assert name_of.startswith(f"rank {rank} on ")
        assert process not in processes
        processes.add(process)
        messages = [event for event in events if event["cat"] in ("group", "across")]
        calls = Counter(f"hier/{e['cat']}/{e['name']}/calls" for e in messages)
        nbytes: Counter[str] = Counter()
        seconds: Counter[str] = Counter()
        for event in messages:
            prefix = f"hier/{event['cat']}/{event['name']}"
            nbytes[f"{prefix}/payload_bytes"] += event["args"]["payload_bytes"]
            seconds[f"{prefix}/seconds"] += event.get("dur", 0) / 1e6
        own = counted[rank][name]
        assert {**calls, **nbytes} == {k: v for k, v in own.items() if not k.endswith("/seconds")}
        for key, value in seconds.items():
            assert own[key] == pytest.approx(value, abs=1e-6 * (1 + len(messages)))


@pytest.mark.parametrize("name", STRATEGIES)
def test_computation_is_on_the_timeline(runs: tuple[Path, list[Any]], name: str) -> None:
    for rank, events in enumerate(_traces(runs[0] / name)):
        names = Counter(event["name"] for event in events if event["cat"] == "compute")
        assert names["batch"] == names["forward"] == names["backward"] == BATCHES
        assert names["update"] == BATCHES
        assert names["validation"] == names["sanity check"] == 1
        assert names["epoch 0"] == 1
        assert names["checkpoint"] >= 1, f"on rank {rank}"
        (end,) = [event for event in events if event["cat"] == "timeline"]
        assert end["name"] == "end"
        assert end["args"]["left_out"] == {}


def test_synchronisations_are_slices_at_the_same_time_on_all_ranks(
    runs: tuple[Path, list[Any]],
) -> None:
    """Nobody leaves the end of a block before everybody has come: so clocks are one."""
    ranks = []
    for events in _traces(runs[0] / "bmuf_gtc"):
        ends = [e for e in events if e["cat"] == "synchronisation" and "block" in e["name"]]
        ranks.append([(e["ts"], e["ts"] + e["dur"]) for e in ends])
    assert [len(slices) for slices in ranks] == [1] * 4
    last_to_come = max(slices[0][0] for slices in ranks)
    assert all(slices[0][1] >= last_to_come for slices in ranks)


def test_ranks_files_become_one(runs: tuple[Path, list[Any]]) -> None:
    (folder,) = (runs[0] / "bmuf_gtc").glob("2*")
    merged = json.loads(merge_timelines(folder).read_text())
    assert len(merged) == sum(len(events) for events in _traces(runs[0] / "bmuf_gtc"))
    check_nesting(merged)


class _Dies(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 3:
            for callback in self.trainer.callbacks:
                if isinstance(callback, Timeline):
                    callback._flushed_s = -1e9  # as if two seconds had passed
        if batch_idx == 4 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


def _fit_and_die(folder: str) -> None:
    strategy = lh.BMUFStrategy(block_size=2, timeout=timedelta(seconds=5), warmup_steps=0)
    trainer = make_trainer(strategy, callbacks=[Timeline(folder)])
    trainer.fit(_Dies(), loader(6))


def test_run_that_dies_leaves_files_that_open(tmp_path: Path) -> None:
    outcomes = rank_outcomes(_fit_and_die, 2, str(tmp_path))
    assert outcomes[1].died
    assert outcomes[0].error is not None
    survivor, killed = sorted(tmp_path.glob("*/rank_*.json"))
    events = json.loads(survivor.read_text())
    assert events[-1]["name"] == "ended by PeerError"
    assert not killed.read_text().rstrip().endswith("]")
    events = read_open_array(killed.read_text())
    check_form(events)
    assert sum(event["name"] == "batch" for event in events) == 4
