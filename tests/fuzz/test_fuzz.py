"""The fuzzer on fixed seeds, and on strategies with planted faults, which it must report."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import lightning_hier as lh
from tests.fuzz.__main__ import describe
from tests.fuzz.case import Case, Fault
from tests.fuzz.checking import SUCCESS, Verdict, check
from tests.fuzz.drawing import draw

# Streaming DiLoCo with RMSprop outside, BMUF that sends sparse int8, two optimizers weighted by
# samples, late moments under GTC with ranks that share a device, both servers.
SEEDS = (792, 5448, 646, 2277, 1036, 107)


class _OneRankDiffers(lh.BMUFStrategy):
    """Rank 1 ends training with other parameters than the other ranks."""

    def teardown(self) -> None:
        if self.global_rank == 1:
            with torch.no_grad():
                next(iter(self.lightning_module.parameters()))[0, 0] += 1.0
        super().teardown()


class _ChangesInValidation(lh.BMUFStrategy):
    """Validation changes the learning rate."""

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        self.optimizers[0].param_groups[0]["lr"] *= 0.5
        return super().validation_step(*args, **kwargs)


class _BareKeyError(lh.BMUFStrategy):
    """All ranks fail with an error that names no way out."""

    def on_train_start(self) -> None:
        raise KeyError("step")


class _ForgetsOnResume(lh.BMUFStrategy):
    """A resumed run continues with another learning rate."""

    def on_train_start(self) -> None:
        super().on_train_start()
        if self.lightning_module.trainer.ckpt_path:
            self.optimizers[0].param_groups[0]["lr"] *= 0.5


class _Hangs(lh.BMUFStrategy):
    """Rank 1 never ends."""

    def on_train_start(self) -> None:
        super().on_train_start()
        while os.environ["RANK"] == "1":
            pass


@pytest.mark.parametrize("seed", SEEDS)
def test_case_of_a_fixed_seed_keeps_every_property(seed: int) -> None:
    verdict = check(draw(seed))
    assert not verdict.failed, describe(seed, verdict)
    assert verdict.end.startswith(SUCCESS)


@pytest.mark.parametrize(
    ("strategy", "property_"),
    [
        (_OneRankDiffers, "ranks_end_with_one_model"),
        (_ChangesInValidation, "evaluation_changes_nothing"),
        (_BareKeyError, "errors_are_clear"),
        (_ForgetsOnResume, "resuming_is_exact"),
    ],
)
def test_planted_fault_is_reported(strategy: Any, property_: str) -> None:
    case = Case(seed=1, strategy=(strategy, {"block_size": 3}), batches=4, resume_ranks=2)
    verdict = check(case)
    assert (verdict.failed, verdict.end) == (True, property_)


def test_hanging_rank_is_reported_with_its_traceback() -> None:
    hangs: Any = _Hangs
    case = Case(seed=1, strategy=(hangs, {"block_size": 3}))
    verdict = check(case, limit_s=6.0)
    assert (verdict.failed, verdict.end) == (True, "ends_in_time")
    assert "test_fuzz.py" in verdict.traceback


def test_killed_rank_is_named_and_the_run_resumes() -> None:
    fault = Fault(kind="kill", rank=1, step=5)
    strategy = ("BMUFStrategy", {"block_size": 2})
    verdict = check(Case(seed=1, strategy=strategy, fault=fault, resume_ranks=2))
    assert verdict == Verdict(f"{SUCCESS} after a kill")


def test_case_depends_on_its_seed_only_and_its_text_creates_it() -> None:
    for seed in range(300):
        case = draw(seed)
        assert case == draw(seed)
        assert eval(str(case), {"Case": Case, "Fault": Fault}) == case
