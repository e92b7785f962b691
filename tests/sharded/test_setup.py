"""Setup of a divided module: mesh, batches, samplers, initialisation, and stages without fit."""

from __future__ import annotations

import os
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, DistributedSampler

import lightning_hier as lh
from tests.docs.pages import Page
from tests.docs.running import run_code
from tests.ranks import run_ranks
from tests.sharded.nets import Divided, batches, gathered, in_turn
from tests.trainer.fitting import make_trainer


def _trainer(*, group_size: int = 2, tensor_parallel_size: int = 1, **settings: Any) -> Any:
    strategy = lh.HierarchicalModelParallelStrategy(
        group_size=group_size,
        tensor_parallel_size=tensor_parallel_size,
        block_sync=lh.DiLoCo(block_size=2),
    )
    return make_trainer(strategy, **settings)


class TensorParallel(Divided):
    """Two layers that only tensor parallelism divides. Records its batches."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__("AdamW", lr=0.02)
        del self.scale
        self.register_buffer("shift", torch.full((1,), float(os.environ["RANK"])))
        self.configured = 0
        self.batches: list[Tensor] = []

    def configure_model(self) -> None:
        self.configured += 1
        mesh: Any = self.device_mesh
        plan: Any = {"first": ColwiseParallel(), "second": RowwiseParallel()}
        parallelize_module(self, mesh["tensor_parallel"], plan)

    def forward(self, batch: Tensor) -> Tensor:
        result: Tensor = self.second(torch.tanh(self.first(batch)))
        return result

    def on_train_start(self) -> None:
        mesh: Any = self.device_mesh
        assert mesh.mesh_dim_names == ("data_parallel", "tensor_parallel")
        assert tuple(mesh.shape) == (1, 2)
        assert not self.shift.any()  # nothing divides the buffer, so rank 0 has broadcast its value
        optimizer: Any = self.optimizers()
        for own in optimizer.param_groups[0]["params"]:
            assert isinstance(own, DTensor)
            assert own.device_mesh == mesh["tensor_parallel"]
        loader: Any = self.trainer.train_dataloader
        assert isinstance(loader.sampler, DistributedSampler)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.batches.append(batch[0].clone())
        return super().training_step(batch, batch_idx)


def _tensor_parallel() -> tuple[Tensor, int, Tensor]:
    module = TensorParallel()
    _trainer(tensor_parallel_size=2).fit(module, batches(2, 4))
    return torch.stack(module.batches), module.configured, gathered(module)


@pytest.fixture(scope="module")
def results() -> list[Any]:
    """What four jobs return on all ranks, which start once."""
    jobs = [_tensor_parallel, _initialised, _stages, partial(_warnings, True, group_size=2)]
    return [*zip(*run_ranks(in_turn, 4, jobs), strict=True)]


def test_tensor_parallelism_alone(results: list[Any]) -> None:
    """Ranks of a group train on the same batches, groups on different ones."""
    results = results[0]
    seen = [own for own, _, _ in results]
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[2], seen[3])
    assert len(seen[0]) == 4 and not torch.equal(seen[0], seen[2])
    assert [configured for _, configured, _ in results] == [1] * 4
    assert all(torch.equal(results[0][2], own) for _, _, own in results)


class Precise(Divided):
    """A module with the precision and on the device of the Trainer's context."""

    def __init__(self) -> None:
        super().__init__("AdamW", lr=0.02)
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 2)
        self.scale = nn.Parameter(torch.ones(1))
        self.dtype_at_start: torch.dtype | None = None

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)

    def on_train_start(self) -> None:
        assert all(own.device.type == "cpu" for own in self.parameters())
        (self.dtype_at_start,) = {own.dtype for own in self.parameters()}

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return super().training_step([own.to(self.scale.dtype) for own in batch], batch_idx)


def _initialised() -> tuple[torch.dtype | None, Tensor]:
    trainer = _trainer(precision="bf16-true")
    with trainer.init_module(empty_init=True):
        module = Precise()
    assert module.first.weight.is_meta
    trainer.fit(module, batches(4, 4))
    return module.dtype_at_start, gathered(module)


def test_module_of_an_init_context(results: list[Any]) -> None:
    """The context uses the meta device. All groups train one model."""
    results = results[1]
    assert all(dtype == torch.bfloat16 for dtype, _ in results)
    assert all(torch.equal(own, results[0][1]) for _, own in results)
    assert results[0][1].isfinite().all()


class Staged(Divided):
    """A module with a step for every stage."""

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("test_loss", self.training_step(batch, batch_idx), sync_dist=True)

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        result: Tensor = self(batch[0])
        return result


def _stages() -> tuple[float, float, int]:
    module, trainer, data = Staged(), _trainer(), batches(4, 2)
    (validated,) = trainer.validate(module, data, verbose=False)
    (tested,) = trainer.test(module, data, verbose=False)
    predicted = trainer.predict(module, data)
    return validated["val_loss"], tested["test_loss"], len(predicted)


def test_stages_without_fit(results: list[Any]) -> None:
    module = Staged()
    losses = [module.training_step(list(batch), 0) for batch in batches(4, 2)]
    expected = float(torch.stack(losses).mean().detach())
    for validated, tested, predicted in results[2]:
        assert validated == pytest.approx(expected) and tested == pytest.approx(expected)
        assert predicted == 2


def test_mesh_before_the_processes_start() -> None:
    with pytest.raises(RuntimeError, match="device mesh"):
        _ = lh.HierarchicalModelParallelStrategy(block_sync=lh.DiLoCo()).device_mesh


_NEEDED = "DistributedSampler(data, **trainer.strategy.distributed_sampler_kwargs)"


class OwnSampler(Divided):
    """A module whose sampler divides the data among the ranks of a group, or among all ranks."""

    def __init__(self, of_group: bool) -> None:
        super().__init__()
        self.of_group = of_group

    def train_dataloader(self) -> Any:
        data: Any = batches(4, 2).dataset
        mesh: Any = self.device_mesh
        mesh = mesh["data_parallel"]
        parts = {"num_replicas": mesh.size(), "rank": mesh.get_local_rank()}
        own: Any = DistributedSampler(data, **(parts if self.of_group else {}))
        return DataLoader(data, batch_size=2, sampler=own)


def _warnings(of_group: bool, **settings: Any) -> list[str]:
    strategy = lh.HierarchicalModelParallelStrategy(block_sync=lh.DiLoCo(block_size=2), **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(strategy).fit(OwnSampler(of_group))
    return [str(own.message) for own in caught if "DistributedSampler" in str(own.message)]


def test_sampler_of_a_group(results: list[Any]) -> None:
    messages, *others = results[3]
    assert len(messages) == 1 and not any(others)
    [message] = messages
    assert message.startswith("4 ranks need different batches, but") and "2 parts" in message
    assert _NEEDED in message


def test_sampler_that_divides_a_batch_of_tensor_parallel_ranks() -> None:
    settings = {"group_size": 4, "tensor_parallel_size": 2}
    for error in run_ranks(_warnings, 4, False, **settings, expect_failure=True):
        assert "ranks 0 and 1 are tensor-parallel and must train on the same batches" in error
        assert _NEEDED in error


def _trained(model: str) -> list[float]:
    page = Page.read("docs/model_parallel.md")
    code = [block.text for block in page.code("tests/sharded/test_setup.py")]
    torch.manual_seed(0)
    namespace = run_code(code, {})
    module = namespace[model]()
    rows = 4 * int(os.environ["WORLD_SIZE"])
    data = torch.utils.data.TensorDataset(torch.randn(rows, 8), torch.randn(rows, 1))
    loaders = [torch.utils.data.DataLoader(data, batch_size=2)] if model == "Model" else []
    before = [own.detach().clone() for own in module.parameters()]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*DistributedSampler")
        namespace["trainer"].fit(module, *loaders)
    whole = gathered(module)
    assert not torch.equal(whole, torch.cat([own.reshape(-1) for own in before]))
    return whole.tolist()


def test_examples_train() -> None:
    jobs = [partial(_trained, model) for model in ("Model", "OwnSampler")]
    weights = run_ranks(in_turn, 4, jobs, ranks_per_node=2)
    assert all(own == weights[0] for own in weights)
