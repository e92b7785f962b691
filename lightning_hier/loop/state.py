"""The state of a plain loop: saved on every rank, and loaded on the same or other ranks.

A state has the sections

- ``"model"``: the global model, by the names of its tensors,
- ``"outer"``: the vectors of outer steps, by optimizer, vector and parameter,
- ``"run"``: step counts and settings, equal on all ranks,
- ``"group"``: local model and optimizers of a group, a row for each group,
- ``"rank"``: what each rank has for itself, a row for each rank.

The last two continue a run of the same groups bit for bit. The others start one with other groups.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.sharded_tensors import is_sharded, local_tensor, sharded_like
from lightning_hier.loop.engine import Engine
from lightning_hier.loop.engine_state import EngineState
from lightning_hier.loop.optimizer_state import (
    broadcast_optimizer_,
    load_optimizer,
)
from lightning_hier.loop.pieces import FlatPart, Row, as_bytes, padded
from lightning_hier.membership.group_exchange import GroupExchange

# By optimizer, vector and parameter.
_Outer = dict[str, dict[str, dict[str, Any]]]


class LoopState(EngineState):
    """Reads and writes the state of a plain loop. :meth:`save` and the loads are collectives.

    Args:
        engine: engine of this rank.
        membership: synchronisations with the groups that are present, if groups come and go.

    """

    def __init__(self, engine: Engine, membership: GroupExchange | None) -> None:
        super().__init__(engine)
        self._membership = membership
        self._divided = is_sharded(self._module)

    def save(self) -> dict[str, Any]:
        """State of this rank, with copies of what training changes in place."""
        model = self._synchroniser.evaluation.state(self._module.state_dict)
        outer, rest = self._outer_state()
        run, group, own = self._run(rest), None, self.of_rank()
        communicators = self._communicators
        if self._divided:
            own |= self.of_group()
        elif communicators.group.position == 0:
            group = as_bytes(self.of_group())
        rows = {"run": as_bytes(run), "group": group, "rank": as_bytes(own)}
        lengths = {name: 0 if row is None else len(row) for name, row in rows.items()}
        every = gather_json(lengths, communicators.device, place="the state of a checkpoint")
        longest = {name: max(of_rank[name] for of_rank in every) for name in rows}
        rank, (ranks, groups) = dist.get_rank(), communicators.layout.sizes
        number = {"run": 0, "group": rank // ranks, "rank": rank}
        count = {"run": 1, "group": groups, "rank": ranks * groups}
        if rank != 0:
            rows["run"] = None
        return {
            "model": model,
            "outer": outer,
            **{
                name: Row(number[name], count[name], padded(row, longest[name]), longest[name])
                for name, row in rows.items()
                if longest[name]
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue the run of a state that was read into the values of :meth:`save`."""
        run = state["run"].loaded()
        synchroniser = self._synchroniser
        self._engine.rewind()
        self._module.load_state_dict(state["model"])
        synchroniser.trained.note_frozen()
        self.load_steps(run)
        if not synchroniser.warming:
            self._reduction.end_warm_up()
        if self._membership is not None and run["membership"] is not None:
            self._membership.load(run["membership"])
        now = self._like(run)
        if now == {name: run[name] for name in now}:
            self._load_exactly(state, run)
        else:
            self._load_elsewhere(state, run)

    def _load_exactly(self, state: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        own = state["rank"].loaded()
        self._reduction.rehearse([self.parameters[name] for name in run["ready_order"]])
        self.load(run, own if self._divided else state["group"].loaded(), own)

    @torch.no_grad()
    def _load_elsewhere(self, state: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Start from the global model of a run with other groups or settings."""
        lost = ["residuals and error feedback"] if run["had_residuals"] else []
        for count in self._worker.steps:
            count.in_block = 0
        world, device = self._communicators.world, self._communicators.device
        if self._divided or "group" not in state:
            lost.append("the state of local optimizers")
        else:
            saved = state["group"].loaded() if world.position == 0 else None
            for index, optimizer in enumerate(self._optimizers):
                if saved is not None:
                    load_optimizer(optimizer, saved["optimizers"][index])
                broadcast_optimizer_(optimizer, world, device)
        if run["counts"] is not None and not self._synchroniser.warming:
            for index, block in enumerate(self.open_blocks(run)):
                counts = self.by_parameter(run["counts"][index])
                block.restart(self._restored(index, state["outer"], run), counts)
        if world.position == 0:
            was, now = run["sizes"], self._like(run)["sizes"]
            warnings.warn(
                f"the checkpoint was saved by {was[1]} groups of {was[0]} ranks, with "
                f"{run['kinds']}, and is loaded by {now[1]} of {now[0]}: training continues from "
                "the global model, the current block has ended, local optimizers start from those "
                f"of rank 0{''.join(f', and {what} are lost' for what in lost)}",
                stacklevel=4,
            )

    def _like(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """What must equal the entries of ``run`` to continue it exactly."""
        return {
            "sizes": list(self._communicators.layout.sizes),
            "kinds": self.kinds(),
            "divided": self._divided,
        }

    def _run(self, outer: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """State that is equal on all ranks."""
        sync = self._settings.block_sync
        has_errors = sync is not None and sync.has_error_feedback
        return {
            **self.shared(),
            **self._like({}),
            "had_residuals": bool(self._worker.memory.tensors) or has_errors,
            "outer": outer,
            "membership": None if self._membership is None else self._membership.state(),
        }

    def _outer_state(self) -> tuple[_Outer, list[list[dict[str, Any]]]]:
        """Vectors of the outer steps by parameter, and the rest of their state."""
        tensors: _Outer = {}
        rest: list[list[dict[str, Any]]] = []
        # In the warm-up those with which it will end, so that every state has the same entries.
        for index, block in enumerate(self._synchroniser.present_blocks()):
            by_vector = tensors[str(index)] = {}
            rest.append([])
            for parameters, start, state in block.outer_states():
                vectors = {n: v.clone() for n, v in state.items() if isinstance(v, Tensor)}
                for name, vector in vectors.items():
                    by_vector.setdefault(name, {}).update(self._parts(parameters, start, vector))
                others = {n: v for n, v in state.items() if n not in vectors}
                others["parameters"] = [self.names[p] for p in parameters]
                rest[-1].append(others)
        return tensors, rest

    def _parts(
        self, parameters: Sequence[Parameter], start: int, vector: Tensor
    ) -> Iterator[tuple[str, Any]]:
        """The elements of each parameter in a vector that begins at ``start`` of all of them."""
        first = 0
        for parameter in parameters:
            local = local_tensor(parameter)
            low, high = max(first, start), min(first + local.numel(), start + len(vector))
            part = vector[low - start : max(high, low) - start]
            if self._divided:
                yield self.names[parameter], sharded_like(part.view(local.shape), parameter)
            else:
                yield self.names[parameter], FlatPart(local.numel(), low - first, part)
            first += local.numel()

    def _restored(
        self, index: int, outer: Mapping[str, Any], run: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """State of outer steps in the order of the module, as of fragments of one parameter."""
        of_name = {name: saved for saved in run["outer"][index] for name in saved["parameters"]}
        states = []
        for name, parameter in self.parameters.items():
            if name not in of_name:
                continue
            vectors = {
                vector: values[name].loaded()
                if isinstance(values[name], FlatPart)
                else local_tensor(values[name]).reshape(-1)
                for vector, values in outer[str(index)].items()
                if name in values and (vector != "in_flight" or of_name[name]["has_update"])
            }
            bucket = {**of_name[name], **vectors, "kind": self._kind(parameter)}
            states.append({"pending": of_name[name]["pending"], "buckets": [bucket]})
        return states

    def _kind(self, parameter: Parameter) -> Any:
        return self._synchroniser.placement.kind(parameter)
