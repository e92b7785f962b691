"""The strategies with parameter servers: ``psp`` and ``two_stage_asgd``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from torch.distributed.constants import default_pg_timeout
from typing_extensions import override

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.tiers import GroupSize, RankLayout
from lightning_hier.parameter_server.settings import PSPSettings, TwoStageSettings
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
    settings: PSPSettings

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


class TwoStageASGDStrategy(ParameterServerStrategy):
    """Asynchronous SGD in shared memory inside groups, and through a master across them.

    Two-stage ASGD (two_stage_asgd 3). The ranks of a group update a replica of the model in shared
    memory asynchronously and without locks, by the user's optimizer (eq. 2). After ``push_period``
    mini-batches of the group, its first rank pushes the sum of their gradients to the master on
    rank 0 (eq. 3, 4). The master applies the sum by a copy of the user's optimizer with the
    learning rate eta / push_period, and sends its model back.

    Late ranks and groups are tolerated. A lost rank ends the run with a ``PeerError`` on all
    others.

    Args:
        group_size: ranks of a group, which must be on one host: a number, ``"node"`` (the devices
            of one host) or ``"world"``.
        push_period: N, mini-batches of all ranks of a group between two pushes.
        order_locking: whether the master applies pushes in the order of the first ones (3.1).
        double_buffering: whether ranks continue with the old replica while the first rank of the
            group exchanges models with the master (3.2). False: they wait.
        hierarchical_lr: whether the learning rate of the master is eta / N (eq. 5). False: eta.
        refresh_period: mini-batches of a rank between two copies of the replica into its module.
        warmup_steps: number of first steps that all ranks make together, with their mean gradient.
        ranks_per_device: ranks that share each device, each with its own model, optimizer, random
            state and part of the data. Lightning's launcher starts them; torchrun must start
            ``devices`` times as many processes on each host. Above 1, they communicate by gloo.
        timeout: time limit of every wait, after which an error names the missing ranks.
        **ddp_kwargs: arguments of Lightning's ``DDPStrategy``. Those of DDP itself have no effect,
            because the module is not wrapped.

    Raises:
        ValueError: a value is outside its range.

    """

    strategy_name = "two_stage_asgd"
    settings: TwoStageSettings

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        push_period: int = 4,
        order_locking: bool = True,
        double_buffering: bool = True,
        hierarchical_lr: bool = True,
        refresh_period: int = 1,
        warmup_steps: int = 0,
        ranks_per_device: int = 1,
        timeout: timedelta | None = default_pg_timeout,
        **ddp_kwargs: Any,
    ) -> None:
        super().__init__(
            group_size=group_size,
            warmup_steps=warmup_steps,
            ranks_per_device=ranks_per_device,
            timeout=timeout,
            **ddp_kwargs,
        )
        self.settings = TwoStageSettings(
            push_period=push_period,
            order_locking=order_locking,
            double_buffering=double_buffering,
            hierarchical_lr=hierarchical_lr,
            refresh_period=refresh_period,
            warmup_steps=warmup_steps,
            timeout_s=self.limit.total_seconds(),  # torch's default instead of None
        )

    @override
    def _clients(self) -> Sequence[str]:
        # The first rank of a group exchanges with the master while its main thread computes.
        is_first = self.global_rank % self.layout.sizes[0] == 0
        return ("main", "node") if is_first else ("main",)

    @override
    def _build_engine(self, ports: Ports, channel: RequestChannel) -> Engine:
        # Imported here, so that importing the package does not load ZeroMQ.
        from lightning_hier.parameter_server.two_stage.engine import TwoStageASGD

        return TwoStageASGD(
            self.optimizers,
            rank=self.global_rank,
            world_size=self.world_size,
            group_size=self.layout.sizes[0],
            exchange=lambda value: gather_json(value, self.root_device),
            ports=ports,
            channel=channel,
            settings=self.settings,
            steps_made=self._steps,
        )
