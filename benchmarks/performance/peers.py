"""The peers: what else a user of Lightning or PyTorch would take.

Each function gives the strategy and the callbacks of a Trainer. Where the strategy is None, the
Trainer trains each rank by itself and a callback does what the peer does around its optimizer.
"""

from __future__ import annotations

from collections import OrderedDict
from importlib.util import find_spec
from typing import Any

import lightning.pytorch as pl
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)
from torch.nn.parallel import DistributedDataParallel

_BLOCK, _GROUP_PERIOD, _GROUP_SIZE = 50, 10, 2

Peer = tuple[Strategy | None, list[pl.Callback]]


class HookedDDP(DDPStrategy):
    """Lightning's DDP whose communication hook also runs on the CPU.

    Lightning registers hooks on CUDA only and leaves them out without a word elsewhere.
    """

    def _register_ddp_hooks(self) -> None:
        if self._ddp_comm_hook is not None and isinstance(self.model, DistributedDataParallel):
            self.model.register_comm_hook(self._ddp_comm_state, self._ddp_comm_hook)


class HierarchicalPostLocalSGD(HookedDDP):
    """PostLocalSGD with averages inside groups, and now and then over all ranks.

    Lightning would make a PeriodicModelAverager; its optimizer step averages with whatever is here.
    """

    def _enable_model_averaging(self) -> None:
        periods = OrderedDict([(_GROUP_PERIOD, _GROUP_SIZE), (_BLOCK, dist.get_world_size())])
        averager = HierarchicalModelAverager(period_group_size_dict=periods)
        # It counts from 0 and would average after the first step; ours do after the fiftieth.
        averager.step = 1
        self._model_averager = averager


def missing(package: str) -> str | None:
    """That a peer's package is not installed, and how it would be; or None."""
    if find_spec(package) is not None:
        return None
    return f"{package} is not installed: pip install -c constraints.txt '.[peers]'"


def ddp() -> Peer:
    """Lightning's DDP as it is."""
    return DDPStrategy(process_group_backend="gloo"), []


def ddp_fp16() -> Peer:
    """Gradients travel as float16."""
    return HookedDDP(ddp_comm_hook=default_hooks.fp16_compress_hook), []


def ddp_bf16() -> Peer:
    """Gradients travel as bfloat16."""
    return HookedDDP(ddp_comm_hook=default_hooks.bf16_compress_hook), []


def power_sgd(**ddp_arguments: Any) -> Peer:
    """Low-rank gradients of rank 1, compressed from the third step on."""
    state = PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    return HookedDDP(ddp_comm_state=state, ddp_comm_hook=powerSGD_hook, **ddp_arguments), []


def post_local_sgd() -> Peer:
    """Ranks train by themselves; averages in groups every 10 steps and over all every 50."""
    state = PostLocalSGDState(
        process_group=None,
        subgroup=dist.new_subgroups(_GROUP_SIZE)[0],
        start_localSGD_iter=0,
        post_local_gradient_allreduce=False,
    )
    strategy = HierarchicalPostLocalSGD(
        ddp_comm_state=state, ddp_comm_hook=post_localSGD_hook, model_averaging_period=_BLOCK
    )
    return strategy, []


def torchft_local_sgd() -> Peer:
    """Models are averaged every 50 steps by torchft's manager."""
    from benchmarks.performance.torchft_peers import TorchftAverager

    return None, [TorchftAverager("local_sgd", _BLOCK)]


def torchft_diloco() -> Peer:
    """An outer SGD with Nesterov momentum moves the model every 50 steps, in torchft."""
    from benchmarks.performance.torchft_peers import TorchftAverager

    return None, [TorchftAverager("diloco", _BLOCK)]


def torchft_streaming() -> Peer:
    """The same in five fragments, each of which arrives nine steps after it is sent."""
    from benchmarks.performance.torchft_peers import TorchftAverager

    return None, [TorchftAverager("diloco", _BLOCK, fragments=5, delay=9)]
