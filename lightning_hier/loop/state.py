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
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_hier.comm.agreement import broadcast_json, gather_json, raise_everywhere
from lightning_hier.comm.random_state import random_state, set_random_state
from lightning_hier.comm.sharded_tensors import local_tensor, sharded_like
from lightning_hier.loop.engine import Engine
from lightning_hier.loop.engine_state import EngineState
from lightning_hier.loop.outer_state import outer_state, outer_states, parts_of
from lightning_hier.loop.pieces import (
    PartOfTensor,
    Row,
    as_bytes,
    from_bytes,
    padded,
    plain_numbers,
)
from lightning_hier.membership.group_exchange import GroupExchange

_FILE = "rank_{}.pt"

# By optimizer, vector and parameter.
_Outer = dict[str, dict[str, dict[str, PartOfTensor]]]


class LoopState(EngineState):
    """Reads and writes the state of a plain loop, by collectives of the world.

    Args:
        engine: engine of this rank.
        membership: synchronisations with the groups that are present, if groups come and go.

    """

    def __init__(self, engine: Engine, membership: GroupExchange | None) -> None:
        super().__init__(engine)
        self._membership = membership

    def save(self) -> dict[str, Any]:
        """State of this rank, with copies of what training changes in place."""
        model = self._synchroniser.evaluation.state(self._module.state_dict)
        outer, of_outer = self._outer()
        sections = self._sections()
        sections["run"] |= of_outer
        communicators = self._communicators
        rows = {n: None if own is None else as_bytes(own) for n, own in sections.items()}
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

    def _sections(self) -> dict[str, Any]:
        """What this rank has of the run, of its group and for itself. Tensors are not copied."""
        group, own = None, self.of_rank() | {"random": random_state(self._communicators.device)}
        if self.ranks_differ:
            own |= self.of_group()
        if self._communicators.group.position == 0 and not self.divided:
            group = self.of_group()
        membership = None if self._membership is None else self._membership.state()
        run = {**self.shared(), "divided": self.divided, "membership": membership}
        return {"run": run, "group": group, "rank": own}

    def _outer(self) -> tuple[_Outer, dict[str, Any]]:
        """Vectors of the outer steps, with nothing in flight, and what is equal on all ranks."""
        # In the warm-up those with which it will end, so that every state has the same entries.
        # They create optimizer state, which has counts in double precision, and a save does not
        # change the warm-up.
        changed = self._optimizers if self._synchroniser.blocks is None else ()
        before = [{p: dict(own) for p, own in o.state.items()} for o in changed]
        state = outer_state(self._synchroniser.present_blocks(), self.names)
        for optimizer, own in zip(changed, before, strict=True):
            optimizer.state.clear()
            optimizer.state.update(own)
        outer: _Outer = {}
        for index, buckets in enumerate(state):
            by_vector = outer[str(index)] = {}
            for bucket in buckets:
                # Also without momentum: other numbers of groups have it by "auto", and torch loads
                # no state that lacks a vector.
                if bucket["block_momentum"] is not None:
                    model = bucket["vectors"]["global_model"]
                    bucket["vectors"].setdefault("update", torch.zeros_like(model))
            for vector, name, place, values in chain.from_iterable(map(parts_of, buckets)):
                part = PartOfTensor(place, values, reads_all=not self.divided)
                by_vector.setdefault(vector, {})[name] = part
        sync = self._settings.block_sync
        has_errors = sync is not None and sync.has_error_feedback
        return outer, {
            "had_residuals": bool(self._worker.memory.tensors) or has_errors,
            "outer": [[_settings(bucket) for bucket in buckets] for buckets in state],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue the run of a state that was read into the values of :meth:`save`."""
        run = state["run"].loaded()
        self._begin(run, state["model"])
        if self.continues(run) and run["divided"] == self.divided:
            own = state["rank"].loaded()
            self._continue(run, own if self.ranks_differ else state["group"].loaded(), own)
        else:
            self._restore_elsewhere(state, run)

    def write(self, folder: Path) -> None:
        """Write what a group with equal settings needs to continue, a file for each rank.

        Not by ``torch.distributed.checkpoint``, which unpickles its metadata: a group that joins
        gets these files over the network.

        Raises:
            OSError: on every rank, if any of them could not write.

        """
        model = self._synchroniser.evaluation.state(self._module.state_dict)
        own, rank = self._sections(), dist.get_rank()
        if self.divided or rank == 0:
            own["model"] = {
                name: local_tensor(value) if isinstance(value, Tensor) else value
                for name, value in model.items()
            }
        place = "the state of this group was written"
        with raise_everywhere(self._communicators.device, error=OSError, place=place):
            try:
                torch.save(plain_numbers(own), folder / _FILE.format(rank))
            except RuntimeError as error:  # torch's, such as that of a full disk
                raise OSError(str(error)) from error

    def read(self, folder: Path) -> None:
        """Continue the run of the group that has called :meth:`write`."""
        own, first = (
            torch.load(folder / _FILE.format(rank), map_location="cpu", weights_only=True)
            for rank in (dist.get_rank(), dist.get_rank() if self.divided else 0)
        )
        targets = self._module.state_dict()
        model = {
            name: sharded_like(value, targets[name]) if isinstance(value, Tensor) else value
            for name, value in first["model"].items()
        }
        self._begin(own["run"], model)
        of_group = own["rank"] if self.ranks_differ else first["group"]
        self._continue(own["run"], of_group, own["rank"])

    def _begin(self, run: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        """Load what every run takes from another one."""
        synchroniser = self._synchroniser
        synchroniser.rewind()
        self._module.load_state_dict(model)
        synchroniser.trained.note_frozen()
        self.load_steps(run)
        self._reduction.set_warm_up(warming=synchroniser.warming)
        if self._membership is not None and run["membership"] is not None:
            self._membership.load(run["membership"])

    def _continue(self, run: Mapping[str, Any], group: Any, own: Any) -> None:
        """Continue a run of the same groups exactly."""
        self.load(run, group, own)
        set_random_state(own["random"], self._communicators.device)

    @torch.no_grad()
    def _restore_elsewhere(self, state: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Start from the global model of a run with other groups or settings."""
        world = self._communicators.world
        lost = ["residuals are lost"] if run["had_residuals"] else []
        if self.divided or "group" not in state:
            lost.append("the state of local optimizers is lost")
        else:
            lost.append("local optimizers start from the state of rank 0")
            saved = state["group"].loaded()["optimizers"] if world.position == 0 else None
            self.load_optimizers(self._of_first_rank(saved))
        text = self.what_changes(run, lost)
        self.load_elsewhere(run, self._outer_states(state, run))
        if world.position == 0:
            warnings.warn(text, stacklevel=4)

    def _of_first_rank(self, state: Any) -> Any:
        """A state that rank 0 has read, on all ranks. A collective of the world."""
        world, device = self._communicators.world, self._communicators.device
        content = as_bytes(state)
        length = broadcast_json(len(content), 0, device)
        received = (
            content.to(device) if world.position == 0 else content.new_empty(length).to(device)
        )
        world.broadcast_(received, "optimizer_state").wait()
        return from_bytes(received.cpu())

    def _outer_states(
        self, state: Mapping[str, Any], run: Mapping[str, Any]
    ) -> Iterator[dict[str, dict[str, Any]]]:
        for index, rest in enumerate(run["outer"]):
            read = {
                vector: {name: part.loaded() for name, part in by_name.items()}
                for vector, by_name in state["outer"][str(index)].items()
            }
            yield outer_states(rest, read)


def _settings(bucket: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in bucket.items() if name not in ("places", "vectors")}
