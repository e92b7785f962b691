"""BMUF-Adam as a user meets it: precisions, looks at the model, bytes, logs, warnings, mistakes."""

from __future__ import annotations

import csv
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, loader, make_trainer, weights


def _rank() -> int:
    return int(os.environ["RANK"])


class _AdamNet(Net):
    """`moments` holds m, v and step count after every step."""

    def __init__(self, kind: str = "Adam", **options: Any) -> None:
        super().__init__()
        self.kind, self.options = kind, options
        self.moments: list[Tensor] = []

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        (optimizer,) = self.trainer.optimizers
        state = [value for one in optimizer.state.values() for value in one.values()]
        self.moments.append(torch.cat([value.reshape(-1).double() for value in state]))

    def configure_optimizers(self) -> Any:
        betas = self.options.get("betas", (0.5, 0.999))
        kind = getattr(torch.optim, self.kind)
        return kind(self.parameters(), **{"lr": 0.02, **self.options, "betas": betas})


def _equal(tensors: Sequence[Tensor]) -> bool:
    return all(torch.equal(tensor, tensors[0]) for tensor in tensors)


PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")


def _in_precisions() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for precision in PRECISIONS:
        for kind in ("Adam", "NAdam"):
            model = _AdamNet(kind)
            sync = lh.BMUFAdam(block_size=3, local_beta1="keep")
            strategy = lh.HierarchicalStrategy(group_size=2, block_sync=sync, warmup_steps=0)
            fit(strategy, 7, model, precision=precision)
            found[f"{precision} {kind}"] = [model.moments, weights(model)]
    return found


def test_ranks_hold_one_model_and_its_moments_in_every_precision() -> None:
    results = run_ranks(_in_precisions, 4)
    for name in results[0]:
        moments: list[list[Tensor]] = [own[name][0] for own in results]
        for step in (3, 6):
            assert _equal([seen[step - 1] for seen in moments]), name
        assert not _equal([seen[3] for seen in moments]), name
        assert _equal([own[name][1] for own in results]), name
        assert results[0][name][1].isfinite().all(), name


class _Overflows(_AdamNet):
    """In the second step the loss of one rank is beyond half precision."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * 1e38 * 1e38 if _rank() == 1 and batch_idx == 1 else loss


def _scaled() -> tuple[list[float], Tensor]:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    model, counts = _Overflows(), []

    class Counts(ModelCheckpoint):
        def on_train_batch_end(self, trainer: Any, *rest: Any, **more: Any) -> None:
            counts.append(float(trainer.optimizers[0].state[model.layers[0].weight]["step"]))

    fit(
        lh.BMUFAdamStrategy(block_size=4, block_momentum=0.5, warmup_steps=0, local_beta1="keep"),
        9,
        model,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)],
        callbacks=[Counts()],
        enable_checkpointing=True,
    )
    return counts, weights(model)


def test_step_that_one_rank_skips_counts_for_the_others_alone() -> None:
    """tau of the block is 15/4; rho = 3.75, then 0.5 * 3.75 + 4."""
    results = run_ranks(_scaled, 4)
    for counts, _ in results:
        assert counts[3] == pytest.approx(3.75 + 0.5 * 3.75, rel=1e-12)
        assert counts[7] == pytest.approx(counts[3] + 4 + 0.5 * 5.875, rel=1e-12)
    assert [counts[2] for counts, _ in results] == [3.0, 2.0, 3.0, 3.0]
    assert _equal([final for _, final in results])


LOOKS = {"P=1": (1, "corrected"), "P=2": (2, "corrected"), "averaged": (1, "average")}


def _looks(folder: Path, group_size: int, moments: Any, looking: bool) -> list[Any]:
    model = _AdamNet("NAdam")
    sync = lh.BMUFAdam(block_size=3, moments=moments, local_beta1="keep")
    strategy = lh.HierarchicalStrategy(group_size=group_size, block_sync=sync, warmup_steps=0)
    saves = ModelCheckpoint(dirpath=folder, every_n_train_steps=1, save_top_k=-1)
    settings: dict[str, Any] = (
        {"val_check_interval": 1, "enable_checkpointing": True, "callbacks": [saves]}
        if looking
        else {"limit_val_batches": 0}
    )
    trainer = make_trainer(strategy, max_epochs=2, num_sanity_val_steps=0, **settings)
    trainer.fit(model, loader(7), loader(1))
    return [*model.seen, *model.moments, weights(model)]


def _with_and_without_looks(folder: Path) -> dict[str, list[list[Tensor]]]:
    return {
        name: [_looks(folder / name, *settings, looking) for looking in (True, False)]
        for name, settings in LOOKS.items()
    }


def test_looking_changes_neither_weights_nor_moments(tmp_path: Path) -> None:
    """With validation and a checkpoint after every batch, blocks spanning epochs."""
    for own in run_ranks(_with_and_without_looks, 4, tmp_path):
        for looking, blind in own.values():
            assert len(looking) == len(blind) == 2 * 14 + 1
            assert all(torch.equal(one, other) for one, other in zip(looking, blind, strict=True))
    for name in LOOKS:
        assert len(list((tmp_path / name).glob("*.ckpt"))) == 14


SIZE = 4 * 8 + 8 + 8 * 2 + 2


def _sent(block_sync: lh.BMUFAdam | lh.BMUF, group_size: int) -> dict[str, tuple[int, float]]:
    strategy = lh.HierarchicalStrategy(group_size=group_size, block_sync=block_sync, warmup_steps=0)
    fit(strategy, 6, _AdamNet())
    counts = {kind: strategy.traffic.of("across", kind) for kind in ("models", "steps")}
    return {kind: (count.calls, count.payload_bytes) for kind, count in counts.items()}


def _sent_by_all(group_size: int) -> tuple[dict[str, tuple[int, float]], ...]:
    adam = lh.BMUFAdam(block_size=3, across="leader", local_beta1="keep")
    return _sent(adam, group_size), _sent(lh.BMUF(block_size=3, across="leader"), group_size)


@pytest.mark.parametrize("group_size", [1, 2])
def test_one_collective_a_block_carries_model_and_moments(group_size: int) -> None:
    """Two blocks: three times the bytes of the model, and a count of 8 bytes a tensor."""
    for rank, (adam, bmuf) in enumerate(run_ranks(_sent_by_all, 4, group_size)):
        leads = rank % group_size == 0
        calls, payload = adam["models"]
        assert (calls, payload) == (bmuf["models"][0], 3 * bmuf["models"][1])
        assert (calls > 0) == (payload > 0) == leads
        if leads:
            # Training ends at a block's end, so that no model is sent once more.
            assert calls == 2
            assert payload >= 2 * 3 * SIZE * 4
        assert adam["steps"][0] == 2 and 0 < adam["steps"][1] <= 2 * 2 * 4 * 8
        assert bmuf["steps"] == (0, 0)


def _logged() -> None:
    strategy = lh.BMUFAdamStrategy(block_size=2, warmup_steps=0, local_beta1="keep")
    logger = CSVLogger(os.environ["FOLDER"], name="run", version=0)
    fit(strategy, 6, _AdamNet(), logger=logger, log_every_n_steps=2)


def test_columns_of_a_run(tmp_path: Path) -> None:
    run_ranks(_logged, 2, env={"FOLDER": str(tmp_path)})
    with (tmp_path / "run" / "version_0" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("hier/across/payload_bytes")]
    for name in (
        "hier/across/models/payload_bytes",
        "hier/across/models/calls",
        "hier/across/steps/calls",
        "hier/block/update_norm",
        "hier/block/model_distance",
    ):
        assert float(rows[-1][name]) > 0, name
    assert float(rows[-1]["hier/block/blocks"]) == 3
    models, steps = (float(rows[-1][f"hier/across/{k}/payload_bytes"]) for k in ("models", "steps"))
    assert 0 < steps < models


def _told(block_sync: lh.BMUFAdam | lh.BMUF, group_size: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        strategy = lh.HierarchicalStrategy(
            group_size=group_size, block_sync=block_sync, warmup_steps=0
        )
        fit(strategy, 1, _AdamNet("AdamW", betas=(0.9, 0.999)))
    return [str(warning.message) for warning in caught if "BMUF" in str(warning.message)]


def _warnings() -> list[list[str]]:
    return [
        _told(lh.BMUF(block_size=50), 1),
        _told(lh.BMUF(block_size=50), 2),
        _told(lh.BMUFAdam(local_beta1="keep", block_size=50), 1),
    ]


def test_bmuf_with_adam_is_warned_of_where_models_are_averaged() -> None:
    """Two models are not many: nothing is said of beta1."""
    (blocks, one_model, adam), others = run_ranks(_warnings, 2)
    assert len(blocks) == 1 and "moments of AdamW" in blocks[0] and "BMUFAdam(...)" in blocks[0]
    assert one_model == adam == []
    assert others == [[], [], []]  # rank 0 alone warns


class _Poisoned(_AdamNet):
    """In the last step of a block a moment of one rank becomes bad; the weights are good."""

    def __init__(self, moment: str, value: float) -> None:
        super().__init__()
        self.moment, self.value = moment, value

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()

        def poison(*_: Any) -> None:
            state = optimizer.state[self.layers[0].weight]
            if _rank() == 2 and state["step"] == 3.0:
                state[self.moment][0, 0] = self.value

        optimizer.register_step_post_hook(poison)
        return optimizer


def _poison(group_size: int, moment: str, value: float) -> None:
    sync = lh.BMUFAdam(block_size=3, across="leader", local_beta1="keep")
    strategy = lh.HierarchicalStrategy(group_size=group_size, block_sync=sync, warmup_steps=0)
    fit(strategy, 6, _Poisoned(moment, value))


@pytest.mark.parametrize(
    ("group_size", "moment", "value"),
    [(1, "exp_avg", float("nan")), (2, "exp_avg_sq", float("inf"))],
)
def test_moment_that_is_not_finite_is_kept_out_and_its_rank_named(
    group_size: int, moment: str, value: float
) -> None:
    errors = run_ranks(_poison, 4, group_size, moment, value, expect_failure=True)
    for error in errors:
        assert re.match(r"NonFiniteModelError: .*of rank 2 holds NaN or inf after 3 steps", error)
    assert len(set(errors)) == 1
