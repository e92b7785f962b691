"""The blocks of a plain loop: counts its steps, and synchronises its models."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lightning_hier.comm.blocks.trained import optimizer_parameters, parameters_of
from lightning_hier.comm.sharded_tensors import local_tensor
from lightning_hier.comm.traffic import Traffic
from lightning_hier.loop.elastic import ElasticLoop
from lightning_hier.loop.engine import Engine
from lightning_hier.loop.state import LoopState
from lightning_hier.loop.wrapping import inner_optimizer


class Blocks:
    """The synchronisation of a plain loop. :func:`lightning_hier.attach` makes it.

    It is a ``Stateful`` of ``torch.distributed.checkpoint`` and holds everything of the run, the
    local model and optimizer state of every rank included::

        dcp.save({"blocks": blocks}, checkpoint_id=folder)
        dcp.load({"blocks": blocks}, checkpoint_id=folder)   # into newly attached blocks

    A run of the same groups continues bit for bit on the CPU, also in the middle of a block, with
    the random states of Python, NumPy and torch. One with other groups starts from the global
    model. The state of a learning rate scheduler, a GradScaler and the data belongs to the loop.

    Args:
        engine: averages the gradients of this rank, and synchronises its models.
        elastic: connection with other groups, or None if groups do not come and go.

    """

    def __init__(self, engine: Engine, elastic: ElasticLoop | None = None) -> None:
        self._engine = engine
        self._elastic = elastic
        self._synchroniser = engine.synchroniser
        self._state = LoopState(engine, None if elastic is None else elastic.exchange)
        self._ended = False
        self._in_step: dict[int, AbstractContextManager[None]] = {}
        self._stepped: set[int] = set()
        self._hooks: list[Any] = []
        # A loop may compile the step of its optimizer.
        untraced: Callable[..., Any] = torch.compiler.disable
        for index, optimizer in enumerate(engine.optimizers):
            begin, end = partial(self._begin_step, index), partial(self._end_step, index)
            self._hooks.append(optimizer.register_step_pre_hook(untraced(begin)))
            self._hooks.append(optimizer.register_step_post_hook(untraced(end)))
        # Of all optimizers of the process: one that replaces an attached one has no hook of its
        # own. The reference is weak, because torch keeps the hook.
        refuse = untraced(partial(_refuse_others, ref(self)))
        self._hooks.append(register_optimizer_step_pre_hook(refuse))
        if elastic is not None:
            elastic.start(engine, self._state)

    @property
    def steps(self) -> int:
        """Steps counted so far, also those of the run whose state was loaded."""
        return self._engine.worker.steps[0].total

    @property
    def traffic(self) -> Traffic:
        """Bytes and seconds of this rank by tier, such as ``traffic.total("across")``."""
        return self._engine.communicators.traffic

    def metrics(self) -> dict[str, float]:
        """Metrics of gradients, blocks and traffic by name. Does not communicate."""
        return self._engine.metrics() | self.traffic.metrics()

    def step(self, optimizer: Optimizer | None = None, *, samples: float | None = None) -> None:
        """Count a step of every attached optimizer, and synchronise what is due after it.

        Every rank must call it in every iteration, behind the steps of the optimizers, also where a
        GradScaler has skipped the update, and before learning-rate schedulers. With gradient
        accumulation, call it where the optimizer steps. A collective of the world at the end of a
        block. Parameters and buffers change in place.

        Args:
            optimizer: the only optimizer that has stepped, if they do not step together.
            samples: samples of this rank in this step, for ``weighting="samples"``.

        Raises:
            OutOfStepError: on every rank, if ranks have counted different steps.
            NonFiniteModelError: on every rank, if a local model contains NaN or inf.
            PeerError: a rank is lost or late.
            RuntimeError: the module's parameters have changed, or :meth:`finish` was called.

        """
        self._require_running("step()")
        if self._engine.counts_samples != (samples is not None):
            raise ValueError(
                "blocks.step(samples=...) needs the samples of this rank with weighting='samples', "
                f"and only then, got samples={samples!r}"
            )
        self._check_parameters()
        engine, synchroniser = self._engine, self._synchroniser
        stepped = None if optimizer is None else inner_optimizer(optimizer)
        counted = [i for i, own in enumerate(engine.optimizers) if stepped in (None, own)]
        if not counted:
            raise ValueError(
                f"blocks.step({type(optimizer).__name__}) needs an optimizer that was passed to "
                "attach(), or none to count a step of all"
            )
        engine.worker.count_samples(samples or 0.0, counted)
        synchroniser.before_step()  # if a GradScaler has skipped the first step
        # All of them first: the end of a block overwrites what other optimizers have changed.
        for index in counted:
            engine.exchange(index)
        for index in counted:
            synchroniser.after_step(index)
        if engine.warm_up_has_ended:
            engine.reduction.set_warm_up(warming=False)
        self._stepped.difference_update(counted)
        if self._elastic is not None:
            self._elastic.serve(self._state)

    @contextmanager
    def global_model(self) -> Iterator[None]:
        """Context in which the module contains the global model W.

        A collective of the world at its entry. Afterwards the module has its local model again, and
        training continues bit for bit as without it. Buffers keep what is written to them.

        Raises:
            RuntimeError: a trained parameter was written in the context.

        """
        evaluation = self._synchroniser.evaluation
        within = evaluation.active  # inside such a context, as `fabric.save` may be
        evaluation.swap_in_global_model()
        try:
            yield
        finally:
            if not within:
                evaluation.swap_back()

    def finish(self) -> None:
        """Synchronise the last, short block. The module keeps W. Training has then ended.

        A collective of the world. All hooks are removed.
        """
        if not self._ended:
            problem = self._engine.problem_at_end()
            if problem is not None and dist.get_rank() == 0:
                warnings.warn(problem, stacklevel=2)
            self._synchroniser.evaluation.end_training()
            self._ended = True
            self.detach()

    def detach(self) -> None:
        """Remove all hooks of optimizers and parameters. Does not communicate.

        After an error, another module can be attached to the same optimizers.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._engine.reduction.close()
        if self._elastic is not None:
            self._elastic.close()

    def state_dict(self) -> dict[str, Any]:
        """State of the run on this rank, for ``torch.distributed.checkpoint``.

        A collective of the world: it computes the global model.
        """
        return self._state.save()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the run of a state that ``torch.distributed.checkpoint`` has loaded.

        A collective of the world. Model and optimizers change in place. A group that has joined
        others keeps their state, which is newer.
        """
        self._require_running("load_state_dict()")
        if self._elastic is not None and self._elastic.refuses_state():
            return
        for index in [*self._in_step]:
            self._leave(index)  # a step that has failed, before its older rates are loaded
        self._stepped.clear()
        self._state.restore(state_dict)

    def _require_running(self, what: str) -> None:
        if self._ended:
            raise RuntimeError(
                f"blocks.{what} was called after finish(), which ended the training of these "
                "blocks: attach anew to train on"
            )

    def _check_parameters(self) -> None:
        """Raise RuntimeError for parameters that have come, gone or been unfrozen."""
        trained = self._synchroniser.trained
        trained.known.require_kept(parameters_of(self._engine.module))
        if new := trained.unfrozen():
            raise RuntimeError(
                f"{len(new)} parameters were unfrozen after attach(), among them {min(new)!r}, and "
                "would not be synchronised: have them trainable before, in a parameter group with "
                "lr=0, or call blocks.finish(), wrap the module anew and attach again"
            )

    def _begin_step(self, index: int, *_: Any) -> None:
        if self._synchroniser.evaluation.active:
            raise RuntimeError(
                "an optimizer steps while the module contains the global model: end the context "
                "global_model() first"
            )
        if index in self._stepped:
            raise RuntimeError(
                f"{type(self._engine.optimizers[index]).__name__} steps a second time without "
                "blocks.step() in between: call it after every step, on every rank. If you "
                "attached twice, call finish() or detach() of the first blocks before. With "
                "Fabric, step the optimizer that fabric.setup has returned"
            )
        self._leave(index)  # a step that has failed
        if _creates_state(self._engine.optimizers[index]):
            return
        self._in_step[index] = stepping = self._engine.stepping(index)
        stepping.__enter__()

    def _end_step(self, index: int, *_: Any) -> None:
        if index in self._in_step:
            self._leave(index)
            self._stepped.add(index)

    def _leave(self, index: int) -> None:
        if index in self._in_step:
            self._in_step.pop(index).__exit__(None, None, None)

    def _refuse(self, optimizer: Optimizer) -> None:
        """Raise RuntimeError for an optimizer of the module that is not attached."""
        if any(optimizer is attached for attached in self._engine.optimizers):
            return
        trained = self._synchroniser.trained.parameters
        if self._synchroniser.evaluation.active or trained.isdisjoint(
            optimizer_parameters(optimizer)
        ):
            return
        raise RuntimeError(
            f"{type(optimizer).__name__} steps parameters of the attached module, but was not "
            "passed to attach(): its steps would not be counted. Pass all optimizers of the "
            "module, and attach again after replacing one. With Fabric, set a module up once, with "
            "all of its optimizers"
        )


def _creates_state(optimizer: Optimizer) -> bool:
    """Whether a step only creates state, as ``get_state_dict`` of torch's checkpoints does.

    It is no step of the loop, and blocks do not start with it: a model may be loaded behind it.
    """
    if optimizer.state or any(group.get("lr") != 0.0 for group in optimizer.param_groups):
        return False
    gradients = [p.grad for p in optimizer_parameters(optimizer) if p.grad is not None]
    return not any(local_tensor(gradient).any() for gradient in gradients)


def _refuse_others(blocks: ref[Blocks], optimizer: Optimizer, *_: Any) -> None:
    alive = blocks()
    if alive is not None:
        alive._refuse(optimizer)
