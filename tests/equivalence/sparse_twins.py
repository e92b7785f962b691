"""Float64 twins of runs whose groups send only the largest elements of their updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hier import BMUF, HierarchicalStrategy
from tests.equivalence.cases import Case
from tests.equivalence.fragment_twins import FragmentCase, FragmentTwin, Part, fragment_case
from tests.equivalence.twins import Sgd, Twin, Values, Worker


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Selection of the elements that are sent.

    Attributes:
        density: fraction of the elements of a piece that is sent.
        shards: number of equal parts of the model, one for each rank of a group that sends.
        piece: number of elements from which the largest are selected. None is a whole shard.
        together: number of groups whose updates are added before they are sent.

    """

    density: float
    shards: int = 1
    piece: int | None = None
    together: int = 1


class SparseTwin(Twin):
    """Workers that send the largest elements, and add the others to the next update."""

    cut: Cut
    errors: dict[tuple[int, int], Tensor]
    _ends = False

    def _end_block(self, index: int) -> None:
        self._ends = True
        super()._end_block(index)
        self._ends = False

    def _mean(self, index: int) -> Values:
        start = self.blocks[index].start
        return {
            name: start[name] + value
            for name, value in self._sent(index, lambda worker: _less(worker, start)).items()
        }

    def _mean_made(self, index: int) -> Values:
        return self._sent(index, lambda worker: self._made(worker, index))

    def _sent(self, index: int, update_of: Any) -> Values:
        """Sum of the elements that all groups send, which approximates the mean local update."""
        terms = [_flat(update_of(worker)) / len(self.leaders) for worker in self.leaders]
        total = torch.zeros_like(terms[0])
        for number in range(0, len(terms), self.cut.together):
            whole = torch.stack(terms[number : number + self.cut.together]).sum(0)
            whole = whole + self.errors.get((index, number), 0.0)
            sent = self._largest(whole)
            total += sent
            if self._ends:
                self.errors[index, number] = whole - sent
        w = self.blocks[index].w
        pieces = total.split([value.numel() for value in w.values()])
        return {name: own.view(w[name].shape) for name, own in zip(w, pieces, strict=True)}

    def _largest(self, values: Tensor) -> Tensor:
        sent = torch.zeros_like(values)
        each = -(-len(values) // self.cut.shards)
        for shard, out in zip(values.split(each), sent.split(each), strict=True):
            length = self.cut.piece or each
            for own, place in zip(shard.split(length), out.split(length), strict=True):
                place.copy_(_largest(own, self.cut.density))
        return sent


def _largest(values: Tensor, density: float) -> Tensor:
    most = values.abs().topk(math.ceil(density * len(values))).indices
    return torch.zeros_like(values).index_copy(0, most, values[most])


class SparseFragmentTwin(FragmentTwin):
    """The same as :class:`SparseTwin`, fragment by fragment."""

    density: float
    errors: dict[tuple[str, int], Tensor]
    _sends = False

    def _send(self, part: Part) -> None:
        self._sends = True
        super()._send(part)
        self._sends = False

    def _average(self, part: Part, updates: Sequence[Values]) -> Values:
        zero, total = torch.zeros_like(_flat(part.first)), torch.zeros_like(_flat(part.first))
        for number, own in enumerate(updates):
            left = self.errors.get((part.names[0], number), zero)
            whole = left + _flat(own) / len(updates)
            sent = _largest(whole, self.density)
            total += sent
            if self._sends:
                self.errors[part.names[0], number] = whole - sent
        pieces = total.split([part.first[name].numel() for name in part.names])
        by_name = zip(part.names, pieces, strict=True)
        return {name: piece.view(part.first[name].shape) for name, piece in by_name}


def _less(worker: Worker, start: Values) -> Values:
    return {name: worker.values()[name] - value for name, value in start.items()}


def _flat(values: Values) -> Tensor:
    return torch.cat([value.flatten() for value in values.values()])


@dataclass(frozen=True, kw_only=True)
class SparseCase(Case):
    """A run with sparse updates."""

    cut: Cut

    def twin(self, net: nn.Module, names: Sequence[tuple[str, ...]]) -> Twin:
        """The twin of the case."""
        sgds = [Sgd(names=own, lr=self.lr, momentum=self.momentum) for own in names]
        twin = SparseTwin(net, self.recipe, sgds)
        twin.cut, twin.errors = self.cut, {}
        return twin


def sparse_case(
    name: str, density: float, *, sync: Any = BMUF, group: int = 1, run: Any = None, **own: Any
) -> Any:
    """A run with sparse updates and a block synchronisation of class ``sync``."""
    settings = dict(run or {})
    cut = {key: settings.pop(key) for key in ("shards", "piece", "together") if key in settings}
    make = partial(
        HierarchicalStrategy,
        group_size=group,
        block_sync=sync(**{"block_size": 3, "across_density": density, **own}),
        warmup_steps=0,
        find_unused_parameters=True,
    )
    recipe = Case.recipe_of(make, 4)
    run = {"momentum": 0.8, "lr": 0.05, "batches": 11, **settings}
    return SparseCase(
        name=name, strategy=make, recipe=recipe, cut=Cut(density=density, **cut), **run
    )


@dataclass(frozen=True, kw_only=True)
class SparseFragmentCase(FragmentCase):
    """A run in fragments with sparse updates."""

    density: float

    def twin(self, net: nn.Module, names: Sequence[tuple[str, ...]]) -> Twin:
        """The twin of the case."""
        twin = super().twin(net, names)
        twin.__class__ = SparseFragmentTwin
        assert isinstance(twin, SparseFragmentTwin)
        twin.density, twin.errors = self.density, {}
        return twin


def sparse_fragment_case(name: str, density: float, **own: Any) -> Any:
    """The run of :func:`fragment_case` with sparse updates."""
    dense = fragment_case(name, across_density=density, **own)
    settings = {field.name: getattr(dense, field.name) for field in fields(dense)}
    return SparseFragmentCase(density=density, **settings)
