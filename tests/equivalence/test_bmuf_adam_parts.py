"""BMUF-Adam in fragments, and with moments that are exchanged every few blocks: float64 twins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from torch import nn

from lightning_hier import BMUFAdam
from tests.equivalence.adam_cases import AdamCase
from tests.equivalence.adam_twins import AdamTwin, Rule, Rules
from tests.equivalence.cases import case, identical
from tests.equivalence.fragment_twins import divided
from tests.equivalence.twins import Twin
from tests.equivalence.watching import Seen, assert_like_twin, twin_seen, watch_all
from tests.ranks import run_ranks


class FragmentedAdamTwin(AdamTwin):
    """Each fragment is an optimizer of its own, whose first block is shorter."""

    def step(self, index: int = 0) -> None:
        """All of them."""
        for own in range(len(self.optimizers)):
            super().step(own)


@dataclass(frozen=True, kw_only=True)
class PartsCase(AdamCase):
    """In ``n`` fragments."""

    n: int = 1

    def twin(self, net: nn.Module, names: Sequence[tuple[str, ...]]) -> Twin:
        """The twin of each fragment."""
        sizes = {name: own.numel() for name, own in net.named_parameters()}
        [own] = names
        parts = divided({name: sizes[name] for name in own}, self.n)
        rules = [Rules(of={name: self._rule(name) for name in part}) for part in parts]
        twin = FragmentedAdamTwin(net, self.recipe, rules)
        tau = self.recipe.tau
        assert tau is not None
        for number, block in enumerate(twin.blocks):
            block.steps_in_block = tau - tau * (number + 1) // self.n
        return twin


def _case(name: str, rule: Rule, *, n: int = 1, group: int = 1, **settings: Any) -> PartsCase:
    own = {"block_size": 4, "block_momentum": 0.6, "local_beta1": "keep", "fragments": n}
    return case(
        name, kind=PartsCase, sync=BMUFAdam, group_size=group, rule=rule, n=n, batches=19,
        **{**own, **settings},
    )  # fmt: skip


FAST = Rule(lr=0.02, betas=(0.5, 0.99))
NADAM = Rule(kind="nadam", lr=0.02, betas=(0.8, 0.999), psi=0.05)
CASES = [
    _case("two fragments", FAST, n=2),
    _case("three fragments of NAdam", NADAM, n=3, block_size=5),
    _case("fragments, sharded", replace(FAST, kind="adamw"), n=2, group=2, across="sharded"),
    _case("moments every second block", FAST, moments_every=2),
    _case("every third block of NAdam", NADAM, moments_every=3, block_size=2),
    _case("averages every second block", FAST, moments_every=2, moments="average"),
    _case("groups, sharded", FAST, group=2, moments_every=2, across="sharded"),
    _case("less often than the run ends", FAST, moments_every=20),
    _case("fragments, moments every second block", FAST, n=2, moments_every=2),
]


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Seen]]:
    """For each rank, what it saw."""
    return run_ranks(watch_all, 4, CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_weights_and_moments_are_those_of_the_twin(
    case: PartsCase, runs: list[dict[str, Seen]]
) -> None:
    for rank, twin in enumerate(twin_seen(case)):
        own = runs[rank][case.name]
        assert_like_twin(own, twin, tolerance=case.tolerance, rank=rank)
        assert identical(own.final, runs[0][case.name].final)
