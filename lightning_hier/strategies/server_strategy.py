"""Base class of the strategies with parameter servers, whose work is done by an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.callbacks.packages import both
from lightning_hier.loop.initial_model import share_initial_model
from lightning_hier.parameter_server.settings import ServerSettings
from lightning_hier.strategies import optimizer_checks, trainer_checks
from lightning_hier.strategies.misuse import require_attached
from lightning_hier.strategies.tiered import TieredStrategy

if TYPE_CHECKING:
    from lightning_hier.parameter_server.engine import Engine
    from lightning_hier.parameter_server.open_ports import Ports
    from lightning_hier.parameter_server.request_channel import RequestChannel
    from lightning_hier.strategies.server_session import ServerSession

SECTION = "lightning_hier_servers"
"""Key of the state of parameter servers in a checkpoint."""

_RESUMES = (
    "training continues from the servers' parameters and optimizer state. Gradients that were in "
    "flight when it was saved are lost."
)
_TAKES_OVER = (
    "it was not saved by a strategy with parameter servers. The servers start from its model and "
    "optimizer states. Steps are counted from 0, so warmup_steps start again. State of another "
    "strategy (block momentum, residuals, random states, position in the data) is not used."
)


class ParameterServerStrategy(TieredStrategy, DDPStrategy, ABC):
    """Training in which servers inside the ranks make the updates.

    The user's optimizer is the Updater of the servers: they have copies of it, and on the worker it
    finds no gradients. Late ranks are tolerated. A lost rank ends the run on all others.
    """

    strategy_name = "parameter_server"
    settings: ServerSettings
    _session: ServerSession | None = None
    _states: Sequence[Mapping[int, Any]] | None = None
    _steps: list[int] = []
    _last_metrics: dict[str, float] = {}
    _error: BaseException | None = None

    @abstractmethod
    def _build_engine(self, ports: Ports, channel: RequestChannel) -> Engine:
        """Create the engine of this rank. Every rank must call it."""

    def _clients(self) -> Sequence[str]:
        """Names of the threads of this rank that send requests."""
        return ("main",)

    @override
    def _settings(self) -> dict[str, Any]:
        return asdict(self.settings)

    @override
    def _check_trainer(self, trainer: pl.Trainer) -> None:
        trainer_checks.check_served_trainer(trainer)

    @override
    def _check_optimizers(self) -> None:
        optimizer_checks.check_served(self.optimizers)

    @override
    def _begin_fit(self, trainer: pl.Trainer) -> None:
        # A failed fit leaves its mark, with which this one would end without the other ranks.
        self._states, self._steps, self._error = None, _saved_steps(trainer), None
        # Imported here, so that importing the package does not load ZeroMQ.
        from lightning_hier.strategies.server_session import open_session

        self._session = open_session(self, self._build_engine, self._clients())
        self._session.begin(trainer, self.optimizers, self._metrics_callback)

    @override
    def configure_ddp(self) -> None:
        """Give every rank the model of rank 0. The module is not wrapped."""
        share_initial_model(self._module, self.communicators)

    @override
    def on_train_start(self) -> None:
        super().on_train_start()
        self._states = None  # the servers own the restored state from now on
        self._running.start()

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        self._running.require_parameters(self._module)

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train on a batch, or skip it, with a loss of 0, if this rank is behind the others."""
        if self._skips_batch:  # Lightning rejects None here
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
        index = self.optimizers.index(optimizer)
        require_attached(optimizer, self._running.optimizers, index)
        self._steps[index] += 1  # skipped ones too, so that all ranks count the same
        if self._skips_batch:
            result = closure()
            self._running.engine.workers[index].skip()
            return result
        with self._running.step(index):
            return super().optimizer_step(optimizer, closure, model, **kwargs)

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        """State of the module. A rank that saves in training reads parameters from servers."""
        state = super().lightning_module_state_dict()
        if self._serving is None or not self.is_global_zero:  # the other ranks write nothing
            return state
        snapshot = self._serving.engine.snapshot()
        self._states = snapshot.optimizer_states
        values = snapshot.values
        # The state dict contains a tied weight under each of its names.
        named = self._module.named_parameters(remove_duplicate=False)
        served = {name: values[parameter] for name, parameter in named if parameter in values}
        return {name: served.get(name, value) for name, value in state.items()}

    @override
    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """State of an optimizer. A rank that saves reads it from the servers."""
        state: dict[str, Any] = super().optimizer_state(optimizer)
        if self._states is not None:
            state["state"] = dict(self._states[self.optimizers.index(optimizer)])
        return state

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None
    ) -> None:
        """Save a checkpoint of the Trainer with the number of steps of each optimizer."""
        checkpoint[SECTION] = {"steps": list(self._steps)}
        super().save_checkpoint(checkpoint, filepath, storage_options)

    @override
    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Store the optimizer states for the servers, and load the settings on the workers."""
        optimizer_checks.check_saved(checkpoint, self.optimizers, self.root_device)
        resumes = _RESUMES if SECTION in checkpoint else _TAKES_OVER
        rank_zero_warn(f"Resuming from {self._module.trainer.ckpt_path}: {resumes}")
        for index, state in enumerate(checkpoint["optimizer_states"]):
            self.optimizers[index].load_state_dict({**state, "state": {}})
            self._running.engine.load(index, state["state"])
        if self.is_global_zero:
            # For a save without training, if the resumed run had already ended.
            self._states = [state["state"] for state in checkpoint["optimizer_states"]]

    @override
    def on_train_end(self) -> None:
        """Keep the optimizer state of the servers for a checkpoint after training."""
        super().on_train_end()
        if self.is_global_zero:
            self._states = self._running.engine.snapshot().optimizer_states

    @override
    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        # A signal stops all ranks, each at the end of one of its batches.
        if not isinstance(exception, both(SIGTERMException)):
            self._error = exception

    @override
    def teardown(self) -> None:
        self.metrics()  # stores the counts, which are available after the session
        session, self._session = self._session, None
        if session is not None:
            session.close(self._error)
        super().teardown()

    @override
    def metrics(self) -> dict[str, float]:
        if self._session is not None:
            self._last_metrics = self._session.metrics()
        return self.traffic.metrics() | self._last_metrics

    @override
    def barrier(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        # A rank that saves reads from the servers, while the others continue.
        if self._serving is None or name != "Trainer.save_checkpoint":
            with self._waiting():
                super().barrier(name)

    @override
    def broadcast(self, obj: Any, src: int = 0) -> Any:
        with self._waiting():
            return super().broadcast(obj, src)

    @override
    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        with self._waiting():
            return super().reduce(tensor, group, reduce_op)

    @override
    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        with self._waiting():
            return super().all_gather(tensor, group, sync_grads)

    def _waiting(self) -> AbstractContextManager[None]:
        return nullcontext() if self._serving is None else self._serving.collective()

    @property
    def _serving(self) -> ServerSession | None:
        """The session while its servers run."""
        return self._session if self._session is not None and self._session.started else None

    @property
    def _skips_batch(self) -> bool:
        """Whether the other ranks have already made the step of this rank's next batch."""
        return self._running.engine.behind > 0 and self._module.automatic_optimization

    @property
    def _running(self) -> ServerSession:
        assert self._session is not None, "the strategy has a session only while the Trainer fits"
        return self._session


def _saved_steps(trainer: pl.Trainer) -> list[int]:
    """Steps of each optimizer before this fit, or 0 if parameter servers have not saved them.

    If the number of optimizers has changed, the minimum of the saved steps is used.
    """
    saved = trainer._checkpoint_connector._loaded_checkpoint.get(SECTION, {}).get("steps", [])
    number = len(trainer.strategy.optimizers)
    return list(saved) if len(saved) == number else [min(saved, default=0)] * number
