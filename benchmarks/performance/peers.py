"""Comparable strategies of Lightning, PyTorch and torchft.

Each function returns the strategy and the callbacks of a Trainer. If the strategy is None, the
Trainer trains each rank independently, and a callback communicates after steps of the optimizer.
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
    """Lightning's DDPStrategy with a communication hook on the CPU.

    Lightning registers communication hooks on CUDA only, and ignores them on other devices.
    """

    def _register_ddp_hooks(self) -> None:
        if self._ddp_comm_hook is not None and isinstance(self.model, DistributedDataParallel):
            self.model.register_comm_hook(self._ddp_comm_state, self._ddp_comm_hook)


class HierarchicalPostLocalSGD(HookedDDP):
    """PostLocalSGD that averages frequently over groups, and rarely over all ranks.

    Lightning creates a PeriodicModelAverager by default. Its optimizer step calls any averager.
    """

    def _enable_model_averaging(self) -> None:
        periods = OrderedDict([(_GROUP_PERIOD, _GROUP_SIZE), (_BLOCK, dist.get_world_size())])
        averager = HierarchicalModelAverager(period_group_size_dict=periods)
        # With 0, it would average after the first step. Ours average after the fiftieth.
        averager.step = 1
        self._model_averager = averager


def missing(package: str) -> str | None:
    """Return how to install ``package``, or None if it is installed."""
    if find_spec(package) is not None:
        return None
    return f"{package} is not installed: pip install -c constraints.txt '.[peers]'"


def ddp() -> Peer:
    """Lightning's DDP with defaults."""
    return DDPStrategy(process_group_backend="gloo"), []


def ddp_fp16() -> Peer:
    """DDP with gradients communicated as float16."""
    return HookedDDP(ddp_comm_hook=default_hooks.fp16_compress_hook), []


def ddp_bf16() -> Peer:
    """DDP with gradients communicated as bfloat16."""
    return HookedDDP(ddp_comm_hook=default_hooks.bf16_compress_hook), []


def power_sgd(**ddp_arguments: Any) -> Peer:
    """DDP with PowerSGD of matrix rank 1, from the third step on."""
    state = PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    return HookedDDP(ddp_comm_state=state, ddp_comm_hook=powerSGD_hook, **ddp_arguments), []


def post_local_sgd() -> Peer:
    """Local SGD that averages over groups every 10 steps, and over all ranks every 50 steps."""
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
    """LocalSGD of torchft, which averages models every 50 steps."""
    from benchmarks.performance.torchft_peers import TorchftAverager

    return None, [TorchftAverager("local_sgd", _BLOCK)]


def torchft_diloco() -> Peer:
    """DiLoCo of torchft: an outer step by SGD with Nesterov momentum every 50 steps."""
    from benchmarks.performance.torchft_peers import TorchftAverager

    return None, [TorchftAverager("diloco", _BLOCK)]


def torchft_streaming() -> Peer:
    """DiLoCo of torchft in five fragments, each applied nine steps after it is sent."""
    from benchmarks.performance.torchft_peers import TorchftAverager

    return None, [TorchftAverager("diloco", _BLOCK, fragments=5, delay=9)]
