"""Values of a shard on its server, their update by a copy of the user's optimizer, and copies.

A STATE is a copy for a rank that saves it. It contains the values and the state of the optimizer.
The payload consists of the bytes of all tensors, starting with the values. The facts contain index,
name, dtype and shape of the other tensors, and state that is not a tensor.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_hier.algorithms.squares import all_finite
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.shards import Shard
from lightning_hier.parameter_server.updater import Hyperparameters, ParameterStates, Updater

# Tensors start at multiples of this number of bytes, which aligns all dtypes.
_ALIGNMENT = 16

_log = logging.getLogger(__name__)


class ServedValues:
    """Values of a shard on the host, which start as those of its parameters. Thread-safe.

    Args:
        name: name of the values, for log messages.
        shard: shard on this rank.
        optimizer: optimizer of the user; copied.
        dtype: dtype in which the values are kept. None: that of each parameter.

    """

    def __init__(
        self, name: str, shard: Shard, optimizer: Optimizer, dtype: torch.dtype | None = None
    ) -> None:
        self._name = name
        # Copies, because on the CPU the server would otherwise update the module's tensors.
        self._tensors = [
            p.detach().to("cpu", dtype or p.dtype, copy=True).contiguous() for p in shard.parameters
        ]
        self._sizes = [tensor.numel() for tensor in self._tensors]
        self._updater = Updater(optimizer, dict(zip(shard.parameters, self._tensors, strict=True)))
        self._dtype = shard.dtype
        self._flat: Tensor | None = None
        # A lock, because a rank that saves copies its own shards while the server loop updates.
        self._lock = threading.RLock()

    def flat(self) -> Tensor:
        """A copy of the current values, 1-D, kept until the next update. It is never changed."""
        with self._lock:
            if self._flat is None:
                pieces = [tensor.reshape(-1).to(self._dtype) for tensor in self._tensors]
                # torch.cat refuses an empty list, as of an optimizer without trainable parameters.
                self._flat = torch.cat([torch.empty(0, dtype=self._dtype), *pieces])
            return self._flat

    def update(
        self,
        mean: Tensor,
        *,
        absent: Collection[int],
        rate_factor: float,
        hyperparameters: Hyperparameters | None,
    ) -> bool:
        """``w <- w - rate_factor * lr * Updater(mean)``.

        An update to NaN or inf is undone: the values are restored, and the optimizer state, which
        may contain them as well, is reset.

        Args:
            mean: mean gradient, 1-D.
            absent: positions of parameters without a gradient, which are not updated.
            rate_factor: factor of every learning rate.
            hyperparameters: hyperparameters of the user's optimizer; None: those of the last
                update.

        Returns:
            False if the gradient or the new values are not finite.

        """
        if not all_finite(mean):
            return False
        with self._lock:
            # The backup costs no memory: it is the copy that workers have received.
            before, pieces = self.flat(), mean.split(self._sizes)
            gradients = [None if at in absent else piece for at, piece in enumerate(pieces)]
            self._updater.step(gradients, rate_factor=rate_factor, hyperparameters=hyperparameters)
            self._flat = None
            # Freed before the new flat copy is created, to save memory.
            del mean, pieces, gradients
            if all_finite(self.flat()):
                return True
            for tensor, piece in zip(self._tensors, before.split(self._sizes), strict=True):
                tensor.copy_(piece.view(tensor.shape))
            self._flat = before
            self._updater.reset()
        _log.warning(
            "an update of %s is not finite: the values are not changed, and the state of their "
            "optimizer is reset",
            self._name,
        )
        return False

    def snapshot(self) -> tuple[Tensor, ParameterStates]:
        """Consistent copies of the flat values and of the optimizer state by parameter index."""
        with self._lock:
            return self.flat(), self._updater.state()

    def load(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Load the optimizer state of these parameters."""
        with self._lock:
            self._updater.load(states)


def write_state(values: ServedValues, request: Message) -> Message:
    """Answer to a STATE_REQUEST: copies of the values and of the optimizer state."""
    flat, states = values.snapshot()
    pieces, tensors, plain = _padded(flat), [], []
    for index, state in states.items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                dtype = str(value.dtype).removeprefix("torch.")
                tensors.append([index, name, dtype, list(value.shape)])
                pieces += _padded(value)
            elif value is None or isinstance(value, (bool, int, float, str)):
                plain.append([index, name, value])
            else:
                _log.warning("state %r of the optimizer is not saved: it is %s", name, type(value))
    facts = {"plain": plain, "tensors": tensors}
    # One copy of all tensors, because a state may be several times as large as the shard.
    return Message(Kind.STATE, request.block, request.timestamp, facts, torch.cat(pieces))


def read_state(message: Message, shard: Shard) -> tuple[Tensor, ParameterStates]:
    """Copies of the flat values of a shard, and of its optimizer state by parameter index."""
    values, at = _read(message.payload, 0, shard.dtype, [shard.size])
    states: ParameterStates = {}
    for index, name, dtype, shape in message.facts["tensors"]:
        value, at = _read(message.payload, at, getattr(torch, dtype), shape)
        states.setdefault(index, {})[name] = value
    for index, name, plain in message.facts["plain"]:
        states.setdefault(index, {})[name] = plain
    return values, states


def _padded(tensor: Tensor) -> list[Tensor]:
    # As bytes, because the tensors of one message have different dtypes.
    raw = tensor.reshape(-1).view(torch.uint8)
    return [raw, torch.zeros(-raw.numel() % _ALIGNMENT, dtype=torch.uint8)]


def _read(raw: Tensor, at: int, dtype: torch.dtype, shape: Sequence[int]) -> tuple[Tensor, int]:
    """A copy of the tensor that starts at a byte, and the start of the next one."""
    end = at + torch.Size(shape).numel() * dtype.itemsize
    return raw[at:end].clone().view(dtype).view(shape), end + -end % _ALIGNMENT
