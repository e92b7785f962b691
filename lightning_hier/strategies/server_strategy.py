"""What strategies with parameter servers share: Lightning's hooks, driven by an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.distributed.constants import default_pg_timeout
from torch.nn import Module
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.comm.agreement import gather_json, raise_everywhere, require_same
from lightning_hier.comm.process_groups import keep_groups_at_exit
from lightning_hier.comm.tiers import GroupSize
from lightning_hier.comm.traffic import Tier
from lightning_hier.strategies import arguments
from lightning_hier.strategies.checkpoints.saved_optimizers import check_saved_optimizers
from lightning_hier.strategies.collectives import LiveRankCollectives, WorldCollectives
from lightning_hier.strategies.module_setup import share_initial_model
from lightning_hier.strategies.optimizer_checks import check_served_optimizers, require_same_order
from lightning_hier.strategies.tiered import TieredStrategy
from lightning_hier.strategies.trainer_checks import check_served_trainer

if TYPE_CHECKING:
    from lightning_hier.parameter_server.engine import Engine
    from lightning_hier.parameter_server.open_ports import Ports
    from lightning_hier.parameter_server.request_channel import RequestChannel
    from lightning_hier.strategies.server_session import ServerSession

SECTION = "lightning_hier_servers"
"""Key of a checkpoint for the state of parameter servers."""

_RESUMES = (
    "training goes on from the servers' parameters and optimizer state. Gradients that were in "
    "flight when it was written are not in it."
)
_TAKES_OVER = (
    "it was not saved by a strategy with parameter servers. The servers begin with its model and "
    "its optimizer states; steps are counted from 0, so warmup_steps begin again. State of another "
    "strategy (block momentum, residuals, random numbers, the position in the data) is not used."
)


class ParameterServerStrategy(TieredStrategy, ABC):
    """Training where updates are made by servers inside the ranks.

    The user's optimizer is the servers' Updater: it is copied for them, and finds no gradients
    on the worker. Nothing waits for a collective of the process group while a Trainer fits.

    Args:
        group_size: ranks of one group: a number, ``"node"`` (the devices of one host) or
            ``"world"``. Traffic is counted by it.
        warmup_steps: number of steps at the start in which every optimizer uses gradients that are
            averaged exactly over all ranks.
        grace_s: seconds for which a rank may be unreachable, or stopped, before the others go on
            without it. One whose process has ended is not waited for.
        timeout: limit of every wait, after which an error names the missing ranks.
        **ddp_kwargs: arguments of Lightning's ``DDPStrategy``; those for DDP itself have no effect,
            since the module is not wrapped.

    Raises:
        ValueError: a value outside its range, or a combination that can't work.

    """

    strategy_name = "parameter_server"

    def __init__(
        self,
        *,
        group_size: GroupSize = "node",
        warmup_steps: int = 0,
        grace_s: float = 30.0,
        timeout: timedelta | None = default_pg_timeout,
        **ddp_kwargs: Any,
    ) -> None:
        self._session: ServerSession | None = None
        super().__init__(
            group_size=group_size, warmup_steps=warmup_steps, timeout=timeout, **ddp_kwargs
        )
        arguments.check_one_worker(self.virtual_workers)
        arguments.check_grace(grace_s)
        self.grace_s = grace_s
        self._states: Sequence[Mapping[int, Any]] | None = None
        self._steps: list[int] = []
        self._counted: dict[str, float] = {}
        self._failed = False

    @abstractmethod
    def _build_engine(self, trainer: pl.Trainer, ports: Ports, channel: RequestChannel) -> Engine:
        """Make what this rank does. Every rank must call it."""

    @override
    def _check_trainer(self, trainer: pl.Trainer) -> None:
        check_served_trainer(trainer)

    @override
    def _check_optimizers(self) -> None:
        check_served_optimizers(self.optimizers)

    @override
    def _begin_fit(self, trainer: pl.Trainer) -> None:
        self._states, self._steps, self._failed = None, _saved_steps(trainer), False
        require_same({"steps so far": self._steps}, self.root_device)
        require_same_order(self._module, self.optimizers, self.root_device)
        self._session = self._open_session(trainer)
        self._session.begin(trainer, self.optimizers, self._watching())

    @override
    def configure_ddp(self) -> None:
        """Equalise the ranks' models; the module is not wrapped."""
        share_initial_model(self._module, self.communicators)

    @override
    def on_train_start(self) -> None:
        super().on_train_start()
        self._states = None  # the servers have the restored state now, and change it
        self._running.start(self._module)
        self._collectives = LiveRankCollectives(self._running.collectives)

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train on a batch, or leave it out to be where the others are.

        The loss of a batch that was left out is 0. Lightning has no other way to say so: it takes
        None for a mistake where there are several ranks.
        """
        if self._leaves_out:
            return torch.zeros((), device=self.root_device, requires_grad=True)
        return super().training_step(*args, **kwargs)

    @override
    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: pl.LightningModule | Module | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute a gradient, push it to the servers and pull parameters."""
        index = self._index(optimizer)
        self._steps[index] += 1
        if self._leaves_out:
            result = closure()
            self._running.engine.skip(index)
            return result
        step = partial(super().optimizer_step, optimizer, closure, model, **kwargs)
        return self._running.step(index, step)

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        """State of the module; while it trains, with the servers' parameters where it is saved."""
        state = super().lightning_module_state_dict()
        if self._live is None or not self.is_global_zero:
            return state
        snapshot = self._live.engine.snapshot()
        self._states = snapshot.optimizer_states
        if self._live.keeps_module:
            return state
        values = snapshot.values
        # A tied weight has several names, and the state dict all of them.
        named = self._module.named_parameters(remove_duplicate=False)
        held = {name: values[own] for name, own in named if own in values}
        return {name: held.get(name, value) for name, value in state.items()}

    @override
    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """State of an optimizer, with the servers' state where it is saved."""
        state: dict[str, Any] = super().optimizer_state(optimizer)
        if self._states is not None:
            state["state"] = dict(self._states[self._index(optimizer)])
        return state

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None
    ) -> None:
        """Save what the Trainer has put together, with the number of steps of each optimizer."""
        checkpoint[SECTION] = {"steps": list(self._steps)}
        super().save_checkpoint(checkpoint, filepath, storage_options)

    @override
    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Give the servers their part of the optimizers' state, and the workers the settings."""
        with raise_everywhere(self.root_device):
            check_saved_optimizers(checkpoint["optimizer_states"], self.optimizers)
        resumes = _RESUMES if SECTION in checkpoint else _TAKES_OVER
        rank_zero_warn(f"Resuming from {self._module.trainer.ckpt_path}: {resumes}")
        for index, state in enumerate(checkpoint["optimizer_states"]):
            self.optimizers[index].load_state_dict({**state, "state": {}})
            self._running.engine.load(index, state["state"])
        if self.is_global_zero:
            # For a save before any training: there is none where the run had come to its end.
            self._states = [state["state"] for state in checkpoint["optimizer_states"]]

    @override
    def on_train_end(self) -> None:
        """Keep the servers' optimizer state, for a checkpoint that is saved after training."""
        super().on_train_end()
        if self.is_global_zero:
            self._states = self._running.engine.snapshot().optimizer_states

    @override
    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        self._failed = True

    @override
    def teardown(self) -> None:
        self.metrics()  # what has been counted outlives the session
        session, self._session = self._session, None
        self._collectives = WorldCollectives(self)
        if session is not None:
            if session.lost():
                keep_groups_at_exit()
                session.warn_of_agents(self.num_nodes)
            session.close(orderly=not self._failed)
        super().teardown()

    def forget_groups(self) -> None:
        """Drop every reference to a process group, at the end of the process."""
        super().forget_groups()
        self._session = None
        self._collectives = WorldCollectives(self)

    @override
    def metrics(self) -> dict[str, float]:
        if self._session is not None:
            self._counted = self._session.metrics()
        return self.traffic.metrics() | self._counted

    def _open_session(self, trainer: pl.Trainer) -> ServerSession:
        # Here, so that importing the package does not load ZeroMQ.
        from lightning_hier.parameter_server.open_ports import open_ports
        from lightning_hier.strategies.server_session import ServerSession

        size = self._groups.size

        def tier_of(rank: int) -> Tier:
            return "group" if rank // size == self.global_rank // size else "across"

        ports = open_ports(
            self.global_rank,
            self.world_size,
            lambda value: gather_json(value, self.root_device),
            traffic=self.traffic,
            tier_of=tier_of,
            grace_s=self.grace_s,
        )
        return ServerSession(
            ports,
            partial(self._build_engine, trainer),
            rank=self.global_rank,
            world_size=self.world_size,
            timeout_s=self._limit.total_seconds(),
            traffic=self.traffic,
            world_tier="across" if size < self.world_size else "group",
        )

    @property
    @override
    def is_global_zero(self) -> bool:
        """Whether this is the lowest rank that is not lost: it writes checkpoints."""
        if self._live is None:
            return super().is_global_zero
        return self.global_rank == self._live.living()[0]

    @property
    def _live(self) -> ServerSession | None:
        """The session once it serves. Collectives of the process group are over then."""
        return self._session if self._session is not None and self._session.started else None

    @property
    def _leaves_out(self) -> bool:
        """Whether the others have made the steps to which this rank's next batches belong."""
        return self._running.engine.behind > 0 and self._module.automatic_optimization

    @property
    def _running(self) -> ServerSession:
        if self._session is None:
            raise RuntimeError("there is a session only while the Trainer fits")
        return self._session


def _saved_steps(trainer: pl.Trainer) -> list[int]:
    """Steps of each optimizer before this fit: none, unless parameter servers have saved them.

    Of other optimizers than the saved ones it is the fewest steps that any of those has made.
    """
    saved = trainer._checkpoint_connector._loaded_checkpoint.get(SECTION, {}).get("steps", [])
    number = len(trainer.strategy.optimizers)
    return list(saved) if len(saved) == number else [min(saved, default=0)] * number
