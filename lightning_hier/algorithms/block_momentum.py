"""Block momentum, or blockwise model-update filtering (BMUF), as an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_hier.algorithms.arguments import check_choice, check_flag, check_positive, is_number
from lightning_hier.algorithms.chunks import chunks
from lightning_hier.algorithms.squares import SumOfSquares, sum_of_squares

# Elements of a chunk. Of half the length, calling the operations takes a fifth of the time.
_CHUNK = 1 << 17

UpdateFrom = Literal["global", "start"]


def auto_block_momentum(num_models: int, *, block_lr: float = 1.0, c: float = 1.0) -> float:
    """Block momentum eta from the number of averaged models.

    ``block_lr / (num_models * (1 - eta)) = c`` (bmuf eq. 10, two_tiered_bmuf_gtc eq. 5), solved
    for eta. One model is not averaged with anything, so it has no block momentum.

    Args:
        num_models: N, the models that one synchronisation averages (workers in BMUF, groups in
            BMUF_GTC).
        block_lr: zeta, the learning rate of the global update.
        c: C, the weight of one mini-batch relative to plain SGD; 1 or slightly more.

    Raises:
        ValueError: eta is not in [0, 1).

    """
    if num_models == 1:
        return 0.0
    eta = 1.0 - block_lr / (c * num_models)
    if not 0.0 <= eta < 1.0:
        raise ValueError(
            f"block_momentum='auto' gives 1 - block_lr / (c * models) = {eta:g} with "
            f"block_lr={block_lr:g}, c={c:g} and {num_models} models, and block momentum must lie "
            f"in [0, 1): lower block_lr to at most {c * num_models:g}, or set block_momentum."
        )
    return eta


class BlockMomentum(Optimizer):
    """Model averaging (MA), and classical or Nesterov block momentum (CBM, NBM).

    An outer optimizer. Its parameters are the global model W, and the gradient is minus G, the mean
    of the local updates of some workers, which have trained from the start model W_g::

        G(t)     = Wbar(t) - W_g(t-1)                      bmuf eq. 2, Wbar: mean of their models
        Delta(t) = eta * Delta(t-1) + zeta * G(t)          bmuf eq. 3
        W(t)     = W(t-1) + Delta(t)                       bmuf eq. 4
        W_g(t)   = W(t)                                    classical, bmuf eq. 5
        W_g(t)   = W(t) + eta * Delta(t)                   Nesterov, bmuf eq. 6

    ``eta = 0, zeta = 1`` is model averaging. Strategies step it by themselves. In another loop::

        outer = BlockMomentum(model.parameters(), block_momentum=1 - 1 / len(workers))
        for block in blocks:
            starts = outer.start_models()
            ...  # every worker copies them into its model, and trains the block
            models = [worker.parameters() for worker in workers]
            for p, start, *own in zip(model.parameters(), starts, *models):
                p.grad = start - torch.stack(own).mean(0)
            outer.step()

    The state of a parameter is Delta, as ``"update"``, unless eta is 0. Different parameters may be
    stepped at different times. No method communicates.

    Args:
        params: parameters, or dictionaries of groups of parameters with settings of their own.
            They contain W, and are changed in place.
        block_momentum: eta, in [0, 1).
        block_lr: zeta, above 0.
        nesterov: whether blocks start from the look-ahead W + eta * Delta.
        update_from: the model to which Delta(t) is added: ``"global"``, W(t-1), as in bmuf; or
            ``"start"``, W_g(t-1), as in two_tiered_bmuf_gtc eq. 4 and in some toolkits. With
            ``"start"`` and Nesterov, the total contribution of a block is (1 + eta) / (1 - eta)
            times its update instead of 1 / (1 - eta).
        includes_ahead: whether W contains the look-ahead, as the global model of DiLoCo does. With
            Nesterov, ``W(t) = W(t-1) + zeta * G(t) + eta * Delta(t)``, which is W_g of eq. 6, and
            W_g is W. This is ``torch.optim.SGD`` with a momentum of eta and a learning rate of
            zeta, up to rounding.

    Raises:
        ValueError: a setting is outside its range, or a parameter is a DTensor.

    """

    def __init__(
        self,
        params: Iterable[Any],
        block_momentum: float = 0.0,
        block_lr: float = 1.0,
        *,
        nesterov: bool = True,
        update_from: UpdateFrom = "global",
        includes_ahead: bool = False,
    ) -> None:
        if not is_number(block_momentum) or not 0.0 <= block_momentum < 1.0:
            raise ValueError(f"block_momentum must lie in [0, 1), got {block_momentum!r}")
        check_positive("block_lr", block_lr)
        check_flag("nesterov", nesterov)
        check_choice("update_from", update_from, get_args(UpdateFrom))
        check_flag("includes_ahead", includes_ahead)
        defaults = {
            "block_momentum": block_momentum,
            "block_lr": block_lr,
            "nesterov": nesterov,
            "update_from": update_from,
            "includes_ahead": includes_ahead,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with settings that differ from those of the optimizer."""
        super().add_param_group(param_group)
        # A step takes the elements in their order, as one flat tensor.
        if any(hasattr(parameter, "to_local") for parameter in param_group["params"]):
            raise ValueError("BlockMomentum can't step a DTensor: pass parameter.to_local()")

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Compute W(t) from the gradients, minus G(t). Parameters without one are left out."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group)
        return loss

    def _step(self, parameter: Tensor, group: dict[str, Any]) -> None:
        assert parameter.grad is not None, "parameters without a gradient are left out"
        state = self.state[parameter]
        # With eta = 0, the next Delta does not depend on the last one, and none is kept.
        if group["block_momentum"] != 0.0 and "update" not in state:
            state["update"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        update = state["update"].view(-1) if "update" in state else None
        # In the order of the elements, also if the parameter is not contiguous.
        model, mean = parameter.detach().reshape(-1), parameter.grad.neg().reshape(-1)
        advance_(mean, model, update, group)
        if not parameter.is_contiguous():
            parameter.copy_(model.view_as(parameter))

    @torch.no_grad()
    def start_models(self) -> list[Tensor]:
        """W_g, the start model of the next block: a new tensor for each parameter, in their order.

        Without a look-ahead, they are equal to the parameters.
        """
        starts = []
        for group in self.param_groups:
            for parameter in group["params"]:
                start = parameter.detach().clone()
                if "update" in self.state[parameter]:
                    start.add_(self.state[parameter]["update"], alpha=look_ahead(group))
                starts.append(start)
        return starts


def advance_(
    mean: Tensor,
    model: Tensor,
    update: Tensor | None,
    group: Mapping[str, Any],
    *,
    from_updates: bool = True,
) -> tuple[SumOfSquares, SumOfSquares]:
    """A step of :class:`BlockMomentum` from a mean, in one pass over flat, contiguous tensors.

    From the mean of models, W is an interpolation between W_g(t-1) and Wbar(t), so that W = Wbar
    for model averaging and for Nesterov block momentum with zeta = 1 (bmuf_adam eq. 8) holds bit
    for bit. From the mean of local updates, eq. 3, 4 and 6 are computed directly.

    Args:
        mean: G(t), or Wbar(t). Becomes W_g(t), the start model of the next block.
        model: W(t-1), same shape. Becomes W(t).
        update: Delta(t-1), same shape. Becomes Delta(t). May be None if eta is 0.
        group: settings, one of ``param_groups`` of the optimizer.
        from_updates: whether the mean is G(t). Required by ``includes_ahead``.

    Returns:
        The sums of squares of the mean and of Delta(t), or of ``W(t) - W(t-1)`` if W contains the
        look-ahead.

    """
    ahead = look_ahead(group)
    step_ = _from_updates_ if from_updates else _from_models_
    of_mean: SumOfSquares = 0.0
    of_update: SumOfSquares = 0.0
    for values, weights, delta in chunks(mean, model, update, in_cache=_CHUNK):
        of_mean += sum_of_squares(values)
        # Before the start model overwrites `values`, which the update may be.
        of_update += sum_of_squares(step_(values, weights, delta, group))
        if ahead and delta is not None:
            torch.add(weights, delta, alpha=ahead, out=values)
        else:
            values.copy_(weights)
    return of_mean, of_update


def _from_models_(
    mean: Tensor, model: Tensor, update: Tensor | None, group: Mapping[str, Any]
) -> Tensor:
    """Update W and Delta from the mean of models, in place. Returns Delta(t)."""
    eta, zeta, ahead = group["block_momentum"], group["block_lr"], look_ahead(group)
    from_global = group["update_from"] == "global"
    # With Nesterov from W(t-1), W_g(t-1) already contains eta * Delta(t-1).
    added = None if group["nesterov"] and from_global else update
    start, after = model, mean
    # W_g(t-1) follows from W and Delta, and is no argument, because it would be one more model in
    # memory. It is not needed if W(t) is the mean.
    if ahead and update is not None and (zeta != 1.0 or added is not None):
        start = model.add(update, alpha=ahead)
    if zeta != 1.0:
        after = torch.lerp(start, mean, zeta)
    if added is not None:
        after = after.add(added, alpha=eta)
    # Delta(t) by eq. 4: one subtraction, where G(t) and the sum of eq. 3 would be two passes.
    update = torch.sub(after, model if from_global else start, out=update)
    model.copy_(after)
    return update


def _from_updates_(
    mean: Tensor, model: Tensor, update: Tensor | None, group: Mapping[str, Any]
) -> Tensor:
    """Update W and Delta from the mean of local updates, in place.

    Returns:
        Delta(t), or ``W(t) - W(t-1)`` if W contains the look-ahead.

    """
    eta, zeta = group["block_momentum"], group["block_lr"]
    if zeta != 1.0:
        mean.mul_(zeta)
    moved = mean
    if update is not None:
        if look_ahead(group) and group["update_from"] == "start":
            model.add_(update, alpha=eta)
        moved = torch.add(mean, update, alpha=eta, out=update)
        if group["nesterov"] and group["includes_ahead"]:
            moved = mean.add_(update, alpha=eta)
    model.add_(moved)
    return moved


def look_ahead(group: Mapping[str, Any]) -> float:
    """The factor with which a start model adds Delta to W; 0 without a look-ahead.

    Args:
        group: settings of :class:`BlockMomentum`.

    """
    # With includes_ahead, W is the start model itself, and nothing is added to it.
    ahead = group["nesterov"] and not group["includes_ahead"]
    return float(group["block_momentum"]) if ahead else 0.0
