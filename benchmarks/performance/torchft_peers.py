"""torchft's LocalSGD and DiLoCo in a Trainer. Needs the extra `peers`.

A replica group is one rank, like a group of one rank of BMUF. The lighthouse runs in rank 0.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Literal
from unittest import mock

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo, LocalSGD

from benchmarks.joined import gathered
from lightning_hier.comm.addresses import interface_address
from lightning_hier.comm.blocks.trained import divide_parameters

_LIMIT = timedelta(seconds=300)


class _AddressedGloo(ProcessGroupGloo):
    """ProcessGroupGloo whose store has an IP address.

    Other hosts cannot resolve the name of this machine, which torchft would use.
    """

    def __init__(self, address: str) -> None:
        super().__init__(timeout=_LIMIT)
        self._address = address

    def get_reconfigure_handle(self) -> str:
        with mock.patch.object(socket, "gethostname", lambda: self._address):
            handle: str = super().get_reconfigure_handle()
        return handle


class TorchftAverager(pl.Callback):
    """Average models by torchft, which registers hooks of the optimizer during training.

    All ranks must construct it together.

    Args:
        kind: the algorithm.
        block: steps between two synchronisations.
        fragments: number of fragments of the model, with DiLoCo.
        delay: steps between sending a fragment and applying it.

    """

    def __init__(
        self,
        kind: Literal["local_sgd", "diloco"],
        block: int,
        *,
        fragments: int = 1,
        delay: int = 0,
    ) -> None:
        self._kind, self._block = kind, block
        self._fragments, self._delay = fragments, delay
        self._close = ExitStack()
        address = interface_address(os.environ["GLOO_SOCKET_IFNAME"])
        port = 0
        if dist.get_rank() == 0:
            lighthouse = LighthouseServer(bind="[::]:0", min_replicas=dist.get_world_size())
            self._close.callback(lighthouse.shutdown)
            # Only the port, because other hosts may not resolve the name in this address.
            port = int(lighthouse.address().rsplit(":", 1)[1])
        self._store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        lighthouse_address, lighthouse_port = gathered([address, port])[0]
        self._manager = Manager(
            pg=_AddressedGloo(address),
            load_state_dict=None,
            state_dict=None,
            min_replica_size=dist.get_world_size(),
            use_async_quorum=kind == "local_sgd",  # DiLoCo requires False
            timeout=_LIMIT,
            quorum_timeout=_LIMIT,
            rank=0,
            world_size=1,
            store_addr=address,
            store_port=self._store.port,
            lighthouse_addr=f"http://{lighthouse_address}:{lighthouse_port}",
            replica_id=f"replica_{dist.get_rank()}",
            hostname=address,
            init_sync=False,
        )
        self._close.callback(self._manager.shutdown, wait=False)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        model: Any = pl_module
        optimizer = trainer.optimizers[0]
        self._manager.register_state_dict_fn("model", model.load_state_dict, model.state_dict)
        if self._kind == "local_sgd":
            averager: Any = LocalSGD(self._manager, model, optimizer, sync_every=self._block)
        else:
            fragments = [model]
            if self._fragments > 1:
                divided = divide_parameters(list(model.parameters()), self._fragments)
                fragments = [nn.ParameterList(parameters) for parameters in divided]
            outer = [
                torch.optim.SGD(part.parameters(), lr=0.7, momentum=0.9, nesterov=True)
                for part in fragments
            ]
            averager = DiLoCo(
                self._manager,
                fragments,
                optimizer,
                outer,
                sync_every=self._block,
                fragment_sync_delay=self._delay,
            )
        self._close.enter_context(averager)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        dist.barrier()  # all ranks need the lighthouse until they have finished
        self._close.close()
