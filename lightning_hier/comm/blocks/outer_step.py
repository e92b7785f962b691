"""Outer step of a fragment: computes the next global model from the mean of the models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from lightning_hier.algorithms.block_momentum import BlockFilter
from lightning_hier.algorithms.kernels import sum_of_squares
from lightning_hier.algorithms.kernels.reference import SumOfSquares

EtaOf = Callable[[float], float]
"""Computes the momentum of a mean from its effective number of models."""


class OuterStep:
    """Interface of the outer optimizer of a fragment.

    It holds this rank's shard of the global model W and of its own state. ``place`` is a range of
    elements of this shard. No method communicates.

    Args:
        global_model: this rank's shard of W, flat. Updated in place.
        from_updates: whether the means are those of local updates (local model minus start model)
            instead of models. Updates are exchanged if they are quantised or delayed.

    Attributes:
        from_updates: see above. A subclass that needs updates sets it to True.
        vectors: W as ``"global_model"``, and state vectors with one value per element of W,
            initially zero. They are saved, divided among ranks and restored by name.

    """

    def __init__(self, global_model: Tensor, *, from_updates: bool) -> None:
        self.from_updates = from_updates
        self.vectors = {"global_model": global_model}

    def start_model(self, place: slice) -> Tensor:
        """W_g, the start model of the next block. May be a view of W."""
        raise NotImplementedError

    def prepare_(self, model: Tensor, place: slice) -> SumOfSquares:
        """Turn a local model into the values to average, in place. Returns their sum of squares."""
        raise NotImplementedError

    def set_models(self, effective: float) -> None:
        """Set the effective number of models of the next means, from which momentum may follow.

        It is set between :meth:`prepare_` and :meth:`apply_`, when a mean is sent.
        """

    def apply_(self, mean: Tensor, place: slice) -> tuple[SumOfSquares, SumOfSquares]:
        """Update W and the state, in place.

        Args:
            mean: mean of the models, or of the local updates. Becomes W_g.
            place: range of the mean.

        Returns:
            The sums of squares of the mean and of the global update.

        """
        raise NotImplementedError

    def preview(self, place: slice, device: torch.device | None = None) -> OuterStep:
        """A copy of this outer step for a range of elements. Its steps do not change this one.

        Args:
            place: range of the elements, which the copy counts from 0.
            device: device of the copy; by default that of the vectors.

        """
        ahead = copy(self)  # shallow: it shares settings, and gets vectors of its own
        ahead.vectors = {n: v[place].to(device, copy=True) for n, v in self.vectors.items()}
        return ahead

    def keep_(self, ahead: OuterStep, place: slice) -> None:
        """Take over the state of a :meth:`preview` of ``place`` after its step, in place."""
        for name, vector in ahead.vectors.items():
            self.vectors[name][place].copy_(vector)

    def stored(self, values: Tensor) -> Tensor:
        """A copy of other state of the block, in the memory in which the vectors are."""
        return values.clone()

    def adopt(self, saved: Mapping[str, Any], model: Tensor, *, pending: bool) -> dict[str, Any]:
        """State that begins a block after a run with other shards or settings.

        Vectors that the other run has are taken over as of its last synchronisation.

        Args:
            saved: :meth:`state` of a fragment of that run, with whole vectors, and its update in
                flight, if there is one, as ``"in_flight"``. Its tensors may be overwritten.
            model: global model of the fragment in the checkpoint, flat.
            pending: whether steps since the last synchronisation are part of ``model``.

        Returns:
            Vectors and settings for :meth:`begin`.

        """
        vectors = {name: saved.get(name) for name in self.vectors}
        state = {n: torch.zeros_like(model) if v is None else v for n, v in vectors.items()}
        return {**state, "global_model": model}

    def begin(self, state: Mapping[str, Any], place: slice) -> None:
        """Begin a block from a state with longer vectors, of which ``place`` is this shard."""
        shard = {n: v[place] if isinstance(v, Tensor) else v for n, v in state.items()}
        self.load(shard)

    def settings(self) -> dict[str, Any]:
        """Settings for a checkpoint, in addition to the vectors."""
        return {}

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, without copying tensors."""
        return {**self.settings(), **self.vectors}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a state of the same shard. Vectors that it does not contain are not changed."""
        for name, vector in self.vectors.items():
            if state.get(name) is not None:
                vector.copy_(state[name])


class BlockMomentumStep(OuterStep):
    """Model averaging, and classical and Nesterov block momentum (bmuf 2.1.3).

    Its state vector is Delta, as ``"update"``. Without block momentum, it has none.

    Args:
        block_filter: equations of block momentum.
        global_model: as in :class:`OuterStep`.
        from_updates: as in :class:`OuterStep`.
        eta_of: computes eta of every mean from the effective number of models. A block then starts
            from the look-ahead with eta of the last mean, which updates are counted from. Requires
            ``from_updates``. None: eta is constant.

    """

    def __init__(
        self,
        block_filter: BlockFilter,
        global_model: Tensor,
        *,
        from_updates: bool,
        eta_of: EtaOf | None = None,
    ) -> None:
        super().__init__(global_model, from_updates=from_updates)
        self._filter = block_filter
        self._eta_of = eta_of
        # With eta_of, this is eta of equal weights, which is above 0 for several models.
        if block_filter.keeps_update:
            self.vectors["update"] = torch.zeros_like(global_model)

    def start_model(self, place: slice) -> Tensor:
        """See :class:`OuterStep`."""
        return self._filter.start_model(*self._at(place))

    def prepare_(self, model: Tensor, place: slice) -> SumOfSquares:
        """See :class:`OuterStep`."""
        # A model is sent as it is. Its squares are for the health report and the norms.
        if not self.from_updates:
            return sum_of_squares(model)
        return self._filter.leave_out_start_(model, *self._at(place))

    def set_models(self, effective: float) -> None:
        """See :class:`OuterStep`."""
        if self._eta_of is not None:
            self._filter = replace(self._filter, eta=self._eta_of(effective))

    def apply_(self, mean: Tensor, place: slice) -> tuple[SumOfSquares, SumOfSquares]:
        """See :class:`OuterStep`."""
        # From models, W is their mean bit for bit with model averaging and NBM with zeta = 1.
        if self.from_updates:
            return self._filter.advance_by_(mean, *self._at(place))
        return self._filter.advance_(mean, *self._at(place))

    def adopt(self, saved: Mapping[str, Any], model: Tensor, *, pending: bool) -> dict[str, Any]:
        """See :class:`OuterStep`. Delta is the update that has led to ``model``.

        If W contains the look-ahead, Delta is that of the last synchronisation, because it does not
        follow from the difference of two models. State of another outer step is dropped.
        """
        block_filter = BlockFilter(**saved["filter"]) if "filter" in saved else None
        inside = self._filter.includes_ahead
        # Between BMUF and DiLoCo, W and Delta have different meanings.
        if block_filter is None or block_filter.includes_ahead != inside:
            return super().adopt({}, model, pending=pending)
        if inside:
            return super().adopt(saved, model, pending=pending)
        before, update = saved["global_model"], saved.get("update")
        # As the evaluation that computed `model`: the update in flight, then that of later steps.
        if saved.get("in_flight") is not None:
            block_filter.advance_by_(saved["in_flight"], before, update)
        if pending:
            from_start = block_filter.update_from == "start"
            update = model - (block_filter.start_model(before, update) if from_start else before)
        return {
            "global_model": model,
            "update": torch.zeros_like(model) if update is None else update,
        }

    def settings(self) -> dict[str, Any]:
        """See :class:`OuterStep`."""
        return {"filter": asdict(self._filter)}

    def load(self, state: Mapping[str, Any]) -> None:
        """See :class:`OuterStep`. Eta is that of the last mean."""
        super().load(state)
        # A constant eta is that of the settings of this run, and not of the saved one.
        if self._eta_of is not None and "filter" in state:
            self._filter = replace(self._filter, eta=state["filter"]["eta"])

    def _at(self, place: slice) -> tuple[Tensor, Tensor | None]:
        """Ranges of W and Delta."""
        update = self.vectors.get("update")
        return self.vectors["global_model"][place], None if update is None else update[place]
