"""Tests of `lightning-hier measure`: batch sizes for equal steps, errors, and two ranks."""

from __future__ import annotations

import re
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from examples.unequal_hosts import ShareOfBatch
from lightning_hier.cli.main import main
from lightning_hier.cli.measure import Line, equal_steps, median_step, report
from tests.conftest import REPOSITORY
from tests.ranks import run_ranks

SAMPLE_S = 5e-4
CONFIG = REPOSITORY / "examples" / "unequal_hosts.yaml"
SPEEDS = st.builds(Line, st.floats(0.0, 0.01), st.floats(0.001, 0.01))


@given(st.lists(SPEEDS, min_size=2, max_size=8), st.integers(100, 1000))
def test_steps_are_equally_long_within_one_sample(lines: list[Line], mean: int) -> None:
    sizes = equal_steps(lines, mean * len(lines))
    assert sum(sizes) == mean * len(lines)
    # A real number of samples would make all of them equal.
    pairs = list(zip(lines, sizes, strict=True))
    shortest = min(line.seconds(size + 1) for line, size in pairs)
    assert max(line.seconds(size - 1) for line, size in pairs) < shortest


def test_accumulated_batches_count_as_a_mean() -> None:
    """Of two batches, the second one also has the optimizer's step."""
    ends = [0.0]
    for batch in range(23):
        ends.append(ends[-1] + (0.03 if batch % 2 else 0.01))
    assert median_step(ends, 2) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[0.1, 0.1], [0.1, 0.2]], "steps of host 0 take 100.0 ms with 8 .* a larger batch_size"),
        ([[0.01, 0.02], [9.0, 9.1]], "host 1 is too slow"),
    ],
    ids=["constant", "slow"],
)
def test_times_without_a_solution_are_errors(table: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        report((8, 16), table, equal=16)


class Sleeper(pl.LightningModule):
    """Its steps take a time in proportion to the batch, twice as long on the second host."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        time.sleep(SAMPLE_S * len(batch[0]) * (1 + self.trainer.node_rank))
        return self.layer(batch[0]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Zeros(pl.LightningDataModule):
    def __init__(self, batch_size: int = 32, samples: int = 4000) -> None:
        super().__init__()
        self.batch_size, self.samples = batch_size, samples

    def train_dataloader(self) -> DataLoader[Any]:
        data = TensorDataset(torch.zeros(self.samples, 1))
        return DataLoader(data, batch_size=self.batch_size)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([f"--config={CONFIG}"], "but all ranks are on one"),
        ([f"--config={CONFIG}", "--data.batch_size=2"], "of at least 4, got 2"),
        (["--model=tests.trainer.fitting.Net", "--trainer.devices=1"], "number of .* got None"),
        ([f"--config={CONFIG}", "--trainer.accumulate_grad_batches=20"], "fewer than .*=20"),
    ],
    ids=["one_host", "small", "no_batch_size", "long_step"],
)
def test_what_cannot_be_measured_is_an_error(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["measure", *args, "--trainer.num_nodes=1", "--trainer.accelerator=cpu"])
    assert stop.value.code == 2
    assert re.search(message, capsys.readouterr().err)


def test_ranks_have_different_samples_and_equally_many_batches() -> None:
    data: Any = list(range(100))
    shares = [ShareOfBatch(data, [5, 2, 3], rank) for rank in range(3)]
    assert [len(share) for share in shares] == [10, 10, 10]
    batches = [list(share) for share in shares]
    assert [len(rank[0]) for rank in batches] == [5, 2, 3]
    assert sorted(sample for rank in batches for batch in rank for sample in batch) == data
    shares[0].sampler.set_epoch(1)
    assert list(shares[0]) != batches[0]


@pytest.mark.parametrize(("samples", "got"), [(0, 0), (320, 20)])
def test_too_little_data_is_an_error(samples: int, got: int) -> None:
    for _, said in run_ranks(_measured, 2, samples, ranks_per_node=1):
        assert f"samples on every rank, got {got}: use more data" in said


def _measured(samples: int) -> tuple[str, str]:
    """What the command prints on this rank."""
    args = ["--model=tests.cli.test_measure.Sleeper", "--data=tests.cli.test_measure.Zeros"]
    args += [f"--data.samples={samples}", "--trainer.num_nodes=2", "--trainer.devices=1"]
    with redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()) as said:
        with suppress(SystemExit):
            main(["measure", *args, "--trainer.accelerator=cpu"])
    return printed.getvalue(), said.getvalue()


def test_two_hosts_print_batch_sizes() -> None:
    (printed, _), (of_other, _) = run_ranks(_measured, 2, 4000, ranks_per_node=1)
    first, second = map(int, re.findall(r"host \d: (\d+)    [\d.]+ ms a step", printed))
    assert first + second == 64
    # 43 and 21 without the time that this machine needs besides; equal batches have 32.
    assert 38 <= first <= 46
    assert "ms a step" not in of_other
