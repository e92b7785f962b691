"""docs/migration/ddp.md: before, in between and after, on two ranks that play two hosts."""

from __future__ import annotations

from tests.docs.pages import Page
from tests.docs.running import run_code
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, weights

PAGE = Page.read("docs/migration/ddp.md")


def _trained(code: list[str]) -> list[list[float]]:
    """Weights after each step of the page; what one has imported, the next one knows."""
    found = []
    for count in range(1, len(code) + 1):
        imports = [line for text in code for line in text.splitlines() if line.startswith("from ")]
        names = run_code([*imports, code[count - 1]], {"model": Net(), "data": loader(6)})
        found.append(weights(names["model"]).tolist())
    return found


def test_one_group_is_ddp_and_two_tiers_train() -> None:
    code = [block.text for block in PAGE.code("tests/docs/test_migration_ddp.py")]
    first, second = run_ranks(_trained, 2, code, ranks_per_node=1)
    before, same, after = first
    assert first == second
    assert before == same
    assert after != before
