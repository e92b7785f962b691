"""The feed-forward acoustic model of bmuf, section 3.1."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from examples.acoustic.models.base import FrameClassifier
from examples.acoustic.models.edges import extend_edges


class DNNAcousticModel(FrameClassifier):
    """ReLU layers on spliced frames, softmax over senones.

    Frame t is classified from frames t - ``context`` to t + ``context``; beyond an utterance's ends
    its first or last frame is repeated.

    The paper's size is the default: 11 frames, seven layers of 2048; with 52 features and 18002
    senones about 63 million parameters.

    Args:
        feature_dim: D, inputs per frame; None takes it from the data.
        num_senones: S, classes; None takes it from the data.
        hidden_dim: units per hidden layer.
        num_layers: hidden layers.
        context: frames on each side; 5 makes 11 spliced frames.
        max_norm: L2 constraint, the largest norm of the weights that come into one hidden unit;
            ``None`` for no constraint.
        training_options: see :class:`FrameClassifier`.

    Raises:
        ValueError: for a negative ``context``, no hidden layer or a ``max_norm`` that is not
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
            # Torch's default shrinks the signal in every ReLU layer, by far too much over seven.
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Score every frame.

        Args:
            features: (B, T, D), utterance b in its first ``lengths[b]`` frames.
            lengths: (B,).

        Returns:
            (B, T, S) logits; entry t has seen the frames from t - ``context`` to t + ``context``.
        """
        extended = extend_edges(features, lengths, left=self.context, right=self.context)
        spliced = extended.unfold(1, 2 * self.context + 1, 1).transpose(2, 3).flatten(2)
        logits: Tensor = self.affine(self.hidden(spliced))
        return logits

    @property
    def hidden_layers(self) -> list[nn.Linear]:
        """The affine part of each hidden layer, first layer first."""
        return [layer for layer in self.hidden if isinstance(layer, nn.Linear)]

    def configure_optimizers(self) -> Any:
        """As in the base class, with the L2 constraint applied right after each update."""
        configured = super().configure_optimizers()
        if self.max_norm is not None:
            # A hook of the optimizer, because it runs before a strategy synchronises models: what
            # is averaged then satisfies the constraint, and so does the average (a convex set).
            configured["optimizer"].register_step_post_hook(lambda *_: self.constrain_weights())
        return configured

    @torch.no_grad()
    def constrain_weights(self) -> None:
        """Scale the incoming weights of each hidden unit down to ``max_norm``, in place."""
        if self.max_norm is None:
            return
        for layer in self.hidden_layers:
            layer.weight.renorm_(p=2, dim=0, maxnorm=self.max_norm)
