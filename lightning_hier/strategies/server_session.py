"""The objects of a rank while a Trainer fits with parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

from lightning_hier.algorithms.squares import all_finite
from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.blocks.health import NonFiniteModelError, SyncPoint
from lightning_hier.comm.blocks.health_exchange import HealthExchange
from lightning_hier.comm.blocks.module_buffers import ModuleBuffers
from lightning_hier.comm.blocks.saved_tensors import SavedTensors
from lightning_hier.comm.blocks.trained import TrainedTensors, parameters_of
from lightning_hier.comm.broadcast import average_tensors_, broadcast_tensors_
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.progress_record import named_ranks, ranks_by_value
from lightning_hier.comm.traffic import Tier
from lightning_hier.comm.worker import Worker
from lightning_hier.parameter_server.engine import Engine
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.open_ports import Ports, open_ports
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server_loop import ServerLoop
from lightning_hier.strategies import data_position, lifecycle, misuse, sigterm
from lightning_hier.strategies.step_gradients import StepGradients
from lightning_hier.strategies.trainer_changes import TrainerChanges

if TYPE_CHECKING:
    from lightning_hier.strategies.server_strategy import ParameterServerStrategy

BuildEngine = Callable[[Ports, RequestChannel], Engine]


class ServerSession:
    """Ports, server loop, request channel and engine of a rank, and changes to a Trainer.

    Args:
        ports: ports of this rank. They are closed with the session, and if it cannot be created.
        build: creates the engine.
        communicators: process groups of this rank.
        timeout_s: time limit of every wait in seconds.

    Attributes:
        engine: worker and server of this rank.
        optimizers: those with which training began.
        started: whether the servers are running.

    """

    optimizers: list[Optimizer]
    _trained: TrainedTensors
    _health: HealthExchange
    _parameters: misuse.ServedParameters
    _raw_steps: misuse.RawSteps
    _gradients: list[StepGradients]

    def __init__(
        self, ports: Ports, build: BuildEngine, *, communicators: Communicators, timeout_s: float
    ) -> None:
        self._ports = ports
        self._communicators = communicators
        self._server_loop = ServerLoop(ports)
        with ExitStack() as undo:
            undo.callback(ports.close)
            world = communicators.world
            # Twice the limit, because servers name missing ranks after one limit.
            self._channel = RequestChannel(
                ports.clients["main"],
                self._server_loop,
                timeout_s=2 * timeout_s,
                # The missing ranks may belong to any group.
                on_waited=partial(world.traffic.add_wait, world.tier),
            )
            self.engine = build(ports, self._channel)
            undo.pop_all()
        self._server_loop.servers = self.engine.servers
        self._at_end = ExitStack()
        self._saved = SavedTensors()
        self.started = False

    def begin(
        self,
        trainer: pl.Trainer,
        optimizers: Sequence[Optimizer],
        metrics_callback: Callback,
    ) -> None:
        """Install the hooks of the optimizers, and change the Trainer, which is about to fit."""
        module, self.optimizers = trainer.lightning_module, list(optimizers)
        self._trained = TrainedTensors(module, optimizers, ModuleBuffers(module))
        # No step counts: a rank may end its epoch before the others.
        self._health = HealthExchange(self._communicators, Worker(), self._trained)
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

    def start(self) -> None:
        """Start the servers."""
        self._server_loop.start()
        self.started = True
        # A failed collective is explained by a loss that the server loop has detected.
        progress = self._communicators.progress
        progress.detected = lambda: self._server_loop.failure
        self._at_end.callback(setattr, progress, "detected", lambda: None)

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Context of a collective of all ranks, which waits for late ranks.

        The servers of this rank go on, and other ranks do not wait for its gradients.
        """
        number = self._channel.collectives_done + 1
        if self.engine.must_know_of_waits:
            self._channel.send_to_all(Message(Kind.WAITING, 0, number))
        yield
        self._channel.collectives_done = number

    def require_parameters(self, module: torch.nn.Module) -> None:
        """Raise RuntimeError if ``module`` has other parameters than at the beginning."""
        self._trained.known.require_kept(parameters_of(module))

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
        """Put the global model into the module. Every rank must call it."""
        if self._saved.used:
            return
        self.engine.rendezvous()
        self._parameters.note()
        self._swap_in_buffers()

    def swap_back(self) -> None:
        """Restore this rank's buffers, except those that hooks have written.

        Raises:
            RuntimeError: parameters were written since they had the values of the servers.

        """
        self._parameters.check()
        if self._saved.used:
            self._trained.buffers.reclaim()
            self._saved.keep(self._saved.written())
            self._saved.restore()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _swap_in_buffers(self) -> None:
        """Save this rank's buffers, and write the global ones: means, or the values of rank 0.

        Frozen parameters that any rank has written since the start are buffers too.

        Raises:
            OutOfStepError: on every rank, if ranks have different buffers.
            NonFiniteModelError: on every rank, if an averaged buffer of a rank has NaN or inf.

        """
        world = self._communicators.world
        self._health.check_in_step(SyncPoint.EVALUATION)
        self._trained.admit_found()
        averaged: list[Tensor] = []
        equal: list[Tensor] = []
        for members in self._trained.members():
            averaged += members.float_buffers
            equal += members.other_buffers
        with self._saved.overwriting([*averaged, *equal], watch=True):
            average_tensors_(averaged, world, "buffers")
            broadcast_tensors_(equal, world, "buffers")
            self._require_finite(averaged)

    def _require_finite(self, averaged: Sequence[Tensor]) -> None:
        """Check the means, which contain every NaN and inf. A collective only if there are any."""
        if all(map(all_finite, averaged)):
            return
        by_buffer, local = self._trained.buffers.names, self._saved.local
        names = [by_buffer[buffer] for buffer in averaged if not all_finite(local(buffer))]
        device = self._communicators.device
        rows = gather_json(names, device, place="the check of averaged buffers")
        ranks = ranks_by_value(map(", ".join, rows))
        ranks.pop("", None)
        found = "; ".join(f"{names} of {named_ranks(of)}" for names, of in ranks.items())
        raise NonFiniteModelError(
            f"NaN or inf in averaged buffers: {found}. Lower the learning rate, clip gradients "
            "(gradient_clip_val), or check the batches there."
        )

    def end_training(self) -> None:
        """Leave the global model in the module."""
        self.swap_in_global_model()
        self._parameters.forget()

    def metrics(self) -> dict[str, float]:
        """Metrics of engine and ports by name."""
        refused = {
            f"hier/refused/{reason}": float(count)
            for reason, count in self._ports.refusals().items()
        }
        return self.engine.metrics() | refused

    def close(self, error: BaseException | None = None) -> None:
        """Stop the servers, and undo changes to the Trainer.

        Args:
            error: error that has ended training on this rank, which ends it on all others. None: it
                waits for the other ranks.

        """
        with ExitStack() as closing:
            # In reverse order, because the thread of the server loop uses the sockets until it
            # ends.
            closing.callback(self._at_end.close)
            closing.callback(self._ports.close)
            closing.callback(self.engine.close)
            if self.started:
                closing.callback(self._server_loop.stop)
                if error is None:
                    self._wait_for_all()
                else:
                    self._server_loop.fail(error)

    def _wait_for_all(self) -> None:
        """Wait until no rank needs the servers of others, nor watches them."""
        try:
            # A rank that a signal has stopped waits here while others end their batches.
            with self.collective():
                gather_json(None, self._communicators.device, place="the end of training")
            self._server_loop.stop_watching()  # before a rank leaves
            gather_json(None, self._communicators.device, place="the end of training")
        except Exception as error:
            self._server_loop.fail(error)
            raise


def open_session(
    strategy: ParameterServerStrategy, build: BuildEngine, clients: Sequence[str]
) -> ServerSession:
    """Open the ports of this rank and create its session. A collective of the world."""
    rank, size = strategy.global_rank, strategy.layout.sizes[0]

    def tier_of(other: int) -> Tier:
        return "group" if other // size == rank // size else "across"

    ports = open_ports(
        rank,
        strategy.world_size,
        lambda value: gather_json(value, strategy.root_device),
        traffic=strategy.traffic,
        tier_of=tier_of,
        clients=clients,
    )
    return ServerSession(
        ports,
        build,
        communicators=strategy.communicators,
        timeout_s=strategy.limit.total_seconds(),
    )
