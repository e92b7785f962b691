"""State of a synchronous run: what is equal on all ranks, and the state of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.modules import batchnorm
from torch.optim import Optimizer

from lightning_hier.comm.blocks.model_block import ModelBlock
from lightning_hier.comm.gradients.reached import reach
from lightning_hier.comm.sharded_tensors import is_sharded, local_tensor, sharded_like
from lightning_hier.comm.worker import StepCount
from lightning_hier.loop.optimizer_state import load_optimizer, local_state_dict
from lightning_hier.loop.settings import automatic_values, kinds
from lightning_hier.strategies.checkpoints.rank_files import State

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession


class RunState:
    """Reads and writes the state of a rank. Does not communicate.

    Args:
        session: session of the run.
        optimizers: optimizers of the user.

    Attributes:
        parameters: parameters of the module, by name.
        names: names of the parameters.

    """

    def __init__(self, session: FitSession, optimizers: Sequence[Optimizer]) -> None:
        self._session = session
        self._module = session.trainer.lightning_module
        self._optimizers = list(optimizers)
        self._synchroniser = session.synchroniser
        self._steps = session.worker.steps
        self.parameters: dict[str, Parameter] = dict(self._module.named_parameters())
        self.names: dict[Parameter, str] = {p: name for name, p in self.parameters.items()}
        # A resumed run must know which parameters were unfrozen during training.
        self._frozen_at_first = self._frozen()
        mesh = self._module.device_mesh if is_sharded(self._module) else None
        self._mesh = None if mesh is None else list(mesh.shape)

    def kinds(self) -> State:
        """Return the settings that must equal those of a saved run to resume exactly."""
        session = self._session
        common = kinds(session.settings, session.communicators, self._synchroniser.placement)
        # Data-parallel and tensor-parallel ranks of a group, which hold parts of the module.
        return {**common, "mesh": self._mesh}

    def shared(self) -> State:
        """Return the small state that is equal on all ranks, for the checkpoint itself."""
        settings, blocks = self._session.settings, self._synchroniser.blocks
        local, elastic = self._synchroniser.local, self._session.elastic
        trained = self._synchroniser.trained
        return {
            "steps": [asdict(count) for count in self._steps],
            "loops": self._session.position.loops(),
            "frozen": self._frozen(),
            "frozen_at_first": self._frozen_at_first,
            "trainable": [self.names[p] for p in local.parameters()],
            "written": [n for t, n in trained.buffers.names.items() if isinstance(t, Parameter)],
            "kept_equal": sorted(trained.kept_equal),
            "counts": None if blocks is None else [self._named(block.counts()) for block in blocks],
            "kinds": self.kinds(),
            "automatic_values": automatic_values(
                int(settings.warmup_steps), settings.gradient_sync, settings.block_sync
            ),
            "membership": elastic.state() if elastic else None,
            "ready_order": [self.names[p] for p in self._session.reduction.ready_order],
        }

    def _local_model(self) -> State:
        """Local model and optimizers or, if the module is divided, the part of this rank."""
        local = self._synchroniser.local.parameters()
        return {
            "parameters": {self.names[p]: value for p, value in local.items()},
            "optimizers": [local_state_dict(optimizer) for optimizer in self._optimizers],
            "averages": self._session.averages.of_group(),
        }

    def of_rank(self) -> State:
        """Return the state of this rank, for its own file. Tensors are not copied.

        All ranks of a group have the same local model, which the first rank of the group saves. If
        the module is divided, each saves its part.
        """
        session = self._session
        blocks, worker, trainer = self._synchroniser.blocks, session.worker, session.trainer
        gradients = session.accumulated_gradients  # empty once training has started
        # After a complete step, gradients have been used, and the next step clears them. With
        # manual optimization, only the module knows which of them it will use.
        by_hand = not trainer.lightning_module.automatic_optimization
        if not gradients and (by_hand or trainer.fit_loop.epoch_loop._should_accumulate()):
            gradients = {name: parameter.grad for name, parameter in self.parameters.items()}
        state = {
            "blocks": None if blocks is None else [block.state() for block in blocks],
            "memory": worker.memory.state(self.names),
            "samples": list(worker.samples),
            "buffers": self._synchroniser.local.buffers(),
            "averages": session.averages.of_rank(),
            "random": session.position.state(),
            "precision": trainer.precision_plugin.state_dict(),
            "gradients": {
                name: local_tensor(gradient)
                for name, gradient in gradients.items()
                if gradient is not None
            },
        }
        if session.communicators.group.position == 0 or self._mesh:
            state["local_model"] = self._local_model()
        return state

    def set_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Load the gradients of an accumulated step, or all with manual optimization."""
        # With manual optimization, DDP has reduced each backward pass.
        if self._session.trainer.lightning_module.automatic_optimization:
            reach(self.parameters[name] for name in gradients)  # first, as it sets them to zero
        for name, gradient in gradients.items():
            parameter = self.parameters[name]
            parameter.grad = sharded_like(gradient.to(parameter.device, copy=True), parameter)

    @torch.no_grad()
    def load(self, shared: Mapping[str, Any], model: State, rank: State) -> None:
        """Resume a run of the same groups exactly. The module then contains the local model.

        Args:
            shared: result of :meth:`shared`.
            model: local model of the group, from :meth:`of_rank`.
            rank: :meth:`of_rank` of this rank.

        """
        self.load_optimizers(model["optimizers"])
        if shared["counts"] is not None:
            blocks = self.open_blocks(shared)
            for block, state in zip(blocks, rank["blocks"], strict=True):
                block.load(state)
        buffers = dict(self._module.named_buffers())
        known = {*buffers, *self.parameters}
        if missing := [name for name in rank["buffers"] if name not in known]:
            raise ValueError(
                f"the module has no buffer {missing[0]!r}, which the saved run has registered in "
                "training: register it in __init__ or setup, with its shape"
            )
        self._synchroniser.trained.mark_written(rank["buffers"].keys())
        for name, value in {**model["parameters"], **rank["buffers"]}.items():
            tensor = self.parameters[name] if name in self.parameters else buffers[name]
            local_tensor(tensor).copy_(value)

    def thaw(self, shared: Mapping[str, Any]) -> None:
        """Unfreeze the parameters that the saved run had unfrozen, such as by ``BaseFinetuning``.

        A parameter that is frozen now and was trainable at the start of that run stays frozen.
        """
        unfrozen = set(shared["frozen_at_first"]) - set(shared["frozen"])
        for prefix, module in self._module.named_modules():
            for name, parameter in module.named_parameters(prefix, recurse=False):
                if not parameter.requires_grad and name in unfrozen:
                    parameter.requires_grad_(True)
                    if isinstance(module, batchnorm._BatchNorm):
                        module.track_running_stats = True

    def load_steps(self, shared: Mapping[str, Any]) -> None:
        """Load step counts, and the names of tensors that are buffers or are not averaged."""
        trained = self._synchroniser.trained
        trained.buffers.add({self.parameters[name]: name for name in shared["written"]})
        trained.kept_equal = set(shared["kept_equal"])
        for count, saved in zip(self._steps, shared["steps"], strict=True):
            vars(count).update(vars(StepCount(**saved)))  # in place: others refer to the count

    def load_optimizers(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Load the state of all optimizers, bit for bit."""
        for optimizer, state in zip(self._optimizers, states, strict=True):
            load_optimizer(optimizer, state)

    def open_blocks(self, shared: Mapping[str, Any]) -> Sequence[ModelBlock]:
        """Start blocks with the current model and the parameters that the saved run trained."""
        return self._synchroniser.open_blocks(
            [self.parameters[name] for name in shared["trainable"]]
        )

    def by_parameter(self, counts: Mapping[str, list[float]]) -> dict[Parameter, list[float]]:
        """Counts by parameter instead of by name."""
        return {self.parameters[name]: values for name, values in counts.items()}

    def _frozen(self) -> list[str]:
        return [name for name, parameter in self.parameters.items() if not parameter.requires_grad]

    def _named(self, counts: Mapping[Parameter, list[float]]) -> dict[str, list[float]]:
        return {self.names[parameter]: values for parameter, values in counts.items()}
