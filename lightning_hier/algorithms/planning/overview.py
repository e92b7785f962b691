"""All strategies beside each other, on one network and on ever more hosts of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from lightning_hier.algorithms.arguments import check_whole
from lightning_hier.algorithms.planning.blocks import (
    predict_blocks,
    predict_bmuf,
    predict_bmuf_adam,
    predict_bmuf_gtc,
    predict_model_averaging,
)
from lightning_hier.algorithms.planning.ddp import predict_ddp
from lightning_hier.algorithms.planning.gtc import GTCSettings, predict_gtc
from lightning_hier.algorithms.planning.network import Network
from lightning_hier.algorithms.planning.prediction import Prediction
from lightning_hier.algorithms.planning.psp import predict_psp
from lightning_hier.algorithms.planning.synchronisation import AcrossDtype, BlockSettings
from lightning_hier.algorithms.planning.two_stage import (
    TwoStageSettings,
    predict_two_stage_asgd,
)
from lightning_hier.algorithms.planning.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Settings that the strategies have in common.

    Attributes:
        block_size: tau.
        group_size: P, of the strategies that have groups.
        density: of GTC.
        push_period: N of two-stage ASGD.
        across_dtype: in what form models travel.
        overlap: whether they travel beside the next block, where a strategy can.

    Raises:
        ValueError: a value outside its range.

    """

    block_size: int = 50
    group_size: int = 1
    density: float = 0.01
    push_period: int = 4
    across_dtype: AcrossDtype = "same"
    overlap: bool = False

    def __post_init__(self) -> None:
        """Check the values, by those who use them."""
        self.block_settings()
        GTCSettings(density=self.density)
        check_whole("push_period", self.push_period)

    def block_settings(self) -> BlockSettings:
        """Those of block synchronisation."""
        return BlockSettings(
            block_size=self.block_size,
            group_size=self.group_size,
            across_dtype=self.across_dtype,
            overlap=self.overlap,
        )


Predict = Callable[[Workload, Network], Prediction]


def strategies(workload: Workload, choices: Choices) -> dict[str, Predict]:
    """What can train such a workload, by name."""
    blocks, gtc = choices.block_settings(), GTCSettings(density=choices.density)
    pushes = TwoStageSettings(push_period=choices.push_period)
    found: dict[str, Predict] = {
        "ddp": lambda work, net: predict_ddp(work, net),
        "gtc": lambda work, net: predict_gtc(work, net, gtc),
        "model_averaging": lambda work, net: predict_model_averaging(work, net, blocks),
    }
    if workload.optimizer == "adam":
        found["bmuf_adam"] = lambda work, net: predict_bmuf_adam(work, net, blocks)
        moments = replace(blocks, carried="moments", overlap=False)
        name = "bmuf_adam in groups"
        found[name] = lambda work, net: predict_blocks(work, net, moments, gtc, name=name)
    else:
        found["bmuf"] = lambda work, net: predict_bmuf(work, net, blocks)
        found["bmuf_gtc"] = lambda work, net: predict_bmuf_gtc(work, net, blocks, gtc)
    found["two_stage_asgd"] = lambda work, net: predict_two_stage_asgd(work, net, pushes)
    found["psp"] = lambda work, net: predict_psp(work, net)
    if choices.group_size == 1:
        found.pop("bmuf_adam in groups", None)
        found.pop("bmuf_gtc", None)
    return found


def predict_all(workload: Workload, network: Network, choices: Choices) -> list[Prediction]:
    """One prediction of each strategy.

    Raises:
        ValueError: groups that do not fit the hosts.

    """
    found = strategies(workload, choices).values()
    return [predict(workload, network) for predict in found]


def speedups(
    workload: Workload, network: Network, choices: Choices, hosts: Iterable[int]
) -> dict[str, list[Prediction]]:
    """Predictions of each strategy on ever more hosts, by its name.

    Two-stage ASGD keeps its push period here, and waits where the master's link is full: otherwise
    pushes would grow with the hosts until nothing is learnt from them, at a speed that looks fine.
    """
    clusters = [replace(network, hosts=number) for number in hosts]
    found = strategies(workload, choices)
    kept = TwoStageSettings(push_period=choices.push_period, waits=True)
    found["two_stage_asgd"] = lambda work, net: predict_two_stage_asgd(work, net, kept)
    return {
        name: [predict(workload, cluster) for cluster in clusters]
        for name, predict in found.items()
    }


def doublings(most: int, group_hosts: int = 1) -> list[int]:
    """Hosts of 1, 2, 4, ... groups, and of as many as there can be.

    Args:
        most: hosts.
        group_hosts: hosts of a group; 1 where a host has several.

    Raises:
        ValueError: there is no room for a group.

    """
    check_whole("most", most)
    if most < group_hosts:
        raise ValueError(f"most must be at least {group_hosts}, the hosts of a group, got {most}")
    groups = most // group_hosts
    found = [1 << power for power in range(groups.bit_length())]
    return [group_hosts * number for number in sorted({*found, groups})]
