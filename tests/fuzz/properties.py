"""Properties of every case. Each is a function that returns a description of its violation.

A property returns None if it holds, or does not apply to the case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_hier import GTC, BMUFAdam, DiLoCo
from tests.fuzz.case import Case
from tests.fuzz.training import Record
from tests.resume.runs import differences


@dataclass(frozen=True)
class Runs:
    """Records of all ranks.

    Attributes:
        case: the case.
        evaluated: records of the run with validation and a save.
        plain: records of the run without them.
        resumed: records of the resumed run.

    """

    case: Case
    evaluated: Sequence[Record]
    plain: Sequence[Record] = ()
    resumed: Sequence[Record] = ()

    @property
    def newest(self) -> Sequence[Record]:
        """Records of the last run."""
        return self.resumed or self.evaluated

    @property
    def strategy(self) -> Any:
        """A strategy with the settings of the case."""
        return self.case.make_strategy()


Property = Callable[[Runs], str | None]


def ranks_end_with_one_model(runs: Runs) -> str | None:
    """After ``fit``, all parameters and buffers are equal on all ranks."""
    return _unequal([record["state"] for record in runs.newest], "state")


def validation_sees_one_model(runs: Runs) -> str | None:
    """In every validation, the parameters are equal on all ranks."""
    return _unequal([record["validated"] for record in runs.newest], "validated")


def _has_local_residuals(runs: Runs) -> bool:
    """Whether GTC of updates leaves what it has not sent in the local models."""
    gtc, optimizers = getattr(runs.strategy, "gradient_sync", None), runs.case.optimizers
    plain = all(name == "SGD" and not options.get("momentum") for name, options in optimizers)
    return isinstance(gtc, GTC) and gtc.of != "gradient" and not plain


def groups_hold_one_model(runs: Runs) -> str | None:
    """After every batch, the parameters are equal on the ranks of a group."""
    case, strategy = runs.case, runs.strategy
    if case.has_servers or runs.resumed or _has_local_residuals(runs):
        return None
    size = {"world": case.ranks, "node": case.ranks // case.hosts}.get(
        strategy.group_size, strategy.group_size
    )
    for first in range(0, case.ranks, size):
        group = [record["seen"] for record in runs.newest[first : first + size]]
        problem = _unequal(group, f"seen in the group that starts with rank {first}")
        if problem is not None:
            return problem
    return None


def blocks_start_from_one_model(runs: Runs) -> str | None:
    """After each step of the warm-up and at each end of a block, all ranks have one model."""
    case, strategy = runs.case, runs.strategy
    if case.has_servers or strategy.block_sync is None or runs.resumed:
        return None
    if _has_local_residuals(runs):
        return None
    if case.by_hand or strategy.block_sync.overlap:
        return None
    if strategy.block_sync.fragments > 1:
        return None
    # The attribute of the strategy is a number also before the automatic one is known.
    warmup = case.strategy[1].get("warmup_steps", "auto")
    if "auto" in (warmup, strategy.block_sync.block_size):
        return None
    for number, step in enumerate(_steps_by_batch(case)):
        beyond = step - warmup
        if step == 0 or (beyond > 0 and beyond % strategy.block_sync.block_size):
            continue
        if number + 1 < case.batches * case.epochs and _steps_by_batch(case)[number + 1] == step:
            continue
        problem = _unequal([r["seen"][number] for r in runs.evaluated], f"after step {step}")
        if problem is not None:
            return problem
    return None


def evaluation_changes_nothing(runs: Runs) -> str | None:
    """Runs with and without validation and a save are bit-equal."""
    for rank, (plain, evaluated) in enumerate(zip(runs.plain, runs.evaluated, strict=False)):
        if runs.resumed:
            return None
        names = ("seen", "state", "optimizers", "steps", "epoch", "lr")
        one, other = ({name: record[name] for name in names} for record in (plain, evaluated))
        problems = differences(_comparable(one), _comparable(other), f"rank {rank}")
        if problems:
            return _few(problems)
    return None


def all_steps_are_made(runs: Runs) -> str | None:
    """All ranks have the number of steps that follows from epochs, batches and accumulation."""
    case = runs.case
    steps = {record["steps"] for record in runs.newest}
    elsewhere = bool(runs.resumed) and case.resume_ranks != case.ranks
    if case.by_hand or elsewhere:
        return None if len(steps) == 1 else f"steps by rank: {sorted(steps)}"
    expected = case.epochs * math.ceil(case.batches / case.accumulate)
    return None if steps == {expected} else f"{sorted(steps)} steps instead of {expected}"


def resuming_is_exact(runs: Runs) -> str | None:
    """A resumed run is bit-equal to the run that was saved."""
    case = runs.case
    if not (runs.evaluated and runs.resumed) or case.resume_ranks != case.ranks or case.has_servers:
        return None
    for rank, (through, resumed) in enumerate(zip(runs.evaluated, runs.resumed, strict=True)):
        names = ("state", "optimizers", "steps", "epoch", "lr")
        count = len(resumed["seen"])
        later = through["seen"][len(through["seen"]) - count :]
        ends = [{name: record[name] for name in names} for record in (through, resumed)]
        one, other = _comparable([later, ends[0]]), _comparable([resumed["seen"], ends[1]])
        problems = differences(one, other, f"rank {rank}")
        if problems:
            return _few(problems)
    return None


def averaging_conserves(runs: Runs) -> str | None:
    """With MA, or Nesterov block momentum and zeta = 1, fit returns the mean of local models."""
    case, strategy = runs.case, runs.strategy
    block = None if case.has_servers else strategy.block_sync
    exact = case.precision in ("32-true", "64-true") and case.dtype in ("float32", "float64")
    if block is None or not exact or case.fault or runs.resumed:
        return None
    lookahead = getattr(block, "nesterov", True) and getattr(block, "block_lr", 1.0) == 1.0
    if block.overlap or block.fragments > 1 or block.has_error_feedback or not lookahead:
        return None
    if isinstance(block, DiLoCo):
        return None
    if not isinstance(block, BMUFAdam) and getattr(block, "update_from", "global") != "global":
        return None
    for name in runs.evaluated[0]["local"]:
        mean = torch.stack([record["local"][name].double() for record in runs.evaluated]).mean(0)
        model = runs.evaluated[0]["state"][name]
        distance = float((mean - model.double()).abs().max())
        if distance > 1e-5 * max(1.0, float(mean.abs().max())):
            return f"{name} is {distance:.3g} apart from the mean of the local models"
    return None


def model_is_finite(runs: Runs) -> str | None:
    """The final model of a run with block synchronisation or servers is finite."""
    case, strategy = runs.case, runs.strategy
    if case.has_servers or strategy.block_sync is not None:
        bad = [
            name
            for name, value in runs.newest[0]["state"].items()
            if value.is_floating_point() and not value.isfinite().all()
        ]
        return f"not finite: {', '.join(bad)}" if bad else None
    return None


PROPERTIES: Sequence[Property] = (
    model_is_finite,
    ranks_end_with_one_model,
    validation_sees_one_model,
    groups_hold_one_model,
    blocks_start_from_one_model,
    all_steps_are_made,
    evaluation_changes_nothing,
    resuming_is_exact,
    averaging_conserves,
)


def _steps_by_batch(case: Case) -> list[int]:
    """The number of completed steps after each batch of the run."""
    steps, counts = 0, []
    for batch in range(case.batches * case.epochs):
        place = batch % case.batches + 1
        steps += place % case.accumulate == 0 or place == case.batches
        counts.append(steps)
    return counts


def _unequal(values: Sequence[Any], name: str) -> str | None:
    for rank, value in enumerate(values[1:], 1):
        problems = differences(
            _comparable(values[0]), _comparable(value), f"{name}, rank 0 and {rank}"
        )
        if problems:
            return _few(problems)
    return None


def _comparable(value: Any) -> Any:
    """The value with NaN and inf replaced by large numbers, so that NaN is equal to NaN."""
    if isinstance(value, Tensor):
        return value.nan_to_num(nan=1e30, posinf=2e30, neginf=-2e30)
    if isinstance(value, dict):
        return {name: _comparable(one) for name, one in value.items()}
    return [_comparable(one) for one in value] if isinstance(value, list) else value


def _few(problems: Sequence[str]) -> str:
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more
