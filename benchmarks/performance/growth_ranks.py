"""What a rank does to show how cost grows: steps of GTC and synchronisations of BMUF, alone.

One tensor, no Lightning and no DDP: what is measured is ours. Run by torchrun.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter

from benchmarks.opened_blocks import open_blocks
from benchmarks.performance.on_rank import report
from lightning_hier import BMUF, GTC
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gtc_reducer import GTCReducer
from lightning_hier.comm.gradients.reducers import GradientBucket
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.comm.traffic import Traffic
from lightning_hier.comm.worker import GradientMemory, TensorMemory

_REPETITIONS = 5
_SIGMA = 1e-3


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size.

    Attributes:
        elements: of the tensor.
        density: of GTC.

    """

    elements: int
    density: float

    def told(self) -> dict[str, float]:
        """For the store, and for the ranks."""
        return asdict(self)


def _communicators(group_size: int) -> Communicators:
    return Communicators.build(
        RankLayout.two_tiers(group_size, dist.get_world_size()),
        device=torch.device("cpu"),
        timeout=timedelta(seconds=300),
        traffic=Traffic(),
    )


def _least(act: Callable[[], object], prepare: Callable[[], object]) -> float:
    """Processor seconds of the whole process, the least of some repetitions."""
    taken = []
    for _ in range(_REPETITIONS + 1):
        prepare()
        dist.barrier()
        begun = time.process_time()
        act()
        taken.append(time.process_time() - begun)
    return min(taken[1:])


def gtc(point: Point) -> dict[str, float]:
    """A step of GTC in one group of all ranks, in the middle of a run."""
    communicators = _communicators(dist.get_world_size())
    threshold = _SIGMA / point.density**0.5
    generator = torch.Generator().manual_seed(dist.get_rank())
    residual = torch.rand(point.elements, generator=generator)
    residual.add_(torch.rand(point.elements, generator=generator)).sub_(1.0).mul_(threshold)
    flat = torch.empty(point.elements)
    parameter = Parameter(flat)  # of which only the length is read
    memory = GradientMemory({parameter: TensorMemory(residual, threshold)})
    config = GTC(threshold=threshold, density=point.density)
    reducer = GTCReducer(communicators.group, config, [memory])
    bucket = GradientBucket([parameter], [flat], [()])
    seconds = _least(
        lambda: reducer.reduce(bucket).wait(),
        lambda: flat.normal_(0.0, _SIGMA, generator=generator),
    )
    calls = _REPETITIONS + 1
    return {
        "gtc_s": seconds,
        "gtc_bytes": communicators.traffic.total("group").payload_bytes / calls,
    }


def bmuf(point: Point) -> dict[str, float]:
    """A synchronisation of BMUF, every rank a worker."""
    communicators = _communicators(1)
    module = nn.ParameterList([torch.zeros(point.elements)])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    synchroniser = open_blocks(module, optimizer, BMUF(block_size=1), communicators)
    seconds = _least(lambda: synchroniser.after_step(0), lambda: None)
    calls = _REPETITIONS + 1
    return {
        "bmuf_s": seconds,
        "bmuf_bytes": communicators.traffic.total("across").payload_bytes / calls,
    }


def main() -> None:
    """Measure the point that the first argument tells."""
    told = json.loads(sys.argv[1])
    point = Point(elements=told["elements"], density=told["density"])
    report(told["folder"], lambda: gtc(point) | bmuf(point))


if __name__ == "__main__":
    main()
