"""The examples of docs/model_parallel.md train, and all ranks end with the same weights."""

from __future__ import annotations

import os
import warnings

import pytest
import torch

from tests.docs.pages import Page
from tests.docs.running import run_code
from tests.ranks import run_ranks
from tests.sharded.nets import gathered


def _trained(code: list[str], model: str) -> list[float]:
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


@pytest.mark.parametrize("model", ["Model", "OwnSampler"])
def test_examples_train(model: str) -> None:
    page = Page.read("docs/model_parallel.md")
    code = [block.text for block in page.code("tests/sharded/test_docs.py")]
    weights = run_ranks(_trained, 4, code, model, ranks_per_node=2)
    assert all(own == weights[0] for own in weights)
