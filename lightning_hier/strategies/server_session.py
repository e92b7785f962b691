"""The objects of a rank while a Trainer fits with parameter servers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback
from torch.optim import Optimizer

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.traffic import Tier, Traffic
from lightning_hier.parameter_server.engine import Engine
from lightning_hier.parameter_server.live_collectives import CollectiveLeader, LiveCollectives
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.open_ports import Ports, open_ports
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server_loop import ServerLoop
from lightning_hier.strategies import data_position, lifecycle, misuse, sigterm
from lightning_hier.strategies.global_buffers import GlobalBuffers
from lightning_hier.strategies.step_gradients import StepGradients
from lightning_hier.strategies.trainer_changes import TrainerChanges

if TYPE_CHECKING:
    from lightning_hier.strategies.server_strategy import ParameterServerStrategy

_AGENTS_WAIT = (
    "Once this program has ended, torchrun waits 300 s for its agents on the hosts that were lost, "
    "and acts on SIGTERM only after that. Nothing is left to be done then: SIGKILL ends it"
)

BuildEngine = Callable[[Ports, RequestChannel], Engine]


class ServerSession:
    """Ports, server loop, request channel and engine of a rank, and changes to a Trainer.

    Args:
        ports: ports of this rank. They are closed with the session, and if it cannot be created.
        build: creates the engine.
        rank: number of this rank.
        world_size: number of ranks.
        timeout_s: time limit of every wait in seconds.
        traffic: counts of this rank.
        world_tier: tier under which collectives of all ranks are counted.

    Attributes:
        engine: worker and server of this rank.
        collectives: collectives of the live ranks.
        started: whether the servers are running.

    """

    _buffers: GlobalBuffers
    _parameters: misuse.ServedParameters
    _raw_steps: misuse.RawSteps
    _gradients: list[StepGradients]

    def __init__(
        self,
        ports: Ports,
        build: BuildEngine,
        *,
        rank: int,
        world_size: int,
        timeout_s: float,
        traffic: Traffic,
        world_tier: Tier,
    ) -> None:
        self._ports = ports
        self._rank = rank
        self._world_size = world_size
        leader = CollectiveLeader(world_size, ports.server, limit_s=timeout_s)
        self._server_loop = ServerLoop(ports.server, ports.watch, [leader])
        with ExitStack() as undo:
            undo.callback(ports.close)
            # Twice the limit, because servers report missing ranks after one limit.
            self._channel = RequestChannel(
                ports.open_client("main"),
                self._server_loop,
                timeout_s=2 * timeout_s,
                # The missing ranks may belong to any group.
                on_waited=partial(traffic.add_wait, world_tier),
            )
            self.engine = build(ports, self._channel)
            undo.pop_all()
        self._server_loop.add(self.engine.handlers)
        self._channel.on_gone(self._note_gone)
        self.collectives = LiveCollectives(
            world_size,
            self._channel,
            notified=self.engine.notified,
        )
        self._traffic = traffic
        self._at_end = ExitStack()
        self._swapped_in = False
        self.started = False

    def begin(
        self,
        trainer: pl.Trainer,
        optimizers: Sequence[Optimizer],
        metrics_callback: Callback,
    ) -> None:
        """Install the hooks of the optimizers, and change the Trainer.

        Args:
            trainer: Trainer that is about to fit.
            optimizers: optimizers of its module.
            metrics_callback: logs metrics.

        """
        module = trainer.lightning_module
        self._buffers = GlobalBuffers(module, self.collectives)
        self._parameters = misuse.ServedParameters(module, optimizers)
        self._parameters.note()  # values of the servers, even if hooks write before the first step
        parameters = set(module.parameters())
        # Registered before the hooks that push gradients, because a rejected step must not push.
        # Steps in evaluation are rejected too: they would also be pushed to the servers.
        self._raw_steps = misuse.RawSteps(lambda: parameters, elsewhere=lambda: False)
        self._at_end.callback(self._raw_steps.remove)
        self._gradients = [
            StepGradients(
                optimizer,
                check=partial(self._parameters.check_step, index),
                take=self.engine.workers[index].step,
            )
            for index, optimizer in enumerate(optimizers)
        ]
        for gradients in self._gradients:
            self._at_end.callback(gradients.remove)
        changes = TrainerChanges(trainer)
        self._at_end.callback(changes.close)
        termination = sigterm.QuietTermination(changes)
        data_position.IsolatedValidation(changes, trainer.strategy.root_device)
        changes.surround_callbacks(
            [lifecycle.GlobalModelLifecycle(self)], [metrics_callback, termination]
        )
        changes.show_in_progress_bar(self._traffic)

    def start(self, module: torch.nn.Module) -> None:
        """Start the servers and train ``module``. Process groups are not used from now on."""
        self._server_loop.start()
        self.started = True
        # Not earlier, because collectives have no leader during the sanity check of validation.
        self._gather_metrics_among_the_living(module)

    @contextmanager
    def step(self, optimizer: int) -> Iterator[None]:
        """Context that computes the gradients of an optimizer and steps it."""
        gradients = self._gradients[optimizer]
        gradients.taken = False
        with self._raw_steps.counted():
            yield
        if not gradients.taken:
            # There was no gradient, or gradient scaling found that it is not finite.
            self.engine.workers[optimizer].abstain()

    def swap_in_global_model(self) -> None:
        """Put the global model into the module. Every live rank must call it."""
        if self._swapped_in:
            return
        self.engine.rendezvous()
        self._parameters.note()
        self._buffers.swap_in()
        self._swapped_in = True

    def swap_back(self) -> None:
        """Restore this rank's buffers, except those that hooks have written.

        Raises:
            RuntimeError: parameters were written since they had the values of the servers.

        """
        self._parameters.check()
        if self._swapped_in:
            self._buffers.swap_back()
            self._swapped_in = False

    def end_training(self) -> None:
        """Leave the global model in the module."""
        self.swap_in_global_model()
        self._buffers.keep()
        self._parameters.forget()

    def living(self) -> list[int]:
        """The live ranks."""
        gone = self._server_loop.gone()
        return [rank for rank in range(self._world_size) if rank not in gone]

    def lost(self) -> dict[int, str]:
        """The lost ranks, with reasons."""
        return self._server_loop.lost()

    def metrics(self) -> dict[str, float]:
        """Metrics of engine and ports by name."""
        refused = {
            f"hier/refused/{reason}": float(count)
            for reason, count in self._ports.refusals().items()
        }
        return self.engine.metrics() | refused

    def close(self, *, orderly: bool) -> None:
        """Stop the servers, and undo changes to the Trainer.

        Args:
            orderly: whether to wait for the other ranks and notify them first. Otherwise this rank
                counts as lost.

        """
        self._at_end.close()
        with ExitStack() as closing:
            # In reverse order, because the thread of the server loop uses the sockets until it
            # ends.
            closing.callback(self._ports.close)
            closing.callback(self.engine.close)
            if self.started:
                closing.callback(self._server_loop.stop)
                if orderly:
                    self._notify_departure()

    def warn_of_agents(self, num_nodes: int) -> None:
        """Warn, on the lowest rank that is not lost, that torchrun waits for lost agents."""
        if num_nodes == 1:
            return
        first = min(set(range(self._world_size)) - self.lost().keys())  # rank 0 may be lost itself
        if dist.is_torchelastic_launched() and self._rank == first:
            warnings.warn(_AGENTS_WAIT, stacklevel=1)

    def _notify_departure(self) -> None:
        # All ranks are at the end before the first one leaves, so no server is still needed.
        self._server_loop.begin_shutdown()
        self.collectives.barrier()
        for rank in self.living():
            self._channel.send(rank, Message(Kind.BYE))

    def _note_gone(self, rank: int, now: float) -> None:
        reason = self._server_loop.lost().get(rank)
        # One warning for the job. A rank that has sent BYE is gone without a reason.
        if reason is not None and self._rank == min(self.living()):
            warnings.warn(f"rank {rank} is lost: {reason}", stacklevel=1)

    def _gather_metrics_among_the_living(self, module: torch.nn.Module) -> None:
        """Make torchmetrics gather the states of metrics from the live ranks only."""
        for child in module.modules():
            # Only metrics have this attribute, and those with a function of the user keep it.
            if getattr(child, "dist_sync_fn", ...) is None:
                child.dist_sync_fn = self.collectives.gather  # type: ignore[assignment]
                self._at_end.callback(setattr, child, "dist_sync_fn", None)


def open_session(strategy: ParameterServerStrategy, build: BuildEngine) -> ServerSession:
    """Open the ports of this rank and create its session. A collective of the world."""
    rank, size, world_size = strategy.global_rank, strategy.groups.size, strategy.world_size

    def tier_of(other: int) -> Tier:
        return "group" if other // size == rank // size else "across"

    ports = open_ports(
        rank,
        world_size,
        lambda value: gather_json(value, strategy.root_device),
        traffic=strategy.traffic,
        tier_of=tier_of,
        grace_s=strategy.grace_s,
    )
    return ServerSession(
        ports,
        build,
        rank=rank,
        world_size=world_size,
        timeout_s=strategy.limit.total_seconds(),
        traffic=strategy.traffic,
        world_tier=strategy.communicators.world.tier,
    )
