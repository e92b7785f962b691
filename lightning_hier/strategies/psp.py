"""The strategy ``psp``: PSP-SGD."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from torch.distributed.constants import default_pg_timeout
from typing_extensions import override

from lightning_hier.comm.tiers import RankLayout
from lightning_hier.parameter_server.settings import PSPSettings
from lightning_hier.strategies.server_strategy import ParameterServerStrategy

if TYPE_CHECKING:
    from lightning_hier.parameter_server.engine import Engine
    from lightning_hier.parameter_server.open_ports import Ports
    from lightning_hier.parameter_server.request_channel import RequestChannel


class PSPStrategy(ParameterServerStrategy):
    """Parameter servers that wait for some of the workers, and workers for some of the servers.

    PSP-SGD (psp_sgd, Algorithm 1): the parameters are divided into one shard per rank, and each
    rank serves one of them. A server updates its shard by ``d * eta * Updater(sum / d)`` as soon as
    it has received enough gradients, d of them. A worker continues as soon as it has received
    enough shards. With the defaults, all ranks wait for all others: this is synchronous SGD with
    the learning rate times the number of workers, without collectives.

    A late rank catches up: it skips the batches of steps that the others have made without it (with
    automatic optimization; the loss of such a batch is 0), so all ranks make the same number of
    steps. A lost rank ends the run with a ``PeerError`` on all others.

    Args:
        min_pushes: c, gradients that a server waits for: ``"all"``, a number of workers, or a
            fraction of the ranks at the start, rounded up.
        min_pulled: b, fraction of the shards that a worker waits for, rounded up. The other shards
            keep their values.
        push_timeout_s: tau_1, seconds that a server waits for the other workers after
            ``min_pushes``.
        pull_timeout_s: tau_2, seconds that a worker waits for the other shards after
            ``min_pulled``.
        linear_scaling: whether the learning rate is multiplied by the number of gradients in an
            update (linear scaling rule). False: mean gradient and unchanged learning rate, as with
            DDP.
        warmup_steps: number of first steps in which every optimizer waits for all ranks and uses
            the mean gradient with the unchanged learning rate.
        ranks_per_device: ranks that share each device, each with its own model, optimizer, random
            state and part of the data. Lightning's launcher starts them; torchrun must start
            ``devices`` times as many processes on each host. Above 1, they communicate by gloo.
        timeout: time limit of every wait, after which an error names the missing ranks.
        **ddp_kwargs: arguments of Lightning's ``DDPStrategy``. Those of DDP itself have no effect,
            because the module is not wrapped.

    Raises:
        ValueError: a value is outside its range.

    """

    strategy_name = "psp"

    def __init__(
        self,
        *,
        min_pushes: Literal["all"] | int | float = "all",
        min_pulled: float = 1.0,
        push_timeout_s: float = 0.0,
        pull_timeout_s: float = 0.0,
        linear_scaling: bool = True,
        warmup_steps: int = 0,
        ranks_per_device: int = 1,
        timeout: timedelta | None = default_pg_timeout,
        **ddp_kwargs: Any,
    ) -> None:
        # All ranks are equal, so every rank is a separate group.
        super().__init__(
            group_size=1,
            warmup_steps=warmup_steps,
            ranks_per_device=ranks_per_device,
            timeout=timeout,
            **ddp_kwargs,
        )
        self.settings = PSPSettings(
            min_pushes=min_pushes,
            min_pulled=min_pulled,
            push_timeout_s=push_timeout_s,
            pull_timeout_s=pull_timeout_s,
            linear_scaling=linear_scaling,
            warmup_steps=warmup_steps,
            timeout_s=self.limit.total_seconds(),  # torch's default instead of None
        )

    @override
    def _settings(self) -> dict[str, Any]:
        return asdict(self.settings)

    @override
    def _check_groups(self, layout: RankLayout) -> None:
        # Not in the constructor, where the number of ranks is unknown.
        self.settings.check_workers(layout.world_size)

    @override
    def _build_engine(self, ports: Ports, channel: RequestChannel) -> Engine:
        # Imported here, so that importing the package does not load ZeroMQ.
        from lightning_hier.parameter_server.psp.engine import PSPEngine

        return PSPEngine(
            self.global_rank,
            self.optimizers,
            channel,
            ports.server,
            world_size=self.world_size,
            settings=self.settings,
            steps_made=self._steps,
        )
