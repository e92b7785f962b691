"""State of the engine: what is equal on all ranks, that of a group, and that of each rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.algorithms.arguments import counted
from lightning_hier.comm.blocks.model_block import ModelBlock
from lightning_hier.comm.sharded_tensors import is_sharded, local_tensor, sharded_like
from lightning_hier.comm.worker import StepCount
from lightning_hier.loop.engine import Engine
from lightning_hier.loop.settings import kinds

State = dict[str, Any]


class EngineState:
    """Reads and writes the state of a rank. Does not communicate.

    Args:
        engine: engine of this rank.

    Attributes:
        parameters: parameters of the module, by name.
        names: names of the parameters.
        divided: whether FSDP2 or tensor parallelism divides the module among ranks.

    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._module, self._optimizers = engine.module, engine.optimizers
        self._settings = engine.settings
        self._communicators = engine.communicators
        self._worker = engine.worker
        self._synchroniser = engine.synchroniser
        self._reduction = engine.reduction
        self.parameters: dict[str, Parameter] = dict(engine.module.named_parameters())
        self.names: dict[Parameter, str] = {p: name for name, p in self.parameters.items()}
        self.divided = is_sharded(engine.module)

    @property
    def ranks_differ(self) -> bool:
        """Whether each rank of a group has a model and optimizers of its own."""
        return self.divided or self._engine.updates is not None

    def kinds(self) -> State:
        """Return the settings that must equal those of a saved run to resume exactly."""
        return kinds(self._settings, self._communicators, self._synchroniser.placement)

    def shared(self) -> State:
        """Return the small state that is equal on all ranks."""
        blocks, trained = self._synchroniser.blocks, self._synchroniser.trained
        return {
            "steps": [asdict(count) for count in self._worker.steps],
            "trainable": [self.names[p] for p in self._synchroniser.evaluation.local_parameters()],
            "written": [n for t, n in trained.buffers.names.items() if isinstance(t, Parameter)],
            "kept_equal": sorted(trained.kept_equal),
            "has_blocks": blocks is not None,
            "sizes": list(self._communicators.layout.sizes),
            "kinds": self.kinds(),
        }

    def of_group(self) -> State:
        """Return the model of the group and the optimizers, which all ranks of a group have.

        If the module is divided, these are the parts of this rank. Tensors are not copied.
        """
        # With GTC of updates, x: the residuals, by which ranks of a group differ, are of a rank.
        local = self._synchroniser.evaluation.local_parameters() | self._worker.memory.shared
        return {
            "parameters": {self.names[p]: value for p, value in local.items()},
            "optimizers": [local_state_dict(optimizer) for optimizer in self._optimizers],
        }

    def of_rank(self) -> State:
        """Return what this rank has for itself. Tensors are not copied.

        It finishes what is in flight: a collective of the world if there is anything.
        """
        blocks, memory = self._synchroniser.blocks, self._worker.memory
        # With GTC of updates, what hooks have written since the last step is neither in x nor in
        # the residuals.
        written = memory.written(self._synchroniser.evaluation.local_parameters())
        return {
            "blocks": None if blocks is None else [block.state() for block in blocks],
            "memory": memory.state(self.names),
            "written_parameters": {self.names[p]: value for p, value in written.items()},
            "samples": list(self._worker.samples),
            "ready_order": [self.names[p] for p in self._reduction.ready_order],
            "buffers": self._synchroniser.evaluation.local_buffers(),
        }

    def load_steps(self, shared: Mapping[str, Any]) -> None:
        """Load step counts, and the names of tensors that are buffers or are not averaged."""
        trained = self._synchroniser.trained
        trained.buffers.add({self.parameters[name]: name for name in shared["written"]})
        trained.kept_equal = set(shared["kept_equal"])
        for count, saved in zip(self._worker.steps, shared["steps"], strict=True):
            vars(count).update(vars(StepCount(**saved)))  # in place: others refer to the count

    @torch.no_grad()
    def load(self, shared: Mapping[str, Any], model: State, rank: State) -> None:
        """Continue a run of the same groups exactly. The module then contains the local model.

        Args:
            shared: result of :meth:`shared`.
            model: :meth:`of_group` of this rank's group.
            rank: :meth:`of_rank` of this rank.

        """
        # The buckets of the saved run, because they decide how sums of gradients are rounded. Those
        # of a group follow from the order of its first rank.
        self._reduction.rehearse([self.parameters[name] for name in rank["ready_order"]])
        self.load_optimizers(model["optimizers"])
        if shared["has_blocks"]:
            for block, state in zip(self._open_blocks(shared), rank["blocks"], strict=True):
                block.load(state)
        tensors: dict[str, Tensor] = {**dict(self._module.named_buffers()), **self.parameters}
        if missing := [name for name in rank["buffers"] if name not in tensors]:
            raise ValueError(
                f"the module has no buffer {missing[0]!r}, which the saved run has registered in "
                "training: register it in __init__ or setup, with its shape"
            )
        self._synchroniser.trained.mark_written(rank["buffers"].keys())
        for name, value in {**model["parameters"], **rank["buffers"]}.items():
            local_tensor(tensors[name]).copy_(value)
        self._worker.memory.load(rank["memory"], self.parameters)
        self.subtract_residuals()
        for name, value in rank["written_parameters"].items():
            self._worker.memory.share([self.parameters[name]])  # small ones have no residuals
            self.parameters[name].copy_(value)
        self._worker.samples = rank["samples"]

    def subtract_residuals(self) -> None:
        """Turn x in the module into the local model, if the residuals loaded are those of updates.

        A block opens with x, so it must be open before. In a warm-up, the module keeps x.
        """
        if self._engine.updates is not None and not self._synchroniser.warming:
            self._worker.memory.share(self._worker.memory.tensors)

    def load_optimizers(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Load the state of all optimizers, bit for bit."""
        for optimizer, state in zip(self._optimizers, states, strict=True):
            load_optimizer(optimizer, state)

    def load_elsewhere(
        self, shared: Mapping[str, Any], states: Iterable[Mapping[str, Mapping[str, Any]]] | None
    ) -> None:
        """Start from a run with other groups or settings. A collective of the group.

        The module must contain the global model of that run, in which the interrupted block has
        ended. Counts of steps are those of :meth:`load_steps`.

        Args:
            shared: result of :meth:`shared`.
            states: state of the outer step of each parameter by name, for each block, see
                :func:`~lightning_hier.loop.outer_state.outer_states`. It is read if this run has
                blocks now. None: there is none.

        """
        for count in self._worker.steps:
            count.in_block = 0
        opens = self._settings.block_sync is not None and not self._synchroniser.warming
        if opens and states is not None and shared["has_blocks"]:
            for block, outer in zip(self._open_blocks(shared), states, strict=True):
                block.load_elsewhere({self.parameters[name]: own for name, own in outer.items()})

    def continues(self, shared: Mapping[str, Any]) -> bool:
        """Whether this run has the groups and settings of a saved one, and continues it exactly."""
        now, saved = self.kinds(), shared["kinds"]
        same_groups = self._communicators.layout.sizes == tuple(shared["sizes"])
        return same_groups and all(now[name] == saved.get(name) for name in now)

    def what_changes(self, shared: Mapping[str, Any], lost: Sequence[str]) -> str:
        """Message that lists the differences to a saved run and their consequences.

        Args:
            shared: result of :meth:`shared`, before :meth:`load_elsewhere`.
            lost: further consequences.

        """
        layout, (size_before, before) = self._communicators.layout, shared["sizes"]
        (size, groups), changes, effects = layout.sizes, [], []
        if (size, groups) != (size_before, before):
            now = f"{counted(groups, 'group')} of {counted(size, 'rank')}"
            changes.append(f"{now} instead of {before} of {size_before}")
        kinds = self.kinds()
        changes += [
            f"{name} is {kinds.get(name)} instead of {old}"
            for name, old in shared["kinds"].items()
            if kinds.get(name) != old and name != "inter_host_ranks"  # it follows from the groups
        ]
        steps = max(count["in_block"] for count in shared["steps"])
        if steps and shared["has_blocks"]:
            effects.append(f"the current block ended after {counted(steps, 'step')}")
        if shared["kinds"]["inter_host_ranks"] is not None:
            effects.append("the error feedback of quantised or sparse updates is lost")
        therefore = ", ".join([*effects, *lost])
        text = f"Resuming with a change: {'; '.join(changes)}. Therefore {therefore}."
        if size != size_before and layout.world_size == size_before * before:
            # "node" counts the ranks of a host, which increase with fewer hosts.
            text += (
                f" The number of ranks is unchanged: group_size={size_before} keeps their groups."
            )
        return text

    def _open_blocks(self, shared: Mapping[str, Any]) -> Sequence[ModelBlock]:
        """Start blocks with the current model and the parameters that the saved run trained."""
        return self._synchroniser.open_blocks(
            [self.parameters[name] for name in shared["trainable"]]
        )


def local_state_dict(optimizer: Optimizer) -> dict[str, Any]:
    """The state of ``optimizer`` with the local part of each tensor, not copied."""
    state = optimizer.state_dict()
    local = {
        index: {
            name: local_tensor(value) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        for index, values in state["state"].items()
    }
    return {**state, "state": local}


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load ``state`` bit for bit.

    torch converts a state to the dtype of its parameter, which rounds counts in double precision.
    """
    optimizer.load_state_dict(dict(state))
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, saved in state["state"].items():
        parameter = parameters[index]
        loaded = optimizer.state[parameter]
        for name, value in saved.items():
            if not isinstance(value, Tensor):
                continue
            if loaded[name].dtype != value.dtype:
                loaded[name] = value.to(loaded[name].device, copy=True)
            if value.dim():  # counts are not divided
                loaded[name] = sharded_like(loaded[name], parameter)
