"""Steps of GTC and synchronisations of BMUF on one rank, without Lightning and DDP.

torchrun starts this module on every rank. The model is one tensor, so that only the code of this
package is measured.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
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
    """Settings of one measurement.

    Attributes:
        elements: number of elements of the tensor.
        density: density of GTC.

    """

    elements: int
    density: float


def _communicators(group_size: int) -> Communicators:
    return Communicators.build(
        RankLayout.two_tiers(group_size, dist.get_world_size()),
        device=torch.device("cpu"),
        timeout=timedelta(seconds=300),
        traffic=Traffic(),
    )


def _shortest(act: Callable[[], object], prepare: Callable[[], object]) -> float:
    """Return the processor time of ``act`` in seconds, all threads, minimum of the repetitions."""
    seconds = []
    for _ in range(_REPETITIONS + 1):
        prepare()
        dist.barrier()
        begun = time.process_time()
        act()
        seconds.append(time.process_time() - begun)
    return min(seconds[1:])


def gtc(point: Point) -> dict[str, float]:
    """Measure a step of GTC in one group of all ranks, with residuals as after many steps."""
    communicators = _communicators(dist.get_world_size())
    threshold = _SIGMA / point.density**0.5
    generator = torch.Generator().manual_seed(dist.get_rank())
    residual = torch.rand(point.elements, generator=generator)
    residual.add_(torch.rand(point.elements, generator=generator)).sub_(1.0).mul_(threshold)
    flat = torch.empty(point.elements)
    parameter = Parameter(flat)  # GTC reads only its length
    memory = GradientMemory({parameter: TensorMemory(residual, threshold)})
    config = GTC(threshold=threshold, density=point.density)
    reducer = GTCReducer(communicators.group, config, memory)
    bucket = GradientBucket([parameter], flat)
    seconds = _shortest(
        lambda: reducer.reduce(bucket).wait(),
        lambda: flat.normal_(0.0, _SIGMA, generator=generator),
    )
    calls = _REPETITIONS + 1
    return {
        "gtc_s": seconds,
        "gtc_bytes": communicators.traffic.total("group").payload_bytes / calls,
    }


def bmuf(point: Point) -> dict[str, float]:
    """Measure a synchronisation of BMUF with groups of one rank."""
    communicators = _communicators(1)
    module = nn.ParameterList([torch.zeros(point.elements)])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    synchroniser = open_blocks(module, optimizer, BMUF(block_size=1), communicators)
    seconds = _shortest(lambda: synchroniser.after_step(0), lambda: None)
    calls = _REPETITIONS + 1
    return {
        "bmuf_s": seconds,
        "bmuf_bytes": communicators.traffic.total("across").payload_bytes / calls,
    }


def main() -> None:
    """Measure the point of the first argument."""
    settings = json.loads(sys.argv[1])
    point = Point(elements=settings["elements"], density=settings["density"])
    report(settings["folder"], lambda: gtc(point) | bmuf(point))


if __name__ == "__main__":
    main()
