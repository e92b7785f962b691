"""Feed-forward acoustic model of bmuf, section 3.1."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from examples.acoustic.models.base import FrameClassifier
from examples.acoustic.models.edges import extend_edges


class DNNAcousticModel(FrameClassifier):
    """ReLU layers on spliced frames, softmax over senones.

    Frame t is classified from frames t - ``context`` to t + ``context``. Beyond the ends of an
    utterance, its first or last frame is repeated.

    The defaults are those of the paper, 11 frames and seven layers of 2048 units. With 52 features
    and 18002 senones, the model has about 63 million parameters.

    Args:
        feature_dim: number of features of a frame, D. None: taken from the data.
        num_senones: number of classes, S. None: taken from the data.
        hidden_dim: number of units of each hidden layer.
        num_layers: number of hidden layers.
        context: number of frames on each side. With 5, 11 frames are spliced.
        max_norm: L2 constraint, the largest norm of the incoming weights of a hidden unit. None: no
            constraint.
        training_options: arguments of :class:`FrameClassifier`.

    Raises:
        ValueError: ``context`` is negative, there is no hidden layer, or ``max_norm`` is not
            positive.
    """

    def __init__(
        self,
        *,
        feature_dim: int | None = None,
        num_senones: int | None = None,
        hidden_dim: int = 2048,
        num_layers: int = 7,
        context: int = 5,
        max_norm: float | None = None,
        **training_options: Any,
    ) -> None:
        super().__init__(**training_options)
        self.save_hyperparameters()
        if context < 0:
            raise ValueError(f"context must be at least 0 frames, got {context}")
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers}")
        if max_norm is not None and max_norm <= 0.0:
            raise ValueError(f"max_norm must be above 0, or None for no limit, got {max_norm}")
        self.context = context
        self.max_norm = max_norm
        self.hidden_dim = hidden_dim
        self.num_layers = num_layers
        self.take_sizes(feature_dim=feature_dim, num_senones=num_senones)

    def _layers(self, feature_dim: int, num_senones: int) -> None:
        spliced = (2 * self.context + 1) * feature_dim
        inputs = [spliced] + [self.hidden_dim] * (self.num_layers - 1)
        layers = [(nn.Linear(size, self.hidden_dim), nn.ReLU()) for size in inputs]
        self.hidden = nn.Sequential(*chain.from_iterable(layers))
        self.affine = nn.Linear(self.hidden_dim, num_senones)
        for layer in self.hidden_layers:
            # The default of torch reduces the variance of the activations in every ReLU layer.
            # Over seven layers, almost nothing is left of it.
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Compute the logits of every frame.

        Args:
            features: (B, T, D) features; utterance b has ``lengths[b]`` frames.
            lengths: (B,) number of frames of each utterance.

        Returns:
            (B, T, S) logits. Those at t depend on the frames t - ``context`` to t + ``context``.
        """
        extended = extend_edges(features, lengths, left=self.context, right=self.context)
        spliced = extended.unfold(1, 2 * self.context + 1, 1).transpose(2, 3).flatten(2)
        logits: Tensor = self.affine(self.hidden(spliced))
        return logits

    @property
    def hidden_layers(self) -> list[nn.Linear]:
        """Linear part of each hidden layer, from the first layer to the last."""
        return [layer for layer in self.hidden if isinstance(layer, nn.Linear)]

    def configure_optimizers(self) -> Any:
        """Return the optimizer of the base class, with the L2 constraint after each update."""
        configured = super().configure_optimizers()
        if self.max_norm is not None:
            # A hook of the optimizer runs before a strategy averages models. Their average then
            # satisfies the constraint as well, because the set is convex.
            configured["optimizer"].register_step_post_hook(lambda *_: self.constrain_weights())
        return configured

    @torch.no_grad()
    def constrain_weights(self) -> None:
        """Scale the incoming weights of each hidden unit down to ``max_norm``, in place."""
        if self.max_norm is None:
            return
        for layer in self.hidden_layers:
            layer.weight.renorm_(p=2, dim=0, maxnorm=self.max_norm)
