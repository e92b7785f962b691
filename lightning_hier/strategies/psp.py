"""PSP-SGD by its name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import lightning.pytorch as pl
from torch.distributed.constants import default_pg_timeout
from typing_extensions import override

from lightning_hier.algorithms.arguments import check_flag
from lightning_hier.parameter_server.psp.settings import PullRule, PushRule
from lightning_hier.strategies.server_strategy import ParameterServerStrategy

if TYPE_CHECKING:
    from lightning_hier.parameter_server.engine import Engine
    from lightning_hier.parameter_server.open_ports import Ports
    from lightning_hier.parameter_server.psp.settings import PSPSettings
    from lightning_hier.parameter_server.request_channel import RequestChannel


class PSPStrategy(ParameterServerStrategy):
    """Parameter servers that wait for some of the workers, and workers for some of the servers.

    PSP-SGD (psp_sgd, Algorithm 1): the parameters lie in as many blocks as there are ranks, and
    each rank serves one. A server updates its block by ``d * eta * Updater(sum / d)`` as soon as d
    gradients are enough; a worker goes on as soon as enough blocks have come. With the defaults
    nobody goes on without the others: synchronous SGD at the learning rate times the number of
    workers, without a collective.

    A rank that is late catches up: it leaves out the batches of steps that the others have made
    without it (under automatic optimisation; the loss of such a batch reads 0), so all ranks make
    the same number of steps. Training goes on without ranks that die as long as
    ``min_pushes`` are left: with the default, ``"all"``, the first death ends the run.

    Args:
        min_pushes: c, gradients that a server needs: ``"all"``, a number of workers, or a fraction
            of them (of the ranks at the start, rounded up).
        min_pulled: b, fraction of the blocks that a worker needs, rounded up. The other blocks
            keep their values.
        push_timeout_s: tau_1, seconds that a server goes on waiting for the other workers once it
            has enough.
        pull_timeout_s: tau_2, seconds that a worker goes on waiting for the other blocks once it
            has enough.
        linear_scaling: multiply the learning rate by the number of gradients of an update (the
            linear scaling rule). Off: the mean gradient at the learning rate as it is, as in DDP.
        warmup_steps: number of steps at the start in which every optimizer waits for all ranks and
            takes the mean gradient at the learning rate as it is.
        grace_s: seconds for which a rank may be unreachable, or stopped, before the others go on
            without it; if it comes back within them nothing is lost. One whose process has ended
            is not waited for. Keep it below ``timeout``, whose error comes first otherwise.
        timeout: limit of every wait, after which an error names the missing ranks.
        **ddp_kwargs: arguments of Lightning's ``DDPStrategy``.

    Raises:
        ValueError: a value outside its range.

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
        grace_s: float = 30.0,
        timeout: timedelta | None = default_pg_timeout,
        **ddp_kwargs: Any,
    ) -> None:
        # Nobody is nearer than the others: every rank is a group of its own.
        super().__init__(
            group_size=1,
            warmup_steps=warmup_steps,
            grace_s=grace_s,
            timeout=timeout,
            **ddp_kwargs,
        )
        self.push_rule = PushRule(min_pushes, push_timeout_s)
        self.pull_rule = PullRule(min_pulled, pull_timeout_s)
        check_flag("linear_scaling", linear_scaling)
        self.linear_scaling = linear_scaling

    @override
    def _settings(self) -> dict[str, Any]:
        return {
            "min_pushes": self.push_rule.min_pushes,
            "push_timeout_s": self.push_rule.timeout_s,
            "min_pulled": self.pull_rule.min_pulled,
            "pull_timeout_s": self.pull_rule.timeout_s,
            "linear_scaling": self.linear_scaling,
            "grace_s": self.grace_s,
        }

    @override
    def _check_groups(self) -> None:
        if problem := self.push_rule.objection(self.world_size):
            raise ValueError(problem)

    @property
    @override
    def _families(self) -> Sequence[str]:
        return ("psp",)

    @override
    def _build_engine(self, trainer: pl.Trainer, ports: Ports, channel: RequestChannel) -> Engine:
        from lightning_hier.parameter_server.psp.engine import PSPEngine

        optimizers = trainer.strategy.optimizers
        return PSPEngine(
            self.global_rank,
            optimizers,
            channel,
            ports.server,
            self._psp_settings(),
            self.pull_rule,
        )

    def _psp_settings(self) -> PSPSettings:
        from lightning_hier.parameter_server.psp.settings import PSPSettings

        return PSPSettings(
            rule=self.push_rule,
            world_size=self.world_size,
            linear_scaling=self.linear_scaling,
            warmup_steps=self.warmup_steps,
            steps_made=tuple(self._steps),
            limit_s=self.limit.total_seconds(),
        )
