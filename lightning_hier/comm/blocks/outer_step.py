"""Outer step of a fragment: the optimizer that computes the next global model from a mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy, deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from typing_extensions import Self

from lightning_hier.algorithms.block_momentum import BlockMomentum, advance_, look_ahead
from lightning_hier.algorithms.squares import SumOfSquares, sum_of_squares

OuterOptimizer = Callable[[Iterable[Parameter]], Optimizer]
"""Makes an optimizer of the given parameters."""

EtaOf = Callable[[float], float]
"""Computes the momentum of a mean from its effective number of models."""


class OuterStep:
    """Steps an optimizer with minus the mean local update as the gradient (diloco alg. 1).

    It holds this rank's shard of the global model W, and the optimizer state that has a value for
    each element, as flat vectors. ``place`` is a range of elements of this shard, which becomes a
    parameter with an optimizer of its own for the time of a step, so that ranges can be stepped as
    their means arrive. No method communicates.

    A block starts from W, or from the look-ahead of :class:`BlockMomentum`, which is stepped by its
    function :func:`advance_`: in one pass, and from the mean of models where models are exchanged.

    With ``offload``, the vectors lie in the memory of the host. Every method copies those of its
    range to the device, and :meth:`apply_` copies them back (``docs/model_parallel.md``), so the
    device holds the vectors of one range at a time, which is a chunk of the shard. The numbers are
    the same bit for bit. If the model is on a GPU, the memory of the host is pinned, so that copies
    have the full rate of the bus. They block, because a checkpoint may read the vectors at once.

    Args:
        make: makes the optimizer.
        global_model: the start of this rank's shard of W, flat, on the device of the model. Copied.
        from_updates: whether the means are those of local updates (local model minus start model)
            and not of models. Updates are exchanged if they are quantised or delayed.
        eta_of: computes the momentum of every mean of :class:`BlockMomentum` from the effective
            number of models. A block then starts from the look-ahead with the momentum of the last
            mean, which updates are counted from. Requires ``from_updates``. None: it is constant.
        offload: see above.

    Attributes:
        from_updates: see above. True for optimizers other than :class:`BlockMomentum`.
        offload: see above.
        vectors: W as ``"global_model"``, and the state vectors, initially zero. They are saved,
            divided among ranks and restored by name.

    """

    def __init__(
        self,
        make: OuterOptimizer,
        global_model: Tensor,
        *,
        from_updates: bool = True,
        eta_of: EtaOf | None = None,
        offload: bool = False,
    ) -> None:
        self.offload = offload
        self._make, self._eta_of, self._device = make, eta_of, global_model.device
        optimizer, state = _example(make)
        # Settings of BlockMomentum, in which eta is that of the last mean.
        self._block: dict[str, Any] | None = None
        if isinstance(optimizer, BlockMomentum):
            [group] = optimizer.param_groups
            self._block = {name: value for name, value in group.items() if name != "params"}
        self.from_updates = from_updates or self._block is None or self._block["includes_ahead"]
        model = self.stored(global_model)
        self.vectors = {"global_model": model}
        for name in state:
            self.vectors[name] = self._pinned(torch.zeros_like(model))
        # State that is the same for all elements, such as a step count, before and after the last
        # mean, of which some ranges have been stepped and others not yet. None: ranges start.
        self._before: dict[str, Any] | None = None
        self._after: dict[str, Any] | None = None

    def start_model(self, place: slice) -> Tensor:
        """W_g, the start model of the next block. May be a view of W."""
        model, update, eta = self._start(place)
        return model if update is None else model.add(update, alpha=eta)

    def prepare_(self, model: Tensor, place: slice) -> SumOfSquares:
        """Turn a local model into the values to average, in place. Returns their sum of squares."""
        # A model is sent as it is. Its squares are for the health report and the norms.
        if self.from_updates:
            start, update, eta = self._start(place)
            model.sub_(start)
            if update is not None:
                model.sub_(update, alpha=eta)
        return sum_of_squares(model)

    def set_models(self, effective: float) -> None:
        """Begin a step from the next mean, with this effective number of models.

        It is called once between :meth:`prepare_` and :meth:`apply_`, when a mean is sent.
        """
        self._before = self._after
        if self._block is not None and self._eta_of is not None:
            self._block = {**self._block, "block_momentum": self._eta_of(effective)}

    def apply_(self, mean: Tensor, place: slice) -> tuple[SumOfSquares, SumOfSquares]:
        """Update W and the state, in place.

        Args:
            mean: mean of the local updates, or of the models. Becomes W_g.
            place: range of the mean.

        Returns:
            The sums of squares of the mean and of the global update.

        """
        own = {name: self._at(place, name) for name in self.vectors}
        if self._block is not None:
            model, update, by_updates = own["global_model"], own.get("update"), self.from_updates
            squares = advance_(mean, model, update, self._block, from_updates=by_updates)
        else:
            squares = self._step_(mean, own)
        if self.offload:
            for name, vector in own.items():
                self.vectors[name][place].copy_(vector)
        return squares

    def _step_(self, mean: Tensor, own: dict[str, Tensor]) -> tuple[SumOfSquares, SumOfSquares]:
        """:meth:`apply_` of an optimizer to the vectors of a range."""
        model, squares = own["global_model"], sum_of_squares(mean)
        before, parameter = model.clone(), Parameter(model)
        optimizer = self._make([parameter])
        # Without any, the optimizer must create its state itself at its first step.
        if self._before is not None:
            vectors = {name: vector for name, vector in own.items() if name != "global_model"}
            optimizer.state[parameter] = {**deepcopy(self._before), **vectors}
        parameter.grad = mean.neg_()
        optimizer.step()
        state = optimizer.state[parameter]
        self._after = {name: value for name, value in state.items() if name not in own}
        for name in own.keys() & state.keys():
            if state[name] is not own[name]:  # created or replaced
                own[name].copy_(state[name])
        mean.copy_(model)
        return squares, sum_of_squares(before.sub_(model))

    def preview(self, place: slice) -> Self:
        """A copy for a range of elements, on the device. Its steps do not change this one.

        Args:
            place: range of the elements, which the copy counts from 0.

        """
        ahead = copy(self)  # shallow: it shares settings, and gets vectors of its own
        ahead.offload = False
        ahead.vectors = {n: v[place].to(self._device, copy=True) for n, v in self.vectors.items()}
        return ahead

    def stored(self, values: Tensor) -> Tensor:
        """A copy of other state of the block, in the memory in which the vectors are."""
        return self._pinned(values.to("cpu", copy=True)) if self.offload else values.clone()

    def converted(self, saved: Mapping[str, Any], model: Tensor) -> dict[str, Any]:
        """State that begins a block after a run with other shards or settings.

        State of another optimizer is dropped. That of the same is as of the last synchronisation,
        except for Delta of :class:`BlockMomentum`: it is the update that has led to ``model``,
        unless W contains the look-ahead, because it does not follow from two models then.

        Args:
            saved: vectors and settings of a parameter in that run, its update in flight, if there
                is one, as ``"in_flight"``, and as ``"pending"`` whether steps since the last
                synchronisation are part of ``model``. Its tensors may be overwritten.
            model: global model of the parameter in the checkpoint, flat.

        Returns:
            Vectors, and as ``"common"`` what is the same for all elements, for :meth:`load`.

        """
        before, names = saved.get("block_momentum"), self.vectors.keys() - {"global_model"}
        state = {"global_model": model, **{name: torch.zeros_like(model) for name in names}}
        # Between BMUF and DiLoCo, W and Delta have different meanings.
        inside = [own and own["includes_ahead"] for own in (before, self._block)]
        if inside == [False, False]:
            if (update := _last_update(saved, model)) is not None:
                state["update"] = update
        elif inside[0] == inside[1] and all(saved.get(name) is not None for name in names):
            state |= {name: saved[name] for name in names}
            return {**state, "common": saved.get("common")}
        return {**state, "common": None}

    def settings(self) -> dict[str, Any]:
        """Settings and state of all elements for a checkpoint, in addition to the vectors."""
        return {"block_momentum": self._block, "common": self._after}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load :meth:`settings`. The vectors are not changed."""
        self._before = self._after = state.get("common")
        # Eta of the last mean. A constant eta is that of the settings of this run.
        if self._block is not None and self._eta_of is not None and state.get("block_momentum"):
            eta = state["block_momentum"]["block_momentum"]
            self._block = {**self._block, "block_momentum": eta}

    def _at(self, place: slice, name: str) -> Tensor:
        """A range of a vector on the device, which is a copy if vectors lie on the host."""
        vector = self.vectors[name][place]
        return vector.to(self._device) if self.offload else vector

    def _start(self, place: slice) -> tuple[Tensor, Tensor | None, float]:
        """W, and the vector that a start model adds to it, times a factor."""
        model = self._at(place, "global_model")
        eta = 0.0 if self._block is None else look_ahead(self._block)
        return model, None if eta == 0.0 else self._at(place, "update"), eta

    def _pinned(self, values: Tensor) -> Tensor:
        pins = self.offload and self._device.type == "cuda" and values.numel()
        return values.pin_memory() if pins else values


def check_outer_optimizer(make: OuterOptimizer) -> None:
    """Check that ``make`` makes an optimizer that :class:`OuterStep` can step.

    Raises:
        ValueError: it does not.

    """
    example = "such as partial(torch.optim.SGD, lr=0.7)"
    if not callable(make):
        raise ValueError(
            f"outer_optimizer must be callable with parameters, {example}, got {make!r}"
        )
    try:
        start, gradient = torch.arange(1.0, 5.0), torch.tensor([4.0, -1.0, 0.5, 2.0])
        whole, halves = Parameter(start.clone()), OuterStep(make, start)
        optimizer = make([whole])
        # Two different gradients, so that state of the first step has an effect on the second.
        for step_gradient in (gradient, gradient.square()):
            whole.grad = step_gradient
            optimizer.step()
            halves.set_models(1.0)
            for place in (slice(0, 2), slice(2, 4)):
                halves.apply_(-step_gradient[place], place)
    except Exception as error:
        raise ValueError(
            "outer_optimizer must make an optimizer that steps flat parameters without a closure, "
            f"{example}, got {make!r}: {error}"
        ) from error
    # Compared bit for bit, because no result may depend on the division into shards.
    if not torch.equal(whole, halves.vectors["global_model"]):
        raise ValueError(
            "outer_optimizer must treat each element by itself, since every rank steps a part of "
            f"the model, and keep all its state in `state`, {example}, got {make!r}, whose step "
            "depends on the other elements or on state elsewhere"
        )


def _example(make: OuterOptimizer) -> tuple[Optimizer, list[str]]:
    """An optimizer after a step, and the names of its state with a value for each element."""
    parameter = Parameter(torch.ones(2))
    optimizer = make([parameter])
    parameter.grad = torch.ones(2)
    optimizer.step()
    state = optimizer.state[parameter].items()
    return optimizer, [n for n, v in state if isinstance(v, Tensor) and v.shape == parameter.shape]


def _last_update(saved: Mapping[str, Any], model: Tensor) -> Tensor | None:
    """Delta of the update that has led to ``model``, from a state of block momentum."""
    settings = saved["block_momentum"]
    step = OuterStep(partial(BlockMomentum, **settings), saved["global_model"])
    step.load(saved)
    for name in step.vectors.keys() & saved.keys():
        step.vectors[name].copy_(saved[name])
    # As the evaluation that computed `model`: the update in flight, then that of later steps.
    if saved.get("in_flight") is not None:
        step.apply_(saved["in_flight"], slice(0, len(model)))
    if not saved["pending"]:
        return step.vectors.get("update")
    whole = slice(0, len(model))
    from_start = settings["update_from"] == "start"
    return model - (step.start_model(whole) if from_start else step.vectors["global_model"])
