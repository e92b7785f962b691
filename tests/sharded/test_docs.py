"""The example of docs/model_parallel.md trains."""

from __future__ import annotations

import os

import torch

from tests.docs.pages import Page
from tests.docs.running import run_code
from tests.ranks import run_ranks
from tests.sharded.nets import gathered


def _trained(code: str) -> list[float]:
    torch.manual_seed(0)
    namespace = run_code([code], {})
    model = namespace["Model"]()
    rows = 4 * int(os.environ["WORLD_SIZE"])
    data = torch.utils.data.TensorDataset(torch.randn(rows, 8), torch.randn(rows, 1))
    before = [own.detach().clone() for own in model.parameters()]
    namespace["trainer"].fit(model, torch.utils.data.DataLoader(data, batch_size=2))
    whole = gathered(model)
    assert not torch.equal(whole, torch.cat([own.reshape(-1) for own in before]))
    return whole.tolist()


def test_example_trains() -> None:
    page = Page.read("docs/model_parallel.md")
    (block,) = page.code("tests/sharded/test_docs.py")
    found = run_ranks(_trained, 4, block.text, ranks_per_node=2)
    assert all(own == found[0] for own in found)
